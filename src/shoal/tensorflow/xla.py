"""Calls from programs that XLA compiles (``jit_compile=True``) to Shoal's native code (native/xla).

XLA has no kernels of TensorFlow's operations. A call is a small module of StableHLO in the graph, which calls a function by
its name. Sizes are those of the trace: XLA compiles for them. What writes such modules is loaded with the first of them.

XLA runs calls of a program that do not depend on each other in any order, also those of a function that is called twice, or
of a loop that it has unrolled; and TensorFlow runs programs so that have nothing in common. So each call of a name waits
for the one before: by a number that it hands on, in a variable, which TensorFlow keeps in the program's order. It is that of
calls that are not compiled (naming.order_of), so these come in order, too.
"""

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util
from tensorflow.python.saved_model import save_context

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
    why: str = native.shoal_tensorflow_enable_xla().decode()
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
    """Calls of one name in one group, by the door's number, each after the one before.

    ``may_repeat``: whether several may come in one program, whatever ``graph`` says. Raises NotImplementedError where they may,
    and nothing can order them: in a graph of TensorFlow 1, and in what is saved.
    """

    def __init__(self, name: str, group: int, graph: Any, may_repeat: bool = False) -> None:
        self._variable: Any = None
        # In what is saved, which must not have a variable of this process: the order of the last call, or nothing.
        self._last: list[Any] | None = None
        if save_context.in_save_context():
            # TensorFlow keeps no order between compiled functions that another one calls without having a resource in common.
            if isinstance(graph, naming.PARTS) or isinstance(getattr(graph, "outer_graph", None), FuncGraph):
                _refuse(name, "what is saved")
            self._last = graph.get_collection_ref(f"shoal {group} {name}")
            return
        with tf.init_scope():
            is_eager = tf.executing_eagerly()
        if is_eager:
            self._variable = naming.order_of(name, group, graph)
            _begin(self._variable)
        elif may_repeat or _may_repeat(graph):
            _refuse(name, "graphs of TensorFlow 1")

    def before(self) -> Any:
        """What the call is to come after; None: nothing."""
        if self._variable is None:
            return self._last[0] if self._last else None
        order = tf.raw_ops.ReadVariableOp(resource=self._variable, dtype=ORDER.dtype)
        order.set_shape(ORDER.shape)
        return order

    def after(self, orders: Sequence[Any]) -> None:
        """What the next one is to come after."""
        if self._variable is not None:
            tf.raw_ops.AssignVariableOp(resource=self._variable, value=tf.add_n(list(orders)))
        elif self._last is not None:
            self._last[:] = [tf.add_n(list(orders))]


_lock = threading.Lock()


def _begin(variable: Any) -> None:
    """Gives the resource a value, if it has none. It keeps that as long as the process lives."""
    with _lock, tf.init_scope(), tf.device("CPU:0"):
        if not tf.raw_ops.VarIsInitializedOp(resource=variable):
            tf.raw_ops.AssignVariableOp(resource=variable, value=tf.zeros(ORDER.shape, ORDER.dtype))


def _refuse(name: str, where: str) -> None:
    raise NotImplementedError(
        f"'{name}' may come several times where XLA compiles it, which cannot be ordered in {where}: call it in one compiled function "
        f"that no other function calls, outside of loops and branches, or {WITHOUT}"
    )


def _may_repeat(graph: Any) -> bool:
    """Whether a call of this graph may come several times in a compiled program."""
    if isinstance(graph, naming.PARTS):
        return True
    outer = graph.outer_graph if isinstance(graph, FuncGraph) else None
    if not isinstance(outer, FuncGraph):
        return False
    # While a function is traced that is compiled by itself, TensorFlow notes that in the graph that calls it.
    return not control_flow_util.InXlaContext(outer) or is_compiled(outer.outer_graph)


def check(kind: str, name: str, group: int, members: int = 0, index: int = -1) -> None:
    """Lets the program fail where this rank is not this one of so many. 0, -1: any. Nothing where XLA cannot call Shoal.

    ``kind``, ``name``: of what was computed with that, for messages.
    """
    if not problem():
        call("shoal.place", [], [], {"kind": kind, "name": name, "group": group, "members": members, "index": index})


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
