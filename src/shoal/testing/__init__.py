"""For tests of what is built on Shoal: real jobs on this machine, in a few lines and with a time limit.

from shoal.testing import run_ranks

def total(addend):
    shoal.init()
    return shoal.allreduce(numpy.full(3, shoal.rank() + addend), op="sum").tolist()

def test_total():
    assert run_ranks(total, 4, 10, servers=2) == [[46, 46, 46]] * 4

May import errors and the folders from config to processes.
"""

from shoal.testing.cluster import Cluster, ClusterJob, Outcome, RankFailed, TimeLimitReached, ranks_from, run_ranks
from shoal.testing.nursery import Nursery

__all__ = ["Cluster", "ClusterJob", "Nursery", "Outcome", "RankFailed", "TimeLimitReached", "ranks_from", "run_ranks"]
