"""A Keras model.fit on TensorFlow whose gradients are averaged over the ranks, in three ways.

The variables are those of ResNet-50, by 4 (26 MB). The model computes next to nothing: its loss is such that its gradients
are the array that is averaged, and its optimizer keeps what it gets. So averaging is measured, and what Keras and
TensorFlow cost for so many variables. By turns in one run, 4 steps of one fit each:

    shoal.keras         the optimizer, distributed: shoal.keras.DistributedOptimizer
    shoal function      one tf.numpy_function in the optimizer that averages all gradients by Shoal's array API
    gloo function       the same with torch.distributed on gloo
    shoal alone         the optimizer as it is: what fit costs without averaging

    sudo python benchmarks/training/keras_fit.py [--quick] [--only PLACE]
        root, for the lab, in an environment with TensorFlow, Keras and PyTorch (make doors-test makes one); 5 minutes;
        results in benchmarks/results (.txt, .json)
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import replay
from replay import Variable, Way

from shoal.bench import Report
from shoal.bench.contestants import Buffer, Contestant, FloatArray
from shoal.bench.naming import SHOAL
from shoal.bench.sizes import show_seconds

HEADING = "Keras's model.fit on TensorFlow, gradients averaged in three ways"
GLOO = "gloo"
DISTRIBUTED, FUNCTION, ALONE = "keras", "function", "alone"
PLACES = {"one machine": "local n=2,nodes=1", "2 nodes, 1 server": "lab nodes=2,servers=1,rate=1gbit"}
DIVISOR, STEPS = 4, 4
ROUNDS, QUICK_ROUNDS, QUICK_DIVISOR = 15, 2, 64

Average = Callable[[Sequence[FloatArray]], list[FloatArray]]


def ways(joined: Contestant, library: str, arguments: Mapping[str, Any]) -> Mapping[str, Contestant]:
    """Of one rank."""
    variables = _variables(arguments["divisor"])
    names = [DISTRIBUTED, FUNCTION, ALONE] if library == SHOAL else [FUNCTION]

    def way(name: str) -> Callable[[FloatArray], Buffer]:
        fit = Fit(variables, _optimizer(library, name))
        after = _sum if name == ALONE else partial(_times, joined.size)
        return lambda content: Fitted(fit, content, after)

    return {f"{library} {name}": Way(joined, way(name)) for name in names}


class Fit:
    """A model whose gradients are an array, and whose weights are what its optimizer has made of them."""

    def __init__(self, variables: Sequence[Variable], optimizer: Any) -> None:
        import keras
        import tensorflow as tf

        class Gradients(keras.layers.Layer):  # type: ignore[misc]
            """Its output's gradient with respect to each weight is a part of the array."""

            def build(self, _: Any) -> None:
                self.parts = [tf.Variable(tf.zeros(variable.elements), trainable=False) for variable in variables]
                self.weighed = [
                    self.add_weight(shape=(variable.elements,), name=variable.name.replace(".", "_"))
                    for variable in variables
                ]

            def call(self, x: Any) -> Any:
                sums = [tf.reduce_sum(weight * part) for weight, part in zip(self.weighed, self.parts, strict=True)]
                return tf.reduce_sum(x) * 0.0 + tf.add_n(sums)

        self._ends = np.cumsum([variable.elements for variable in variables]).tolist()
        self._layer = Gradients()
        inputs = keras.Input((1,))
        self._model = keras.Model(inputs, self._layer(inputs))
        self._model.compile(optimizer, loss=lambda _, output: output, jit_compile=False)
        self._data = tf.data.Dataset.from_tensors((tf.zeros((1, 1)), tf.zeros((1, 1)))).repeat(STEPS)
        self.run()  # traces

    def take(self, content: FloatArray) -> None:
        for part, begin, end in zip(self._layer.parts, [0, *self._ends], self._ends, strict=False):
            part.assign(content[begin:end])

    def run(self) -> None:
        self._model.fit(self._data, epochs=1, verbose=0)

    def weights(self) -> FloatArray:
        return np.concatenate([np.asarray(weight).ravel() for weight in self._layer.weighed])


class Fitted:
    """A buffer whose all-reduce is one call of fit. ``after``: makes the ranks' sum of the weights."""

    def __init__(self, fit: Fit, content: FloatArray, after: Callable[[FloatArray], FloatArray]) -> None:
        fit.take(content)
        self._after = after
        self.allreduce = fit.run
        self._weights = fit.weights

    def fetch(self) -> FloatArray:
        return self._after(self._weights())


def _times(ranks: int, means: FloatArray) -> FloatArray:
    return means * np.float32(ranks)


def _sum(own: FloatArray) -> FloatArray:
    """Of what was not averaged; not timed."""
    import shoal

    return np.asarray(shoal.allreduce(own, "sum"))


def _optimizer(library: str, name: str) -> Any:
    import keras

    class Kept(keras.optimizers.Optimizer):  # type: ignore[misc]
        """Puts the gradient in the variable's place."""

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign(variable, gradient)

    if name == ALONE:
        return Kept(learning_rate=1.0)
    if name == DISTRIBUTED:
        from shoal.keras import DistributedOptimizer

        return DistributedOptimizer(Kept(learning_rate=1.0))

    import tensorflow as tf

    average = _average_by_shoal if library == SHOAL else _average_by_gloo

    class Averaging(Kept):
        """One function of Python's that averages all gradients."""

        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            averages = tf.numpy_function(lambda *arrays: average(arrays), grads, [each.dtype for each in grads])
            for average_, gradient in zip(averages, grads, strict=True):
                average_.set_shape(gradient.shape)
            super().apply(averages, trainable_variables)

    return Averaging(learning_rate=1.0)


def _average_by_shoal(arrays: Sequence[FloatArray]) -> list[FloatArray]:
    import shoal

    handles = [shoal.allreduce_async(array, "mean", f"gradient {index}") for index, array in enumerate(arrays)]
    return [handle.wait() for handle in handles]


def _average_by_gloo(arrays: Sequence[FloatArray]) -> list[FloatArray]:
    import torch
    import torch.distributed as dist

    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
    return [(tensor / dist.get_world_size()).numpy() for tensor in tensors]


def show(report: Report) -> list[str]:
    size = report.sizes[0]
    took = {result.contestant: result.seconds for result in report.results}
    ours, alone = took[f"{SHOAL} {DISTRIBUTED}"], took[f"{SHOAL} {ALONE}"]
    rivals = {name: took[name] for name in (f"{SHOAL} {FUNCTION}", f"{GLOO} {FUNCTION}")}
    lines = [f"{report.title}, {STEPS} steps of {size / 1e6:.1f} MB", "", *replay.times_table(report), ""]
    lines += [
        f"{name}: {seconds / ours:.2f} times as long as {SHOAL} {DISTRIBUTED}" for name, seconds in rivals.items()
    ]
    bound = report.network.bound(SHOAL, size)
    if bound is not None:
        lines.append(
            f"a step: {show_seconds(ours / STEPS)}, of which fit itself {show_seconds(alone / STEPS)}; the links alone need {show_seconds(bound)}"
        )
    return lines


def case(name: str, place_text: str) -> Callable[[bool], list[Report]]:
    def measure(quick: bool) -> list[Report]:
        divisor = QUICK_DIVISOR if quick else DIVISOR
        size = replay.total_bytes(_variables(divisor))
        rounds = QUICK_ROUNDS if quick else ROUNDS
        title = f"{name}, 2 ranks: ResNet-50's variables by {divisor}"
        return [replay.measure(Path(__file__), place_text, size, rounds, {"divisor": divisor}, title)]

    return measure


def _variables(divisor: int) -> list[Variable]:
    return replay.scaled(replay.resnet50(), divisor)


if __name__ == "__main__":
    if sys.argv[1:2] == [replay.RANK_OPTION]:
        replay.take_part(sys.argv[2], ways)
    else:
        replay.run_script(Path(__file__), HEADING, {name: case(name, place) for name, place in PLACES.items()}, show)
