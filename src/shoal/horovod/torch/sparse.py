"""The sum of sparse tensors, as an all-gather of what is not zero in them."""

from collections.abc import Callable

import torch

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch.allgather import begin
from shoal.horovod.torch.scaling import scaled


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the sum of sparse tensors, divided by the number of ranks if ``op`` is Average.

    What is not zero on the ranks is gathered, not added up: the result, which the returned function waits for, is not
    coalesced. The number of elements may differ between ranks.
    """
    indices = begin(tensor._indices().t().contiguous(), f"{name}.indices", process_set)
    values = begin(tensor._values(), f"{name}.values", process_set)

    def wait() -> torch.Tensor:
        # Both are waited for, whatever comes of one.
        try:
            all_values = values.wait()
        finally:
            all_indices = indices.wait()
        if op == ReduceOp.Average:
            all_values = scaled(all_values, 1 / process_set.group.size)
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.size(), check_invariants=True)

    return wait
