"""The operations under the module's name that scripts import them from: ``from horovod.tensorflow.mpi_ops import rank_op``."""

import shoal.horovod
from shoal.horovod import *  # noqa: F403
from shoal.horovod.common import basics as _basics
from shoal.horovod.common.util import chosen_operator as handle_average_backwards_compatibility
from shoal.horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from shoal.horovod.tensorflow.allgather import allgather, grouped_allgather
from shoal.horovod.tensorflow.alltoall import alltoall
from shoal.horovod.tensorflow.broadcast import broadcast, broadcast_
from shoal.horovod.tensorflow.rank_ops import (
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)

__all__ = [
    *shoal.horovod.__all__,
    "_basics",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "check_num_rank_power_of_2",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
