"""Training steps through Horovod's door: hvd.DistributedOptimizer on Shoal, beside PyTorch's DistributedDataParallel on gloo.

The parameters are those of ResNet-50 (102 MB) and of BERT-large by 8 (168 MB). Forward sleeps, as a processor does that
waits for its GPU; backward hands out gradients at once, layer by layer; the optimizer changes nothing. So the network
alone is measured.
By turns in one run:

    averaging alone    a step that computes nothing
    step               one that computes as long as an all-reduce at the links' limit takes

Horovod itself is beside them where pip can install it, which it cannot with this PyTorch: gloo, which is its transport
without MPI, moves as many bytes. Targets, in the lab: averaging takes at most 1.05 times the bound for so many nodes and
servers, and a step computing + bound, to 5 %.

    sudo python benchmarks/training/horovod_steps.py [--quick] [--only PLACE]
        root, for the lab; 20 minutes; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import replay
import torch
from replay import Variable, Way
from torch import Tensor, nn

from shoal.bench import Report
from shoal.bench.contestants import Buffer, Contestant, FloatArray
from shoal.bench.naming import SHOAL
from shoal.bench.sizes import show_seconds

HEADING = "Training steps through Horovod's door (hvd on Shoal), beside PyTorch's DistributedDataParallel on gloo"
GLOO = "gloo"
ALONE, STEP = "averaging alone", "step"
MODELS = {"ResNet-50": (replay.resnet50, 1), "BERT-large by 8": (replay.bert_large, 8)}
PLACES = {
    "one machine": "local n=4,nodes=1",
    "without servers": "lab nodes=4,rate=1gbit",
    "2 servers": "lab nodes=4,servers=2,rate=1gbit",
    "4 servers": "lab nodes=4,servers=4,rate=1gbit",
}
ROUNDS, QUICK_ROUNDS = 15, 3
QUICK_DIVISOR = 16
# Of 1 Gbit/s, without headers; an all-reduce of 4 ranks sends 1.5 times the bytes.
PAYLOAD, RING_FACTOR = 1448 / 1538 * 125e6, 1.5
# On one machine no link sets a limit; so long a step is, where averaging is a part that counts.
COMPUTE_ON_ONE_MACHINE = 0.1
AT_MOST, WITHIN = 1.05, 0.05


class _Layer(torch.autograd.Function):
    """Hands ``x`` on, and in the backward pass gives the layer's parameters their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradients: Callable[[], list[Tensor]], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor) -> tuple[Tensor | None, ...]:
        return of_output[0], None, *ctx.gradients()


class Model(nn.Module):
    """Parameters of these sizes, which nobody reads; ``gradients``: an array of all their gradients.

    A layer is what has the same first name, so that PyTorch's own work for it is about that of a real one.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        super().__init__()
        self.gradients = torch.empty(0)
        # Gradients lie in the order in which the backward pass makes them: the last layer's first.
        self.layers: list[tuple[list[nn.Parameter], int]] = []
        end = sum(variable.elements for variable in variables)
        for _, layer in groupby(variables, lambda variable: variable.name.partition(".")[0]):
            parameters = []
            for variable in layer:
                parameters.append(nn.Parameter(torch.zeros(variable.elements)))
                self.register_parameter(variable.name.replace(".", "_"), parameters[-1])
            end -= sum(parameter.numel() for parameter in parameters)
            self.layers.append((parameters, end))

    def forward(self, x: Tensor, compute: float) -> Tensor:
        time.sleep(compute)
        for parameters, begin in self.layers:
            x = _Layer.apply(x, partial(self._gradients, parameters, begin), *parameters)  # type: ignore[no-untyped-call]
        return x

    def _gradients(self, parameters: Sequence[nn.Parameter], begin: int) -> list[Tensor]:
        sizes = [parameter.numel() for parameter in parameters]
        return list(self.gradients[begin : begin + sum(sizes)].split(sizes))


class Unchanged(torch.optim.Optimizer):
    """Changes nothing: what it costs to change parameters is the same for whoever averages."""

    def step(self, closure: Any = None) -> Any: ...


class Training:
    """One rank's model, as a library averages its gradients. The same for all arrays of gradients."""

    def __init__(self, library: str, variables: Sequence[Variable], ranks: int) -> None:
        self._ranks = ranks
        self._model = Model(variables)
        self._module: nn.Module = self._model
        self._optimizer: Any = Unchanged(self._model.parameters(), {})
        if library == SHOAL:
            import shoal.horovod.torch as hvd

            hvd.init()
            names = self._model.named_parameters()
            self._optimizer = hvd.DistributedOptimizer(self._optimizer, named_parameters=names)
        else:
            self._module = nn.parallel.DistributedDataParallel(self._model, gradient_as_bucket_view=True)

    def step(self, content: FloatArray, compute: float) -> None:
        self._model.gradients = torch.from_numpy(content)
        self._optimizer.zero_grad()
        loss: Any = self._module(torch.ones((), requires_grad=True), compute)
        loss.backward()
        self._optimizer.step()

    def sums(self) -> FloatArray:
        """What the gradients' means say of their sums, in the order of the array."""
        means = [parameter.grad for parameters, _ in reversed(self._model.layers) for parameter in parameters]
        sums: FloatArray = np.concatenate([mean.numpy() for mean in means if mean is not None])
        sums *= np.float32(self._ranks)
        return sums


class Step:
    """A buffer whose all-reduce is a training step."""

    def __init__(self, training: Training, content: FloatArray, compute: float) -> None:
        self._training, self._content, self._compute = training, content, compute

    def allreduce(self) -> None:
        self._training.step(self._content, self._compute)

    def fetch(self) -> FloatArray:
        return self._training.sums()


def ways(joined: Contestant, library: str, arguments: Mapping[str, Any]) -> Mapping[str, Contestant]:
    """Of one rank."""
    variables, _ = MODELS[arguments["model"]]
    training = Training(library, replay.scaled(variables(), arguments["divisor"]), joined.size)

    def way(compute: float) -> Callable[[FloatArray], Buffer]:
        return lambda content: Step(training, content, compute)

    return {
        _way(library, ALONE): Way(joined, way(0.0)),
        _way(library, STEP): Way(joined, way(arguments["compute"])),
    }


def _way(library: str, name: str) -> str:
    return f"{library} {name}"


def show(report: Report) -> list[str]:
    size = report.sizes[0]
    bound, ring = report.network.bound(SHOAL, size), report.network.bound(GLOO, size)
    lines = [f"{report.title}, {size / 1e6:.1f} MB", "", *replay.times_table(report)]
    took = {result.contestant: result.seconds for result in report.results}
    lines += ["", "as fast as DistributedDataParallel on gloo: " + _gains(took)]
    if bound is None or ring is None:
        return lines
    compute = float(report.facts[_COMPUTE].split()[0])
    alone, step = took[_way(SHOAL, ALONE)], took[_way(SHOAL, STEP)]
    predicted, all_reduce = compute + bound, compute + ring
    lines += [
        f"the links alone need {show_seconds(bound)}, for any all-reduce {show_seconds(ring)}",
        f"as fast as an all-reduce at the links' limit: averaging alone {ring / alone:.3f} times, predicted {ring / bound:.3f}; "
        f"a step {all_reduce / step:.3f} times, predicted {all_reduce / predicted:.3f}",
        "",
        replay.verdict(f"averaging at most {AT_MOST:g} times the bound", alone / bound, AT_MOST, at_least=False),
        replay.verdict(
            f"a step at most {WITHIN:.0%} longer than computing + bound", step / predicted, 1 + WITHIN, at_least=False
        ),
    ]
    return lines


_COMPUTE = "a step computes for"


def _gains(took: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {took[_way(GLOO, name)] / took[_way(SHOAL, name)]:.2f} times" for name in (ALONE, STEP))


def case(place_text: str) -> Callable[[bool], list[Report]]:
    def measure(quick: bool) -> list[Report]:
        return [_measure(place_text, model, quick) for model in MODELS]

    return measure


def _measure(place_text: str, model: str, quick: bool) -> Report:
    variables, divisor = MODELS[model]
    divisor *= QUICK_DIVISOR if quick else 1
    size = replay.total_bytes(replay.scaled(variables(), divisor))
    compute = RING_FACTOR * size / PAYLOAD if place_text.startswith("lab") else COMPUTE_ON_ONE_MACHINE
    arguments = {"model": model, "divisor": divisor, "compute": compute}
    title = f"{place_text}: {model}" + (f", by {QUICK_DIVISOR}" if quick else "")
    rounds = QUICK_ROUNDS if quick else ROUNDS
    report: Report = replay.measure(Path(__file__), place_text, size, rounds, arguments, title)
    report.facts[_COMPUTE] = f"{compute:.4f} s"
    return report


if __name__ == "__main__":
    if sys.argv[1:2] == [replay.RANK_OPTION]:
        replay.take_part(sys.argv[2], ways)
    else:
        replay.run_script(Path(__file__), HEADING, {name: case(place) for name, place in PLACES.items()}, show)
