"""The teams of the stages "steps" and "profile": nodes on this machine, which talk over loopback, and two servers."""

import os
from pathlib import Path

import models
import stage
from step_ranks import ON_GPU
from training_ranks import ALONE, Task
from training_teams import GLOO, Teams

from shoal.bench.naming import variant_name
from shoal.bench.places import LocalPlace
from shoal.bench.plan import Variant

SERVERS = 2

STREAM, HOST, C10D = variant_name("stream"), variant_name("host"), variant_name("c10d stream")
VARIANTS = {
    "stream": Variant(environment={"SHOAL_CUDA_WAIT": "stream"}),
    "host": Variant(environment={"SHOAL_CUDA_WAIT": "host"}),
    "c10d stream": Variant(environment={"SHOAL_CUDA_WAIT": "stream"}, c10d=True),
}
SHOWN = {
    ALONE: "no averaging",
    STREAM: "our wrapper, streams wait",
    HOST: "our wrapper, the host waits",
    C10D: "DDP on shoal",
    GLOO: "DDP on gloo",
}


def open_teams(ranks: int, on_gpu: int) -> Teams:
    """``on_gpu``: so many of the ranks, the first, train on the GPU; the others replay gradients on the processor."""
    os.environ[ON_GPU] = str(on_gpu)
    return Teams(LocalPlace(ranks, SERVERS), VARIANTS, Path(__file__).with_name("step_ranks.py"))


def task_of(model: str) -> Task:
    samples, length = (models.SHAPES_OF_REHEARSAL if stage.rehearses() else models.SHAPES)[model]
    return Task(model, samples, length, optimizer=models.OPTIMIZERS[model])


def parameter_bytes(model: str) -> int:
    return sum(parameter.nbytes for parameter in models.make(model, task_of(model).length).parameters())
