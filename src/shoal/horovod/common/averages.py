"""How Horovod's operators are carried out by Shoal's: averages of integers, reduce-scatter, Adasum.

An average is the sum times postscale_factor / size. Integers are scaled in float64 and cut toward zero; so an average of
integers is a sum, which wraps, that is scaled so.
"""

from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.horovod.common.operators import SHOALS_NAMES, ReduceOp
from shoal.horovod.common.util import num_rank_is_power_2
from shoal.job.groups import Group


def operator_for(op: ReduceOp, is_floating: bool) -> str:
    """Shoal's operator that tensors of such a dtype are combined by."""
    if op is not ReduceOp.Average:
        return SHOALS_NAMES[op]
    return "mean" if is_floating else "sum"


def is_divided_after(op: ReduceOp, is_floating: bool) -> bool:
    """Whether the result of that operator is a sum that is to be divided by the number of ranks."""
    return op is ReduceOp.Average and not is_floating


def factor_after(op: ReduceOp, is_floating: bool, group: Group, postscale_factor: float) -> float:
    """What the result of that operator is multiplied by."""
    return postscale_factor / group.size if is_divided_after(op, is_floating) else postscale_factor


def scatterable(op: ReduceOp) -> ReduceOp:
    """``op``, if a reduce-scatter of Horovod's has it. Raises HorovodInternalError, as Horovod does, for another."""
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise HorovodInternalError(
            f"a reducescatter is Average or Sum, got hvd.{op.name}: use hvd.allreduce for others"
        )
    return op


def check_adasum(group: Group) -> None:
    """Raises NotImplementedError, as Horovod does, if the number of ranks is no power of two."""
    ranks = group.size
    if not num_rank_is_power_2(ranks):
        raise NotImplementedError(f"Adasum wants 1, 2, 4, 8 ... ranks, and there are {ranks}: use op=hvd.Average")
