"""The sum of sparse tensors, as an all-gather of what is not zero in them."""

from collections.abc import Callable

import torch

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch.allgather import allgather_async
from shoal.horovod.torch.scaling import scaled
from shoal.horovod.torch.synchronization import synchronize


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the sum of sparse tensors, divided by the number of ranks if ``op`` is Average.

    What is not zero on the ranks is gathered, not added up: the result, which the returned function waits for, is not
    coalesced. The number of elements may differ between ranks.
    """
    indices = allgather_async(tensor._indices().t().contiguous(), name=f"{name}.indices", process_set=process_set)
    values = allgather_async(tensor._values(), name=f"{name}.values", process_set=process_set)

    def wait() -> torch.Tensor:
        # Both are waited for, whatever comes of one.
        try:
            all_values = synchronize(values)
        finally:
            all_indices = synchronize(indices)
        if op == ReduceOp.Average:
            all_values = scaled(all_values, 1 / process_set.group.size)
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.size(), check_invariants=True)

    return wait
