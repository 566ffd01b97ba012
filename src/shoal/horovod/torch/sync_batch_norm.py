"""Batch normalisation over the batches of all ranks: ``hvd.SyncBatchNorm``.

On CPUs too, other than PyTorch's and Horovod's own. The ranks exchange, for each channel, mean and variance of their part
of the batch once in the forward pass (2 numbers and a count), and two sums once in the backward pass. Sums are those of
Ioffe and Szegedy (2015), the variance of all is put together of the parts' as by Chan, Golub and LeVeque (1979).
"""

from typing import Any

import torch
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.horovod.common import basics
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.torch.allgather import allgather
from shoal.horovod.torch.allreduce import allreduce


class SyncBatchNorm(_BatchNorm):
    """As ``torch.nn.BatchNorm1d`` to ``3d``, with the statistics of all ranks while it trains.

    Arguments:
        num_features: channels, C of an input of shape (N, C, ...).
        eps: added to the variance.
        momentum: of the running statistics; None: they are the mean of all so far.
        affine: whether it has a weight and a bias for each channel.
        track_running_stats: whether it keeps running statistics, which are used in evaluation.

    Inputs may be of 16 bits, also with a weight of 32; the output is of the input's dtype. Second derivatives are a RuntimeError.

    Raises ValueError for an input of fewer than 2 dimensions, or one value a channel on all ranks together.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes inputs of shape (N, C, ...), got {list(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        trains = self.training or self.running_mean is None
        if not trains or basics.size() == 1:
            return super().forward(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        tracked = (self.running_mean, self.running_var) if self.training else (None, None)
        return _Normalised.apply(input, self.weight, self.bias, *tracked, self.eps, momentum)  # type: ignore[no-any-return,no-untyped-call]


class _Normalised(torch.autograd.Function):
    """The output, and gradients with respect to the input over all ranks; those of weight and bias are this rank's."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        momentum: float,
    ) -> Any:
        mean, variance, count = _of_all_ranks(input)
        if count < 2:
            raise ValueError(f"SyncBatchNorm wants more than 1 value a channel on all ranks together, got {count:g}")
        if running_mean is not None and running_var is not None:
            running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
            running_var.mul_(1 - momentum).add_(variance * (count / (count - 1)), alpha=momentum)
        wide = _computed_in(input)
        mean, variance = mean.to(wide), variance.to(wide)
        ctx.save_for_backward(input, weight, mean, (variance + eps).rsqrt())
        ctx.count = count
        ctx.dtype_of_bias = None if bias is None else bias.dtype
        scale, shift = (None if each is None else each.to(wide) for each in (weight, bias))
        return batch_norm(input.to(wide), mean, variance, scale, shift, training=False, eps=eps).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        with torch.no_grad():
            gradients = _Normalised._gradients(ctx, grad_output)
        if torch.is_grad_enabled():
            input, weight, *_ = ctx.saved_tensors
            gradients = _Final.apply(*gradients, input, weight, grad_output)  # type: ignore[no-untyped-call]
        return (*gradients, None, None, None, None)

    @staticmethod
    def _gradients(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, inverse = ctx.saved_tensors
        grad_output = grad_output.to(mean.dtype)
        normalised = (input.to(mean.dtype) - _by_channel(mean, input)) * _by_channel(inverse, input)
        axes = _all_but_channels(input)
        sums = torch.stack([grad_output.sum(axes), (grad_output * normalised).sum(axes)])
        of_bias, of_weight = sums.unbind()
        of_input = None
        if ctx.needs_input_grad[0]:
            of_all = allreduce(sums, op=ReduceOp.Sum, name="sync_batch_norm") / ctx.count
            mean_gradient, mean_product = of_all.unbind()
            factor = inverse if weight is None else inverse * weight
            unscaled = grad_output - _by_channel(mean_gradient, input) - normalised * _by_channel(mean_product, input)
            of_input = (_by_channel(factor, input) * unscaled).to(input.dtype)
        return (
            of_input,
            None if weight is None else of_weight.to(weight.dtype),
            None if ctx.dtype_of_bias is None else of_bias.to(ctx.dtype_of_bias),
        )


class _Final(torch.autograd.Function):
    """Gradients, and after them what they depend on, which would be lost in a second derivative: so that there is none."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor | None) -> Any:
        return tensors[:3]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "SyncBatchNorm has no second derivatives: take torch.nn.BatchNorm where gradients are differentiated again"
        )


def _of_all_ranks(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and biased variance of each channel over all ranks, in float64, and how many values each has."""
    axes = _all_but_channels(input)
    count = input.numel() // input.shape[1]
    if count:
        variance, mean = torch.var_mean(input.detach().double(), axes, correction=0)
    else:
        variance = mean = input.new_zeros(input.shape[1], dtype=torch.float64)
    own = torch.stack([torch.full_like(mean, count), mean, variance])
    counts, means, variances = allgather(own.unsqueeze(0), name="sync_batch_norm").unbind(1)
    total = counts.sum(0)
    overall = (counts * means).sum(0) / total
    spread = (counts * (variances + (means - overall) ** 2)).sum(0) / total
    return overall, spread, float(total[0])


def _computed_in(input: torch.Tensor) -> torch.dtype:
    """16-bit numbers would lose the sums, and go beyond the range of float16 in them."""
    return torch.promote_types(input.dtype, torch.float32)


def _all_but_channels(input: torch.Tensor) -> list[int]:
    return [axis for axis in range(input.dim()) if axis != 1]


def _by_channel(values: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Values by channel in a shape that goes with the input's."""
    return values.view([1, -1] + [1] * (input.dim() - 2))
