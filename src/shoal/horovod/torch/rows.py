"""Tensors as rows, for operations that hand rows from rank to rank.

Shoal counts the rows that come by their bytes. Rows without elements, as of shape (n, 0), have none; in their place go rows
of one element.
"""

from collections.abc import Callable
from typing import Any

import torch

from shoal import _native
from shoal.horovod.common.exceptions import InvalidCallError
from shoal.ops.operations import Plan


def require_rows(kind: str, tensor: torch.Tensor) -> None:
    """Raises InvalidCallError for a tensor without dimensions."""
    if not tensor.dim():
        raise InvalidCallError(
            f"{kind} needs a tensor of at least one dimension, which is cut into rows: pass tensor.reshape(1)"
        )


def plan_by_rows(kind: str, host: torch.Tensor, plan: Callable[[torch.Tensor], Plan]) -> Plan:
    """The plan of the tensor, or of one with as many rows that can be counted."""
    require_rows(kind, host)
    of_row = host.shape[1:]
    if of_row.numel():
        return plan(host)
    counted = plan(host.new_zeros([len(host)] + [1] * len(of_row)))

    def finish(handle: _native.Handle) -> Any:
        return host.new_empty((len(counted.finish(handle)), *of_row))

    return counted._replace(finish=finish)
