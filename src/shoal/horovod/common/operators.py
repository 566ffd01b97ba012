"""The reduction operators, with Horovod's names and numbers."""

from enum import IntEnum


class ReduceOp(IntEnum):
    """How the tensors of the ranks are combined. Is the number that Horovod has for it."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    def __repr__(self) -> str:
        return self.name


# Those that Shoal has under a name of its own. An average depends on the dtype; Adasum is no operator of one operation.
SHOALS_NAMES = {
    ReduceOp.Sum: "sum",
    ReduceOp.Min: "min",
    ReduceOp.Max: "max",
    ReduceOp.Product: "product",
}
