"""What one operation costs in TensorFlow: a chain of 256 all-reduces of 1 KiB, each of what the one before has given.

By turns in one run, 2 ranks, each with one thread for TensorFlow's operations, since there are 2 cores:

    core         the core's operations, each planned before and submitted and waited for by two calls from Python
    array API    shoal.allreduce_ of a NumPy array
    TensorFlow   shoal.tensorflow.allreduce in one tf.function
    function     tf.numpy_function around the array API in one tf.function, which is what one would write without it

Target: an operation in TensorFlow takes at most 3 us more than one of the core's own.

    python benchmarks/micro/tensorflow_operations.py [--quick] [--only PLACE]
        in an environment with TensorFlow (make doors-test makes one); 2 minutes; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import math
from collections.abc import Callable, Mapping
from typing import Any

import replay
from replay import Pieces, Way

from shoal.bench import Report
from shoal.bench.contestants import Buffer, Contestant, FloatArray
from shoal.bench.naming import SHOAL

HEADING = "What one operation costs in TensorFlow: a chain of all-reduces of 1 KiB"
CORE, ARRAYS, TENSORFLOW, FUNCTION = "core", "array API", "TensorFlow", "function"
PLACES = {"one machine": "local n=2,nodes=1", "two nodes over loopback": "local n=2"}
OPERATIONS, BYTES = 256, 1024
ROUNDS, QUICK_ROUNDS = 31, 3
AT_MOST_MORE = 3e-6

# The first operation of a chain sums, and the others take the mean of what all have: the result is that of one operation.
_OPS = ["sum"] + ["mean"] * (OPERATIONS - 1)


def ways(joined: Contestant, library: str, arguments: Mapping[str, Any]) -> Mapping[str, Contestant]:
    """Of one rank."""
    makers = {
        CORE: _core,
        ARRAYS: _arrays,
        TENSORFLOW: _Function(_tensorflow),
        FUNCTION: _Function(_numpy_function),
    }
    return {f"{library} {name}": Way(joined, make) for name, make in makers.items()}


def _core(content: FloatArray) -> Buffer:
    from shoal.job import runtime
    from shoal.job.groups import world
    from shoal.ops import operations

    group, engine = world(), runtime.current().engine
    plans = [operations.allreduce(group, content, op, True) for op in _OPS]
    calls = [
        (
            plan.collective,
            group.number,
            f"core {index}",
            plan.op,
            plan.dtype,
            plan.shape,
            plan.splits,
            plan.root,
            plan.input,
        )
        for index, plan in enumerate(plans)
    ]
    ends = [(plan.output, group.timeout, None) for plan in plans]

    def chain() -> None:
        for call, end in zip(calls, ends, strict=True):
            assert engine.submit(*call, *end).wait(math.inf)

    return Pieces(content, chain)


def _arrays(content: FloatArray) -> Buffer:
    import shoal

    names = [f"array {index}" for index in range(OPERATIONS)]

    def chain() -> None:
        for op, name in zip(_OPS, names, strict=True):
            shoal.allreduce_(content, op, name)

    return Pieces(content, chain)


class _Function:
    """Makes buffers whose all-reduce is one call of a function of TensorFlow's, the same one for all of them."""

    def __init__(self, operation: Callable[[Any, str, str], Any]) -> None:
        self._operation = operation
        self._traced: Any = None

    def __call__(self, content: FloatArray) -> Buffer:
        import tensorflow as tf

        if self._traced is None:
            signature = tf.TensorSpec(content.shape, tf.float32)
            self._traced = tf.function(self._chain).get_concrete_function(signature)
        traced = self._traced

        def chain() -> None:
            content[:] = traced(tf.convert_to_tensor(content)).numpy()

        return Pieces(content, chain)

    def _chain(self, x: Any) -> Any:
        for index, op in enumerate(_OPS):
            x = self._operation(x, op, f"{self._operation.__name__} {index}")
        return x


def _tensorflow(x: Any, op: str, name: str) -> Any:
    import shoal.tensorflow

    return shoal.tensorflow.allreduce(x, op, name)


def _numpy_function(x: Any, op: str, name: str) -> Any:
    import tensorflow as tf

    import shoal

    result = tf.numpy_function(lambda array: shoal.allreduce(array, op, name), [x], tf.float32)
    result.set_shape(x.shape)
    return result


def show(report: Report) -> list[str]:
    each = {result.contestant.removeprefix(f"{SHOAL} "): result for result in report.results}
    lines = [report.title, "", f"{'one operation':16} {'median':>8}   middle half"]
    for name, result in each.items():
        low, high = (1e6 * second / OPERATIONS for second in result.quartiles)
        lines.append(f"{name:16} {1e6 * result.seconds / OPERATIONS:5.1f} us   {low:.1f} to {high:.1f}")
    more = (each[TENSORFLOW].seconds - each[CORE].seconds) / OPERATIONS
    target = f"TensorFlow at most {1e6 * AT_MOST_MORE:g} us above the core, in us"
    return [*lines, "", replay.verdict(target, 1e6 * more, 1e6 * AT_MOST_MORE, at_least=False)]


def case(name: str, place_text: str) -> Callable[[bool], list[Report]]:
    def measure(quick: bool) -> list[Report]:
        rounds = QUICK_ROUNDS if quick else ROUNDS
        title = f"{name}, 2 ranks: {OPERATIONS} all-reduces of {BYTES} bytes, one after the other"
        environment = {"TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        return [replay.measure(Path(__file__), place_text, BYTES, rounds, {}, title, environment, [SHOAL])]

    return measure


if __name__ == "__main__":
    if sys.argv[1:2] == [replay.RANK_OPTION]:
        replay.take_part(sys.argv[2], ways)
    else:
        replay.run_script(Path(__file__), HEADING, {name: case(name, place) for name, place in PLACES.items()}, show)
