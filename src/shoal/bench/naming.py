"""The names of contestants: keys in plans and reports, and as people are shown them.

A library goes by one word. One may take part several times with different settings: what the plan calls ``ring`` is
``shoal ring`` in a report, and the word before the space says what kind of contestant it is.
"""

SHOAL = "shoal"

# In the order in which they take turns and are shown.
CONTESTANTS = (SHOAL, "gloo", "openmpi", "mpich", "horovod", "nccl")

# Rivals once more, with settings of their own (``teams``, ``mpi_teams``). They take part when they are asked for.
RIVAL_VARIANTS = ("gloo lazy", "gloo wide", "openmpi ucx")

_SHOWN = {
    SHOAL: "Shoal",
    "gloo": "gloo",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "horovod": "Horovod",
    "nccl": "NCCL",
}


def variant_name(name: str) -> str:
    """The contestant that a variant of Shoal is."""
    return f"{SHOAL} {name}"


def family(contestant: str) -> str:
    """The library that a contestant is, whatever its settings."""
    return contestant.partition(" ")[0]


def shown_name(contestant: str) -> str:
    """``Open MPI``, ``Shoal``, ``Shoal ring``. Raises KeyError for no contestant's."""
    library, space, rest = contestant.partition(" ")
    return _SHOWN[library] + space + rest
