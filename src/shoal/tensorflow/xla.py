"""Calls from programs that XLA compiles (``jit_compile=True``) to Shoal's native code (native/xla).

XLA has no kernels of TensorFlow's operations. A call is a small module of StableHLO in the graph, which calls a function by
its name. Sizes are those of the trace: XLA compiles for them. Nothing of it is loaded before the first such call.

XLA runs calls of a program that do not depend on each other in any order, also those of a function that is called twice, or
of a loop that it has unrolled; and TensorFlow runs programs so that have nothing in common. So each call of a name waits
for the one before: by a number that it hands on, in a variable, which TensorFlow keeps in the program's order.
"""

import ctypes
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util

from shoal.tensorflow import naming
from shoal.tensorflow.library import native

# As StableHLO calls them.
TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
WITHOUT = "leave out jit_compile=True (Keras: jit_compile=False)"


class Array(NamedTuple):
    """Of an operand or result."""

    dtype: Any
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{TYPES[self.dtype.name]}>"


ORDER = Array(tf.int32, ())


def is_compiled(graph: Any) -> bool:
    """Whether what is traced here is for XLA."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def require(what: str) -> None:
    """Raises NotImplementedError if this TensorFlow's XLA cannot call Shoal."""
    why = problem()
    if why:
        raise NotImplementedError(f"{what} cannot be compiled by XLA: {why}: {WITHOUT}")


@lru_cache
def problem() -> str:
    """Why this TensorFlow's XLA cannot call Shoal; empty: it can."""
    enable = native.shoal_tensorflow_enable_xla
    enable.restype = ctypes.c_char_p
    why: str = enable().decode()
    return f"{why} (TensorFlow {tf.__version__})" if why else ""


def array_of(x: Any, what: str) -> Array:
    """Raises TypeError for what cannot be sent, NotImplementedError where its size is not known."""
    if x.dtype.name not in TYPES:
        raise TypeError(f"{what} of {x.dtype.name} cannot be sent: dtypes are {', '.join(TYPES)}")
    if not x.shape.is_fully_defined():
        raise NotImplementedError(
            f"{what} of shape {x.shape} cannot be compiled by XLA, which has to know all sizes: call the function with "
            f"tensors of known shapes, without None in input_signature, or {WITHOUT}"
        )
    return Array(x.dtype, tuple(x.shape.as_list()))


class Turns:
    """Calls of one name, each after the one before.

    ``may_repeat``: whether several may come in one program, whatever ``graph`` says. Raises NotImplementedError if they may in a
    graph of TensorFlow 1.
    """

    def __init__(self, name: str, graph: Any, may_repeat: bool = False) -> None:
        self._variable = _turn_of(name, may_repeat or _may_repeat(graph))

    def before(self) -> Any:
        """What the call is to come after; None: nothing."""
        return None if self._variable is None else self._variable.read_value()

    def after(self, orders: Sequence[Any]) -> None:
        """What the next one is to come after."""
        if self._variable is not None:
            self._variable.assign(tf.add_n(list(orders)))


_lock = threading.Lock()
# By name, of this process: programs keep no variables, and traces of a function have the same names.
_turns: dict[str, Any] = {}


def _turn_of(name: str, may_repeat: bool) -> Any:
    with _lock, tf.init_scope():
        if tf.executing_eagerly():
            if name not in _turns:
                with tf.device("CPU:0"):
                    _turns[name] = tf.Variable(0, trainable=False, name="shoal_turn")
            return _turns[name]
        if may_repeat:
            raise NotImplementedError(
                f"'{name}' may come several times in a program that XLA compiles, which graphs of TensorFlow 1 cannot "
                f"order: give it no name, call it in one function alone, or {WITHOUT}"
            )
        return None


def _may_repeat(graph: Any) -> bool:
    """Whether a call of this graph may come several times in a compiled program."""
    if isinstance(graph, naming.PARTS):
        return True
    outer = graph.outer_graph if isinstance(graph, FuncGraph) else None
    return isinstance(outer, FuncGraph) and is_compiled(outer)


def call(
    function: str,
    operands: Sequence[Any],
    results: Sequence[Array],
    attributes: dict[str, int | str],
    in_place: Iterable[int] = (),
    after: Any = None,
) -> tuple[list[Any], Any]:
    """A call in the program that is traced.

    Arguments:
        function: as native code calls it.
        operands: tensors of known shapes and of dtypes of TYPES.
        attributes: what native code reads of it.
        in_place: results that may have the memory of the operand at the same place.
        after: what another call gave.

    Returns: the results, and what another call may come after.
    """
    # Takes a moment, and what loads it.
    from tensorflow.compiler.tf2xla.python import xla as tf2xla

    given = [*operands, *([] if after is None else [after])]
    everything = [*results, ORDER]
    version = tf2xla.call_module_maximum_supported_version()
    values = {**attributes, "ordered": int(after is not None)}
    called = tf2xla.call_module(
        tuple(given),
        version=version,
        module=_module(
            function,
            [Array(each.dtype, tuple(each.shape.as_list())) for each in given],
            everything,
            values,
            in_place,
        ),
        Tout=[each.dtype for each in everything],
        Sout=[tf.TensorShape(each.shape) for each in everything],
        platforms=["CPU"],
    )
    return list(called[:-1]), called[-1]


def _module(
    function: str,
    operands: Sequence[Array],
    results: Sequence[Array],
    attributes: dict[str, int | str],
    in_place: Iterable[int],
) -> str:
    arguments = [f"%arg{index}" for index in range(len(operands))]
    types = ", ".join(map(str, results))
    values = ", ".join(f"{name} = {_attribute(value)}" for name, value in attributes.items())
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{index}], operand_index = {index}, "
        "operand_tuple_indices = []>"
        for index in in_place
    )
    head = ", ".join(f"{name}: {array}" for name, array in zip(arguments, operands, strict=True))
    returned = ", ".join(f"%made#{index}" for index in range(len(results))) if len(results) > 1 else "%made"
    return f"""module @shoal {{
  func.func public @main({head}) -> ({types}) {{
    %made{f":{len(results)}" if len(results) > 1 else ""} = stablehlo.custom_call @{function}({", ".join(arguments)}) {{
      api_version = 4 : i32, has_side_effect = true, backend_config = {{{values}}}, output_operand_aliases = [{aliases}]
    }} : ({", ".join(map(str, operands))}) -> ({types})
    return {returned} : {types}
  }}
}}"""


def _attribute(value: int | str) -> str:
    if isinstance(value, int):
        return f"{value} : i64"
    plain = (chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\{byte:02X}" for byte in value.encode())
    return f'"{"".join(plain)}"'
