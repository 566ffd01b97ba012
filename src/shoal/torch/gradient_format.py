"""The dtype and the strides of gradients, and the dtype in which they are summed."""

import torch

# What is summed for each dtype of gradients: complex ones as their real and imaginary parts.
SUMMED_AS = {
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """The dtype of the parameter's gradient: its own, unless the program has given it another (``grad_dtype``)."""
    dtype: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if dtype is None else dtype


def gradient_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides of the parameter's gradient in its arena: the parameter's own if they are dense, else row by row."""
    if _is_dense(parameter):
        return tuple(parameter.stride())
    return tuple(torch.empty(parameter.shape, device="meta").stride())


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def summed_as(dtype: torch.dtype, parameter: str) -> torch.dtype:
    """``parameter``: the name of one. Raises TypeError for a dtype that cannot be averaged."""
    if dtype not in SUMMED_AS:
        known = ", ".join(map(name_of, SUMMED_AS))
        raise TypeError(
            f"parameter {parameter} has dtype {dtype}, whose gradients cannot be averaged: use one of {known}"
        )
    return SUMMED_AS[dtype]


def describe(gradient: torch.Tensor) -> str:
    return f"{name_of(gradient.dtype)} {list(gradient.shape)} on {gradient.device}"


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
