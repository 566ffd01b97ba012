"""Arrays of every library become contiguous memory with a dtype of ours, without a copy where possible, and back."""

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from shoal import _native
from shoal.ops import arrays

NUMPY_DTYPES = [np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in arrays.DTYPES]
TORCH_DTYPES = [getattr(torch, name) for name in arrays.DTYPES]


class Foreign:
    """An array of a library that only speaks DLPack."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch is about to give them up
        return torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_numpy_arrays_come_in_without_a_copy(dtype: np.dtype) -> None:
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    operand = arrays.target(x)
    assert operand.native.address == x.ctypes.data
    assert operand.native.nbytes == x.nbytes
    assert arrays.DTYPE_NAMES[operand.native.dtype] == dtype.name
    assert operand.shape == (2, 3)
    assert operand.finish() is x


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_torch_tensors_come_in_without_a_copy(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    operand = arrays.target(x)
    assert operand.native.address == x.data_ptr()
    assert arrays.DTYPE_NAMES[operand.native.dtype] == str(dtype).removeprefix("torch.")
    assert operand.shape == (2, 3)
    assert operand.finish() is x


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_new_numpy_arrays_have_the_dtype_and_the_elements(dtype: np.dtype) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    new = arrays.source(x).copy().finish()
    assert new.dtype == dtype
    assert np.array_equal(new, x)
    assert not np.shares_memory(new, x)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_new_torch_tensors_have_the_dtype_and_the_elements(dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    new = arrays.source(x).copy().finish()
    assert new.dtype == dtype
    assert torch.equal(new, x)
    assert new.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, Foreign], ids=["numpy", "torch", "foreign"])
def test_received_bytes_become_an_array_of_the_same_library(make: Callable[[Any], Any]) -> None:
    like = arrays.source(make(np.zeros((1, 2), np.float32)))
    received = np.arange(6, dtype=np.float32)
    result = like.adopt(memoryview(bytearray(received.tobytes())), (3, 2))
    assert isinstance(result, torch.Tensor if make is torch.tensor else np.ndarray)
    assert np.array_equal(np.asarray(result), received.reshape(3, 2))


def test_received_nothing_is_an_empty_array() -> None:
    for like in (np.zeros((2, 3), np.float16), torch.zeros(2, 3, dtype=torch.bfloat16)):
        assert tuple(arrays.source(like).adopt(memoryview(b""), (0, 3)).shape) == (0, 3)


def test_numbers_and_lists_are_read() -> None:
    assert arrays.source(1.5).shape == ()
    assert arrays.source([1, 2, 3]).elements.tolist() == [1, 2, 3]
    assert arrays.source(np.float16(2)).dtype == arrays.DTYPES["float16"]


def test_no_dimensions_stay_no_dimensions() -> None:
    for x in (np.array(3.0), torch.tensor(3.0)):
        operand = arrays.source(x).copy()
        assert tuple(operand.finish().shape) == ()
        assert float(operand.finish()) == 3.0


def test_empty_arrays_are_arrays() -> None:
    for x in (np.empty((0, 3)), torch.empty(0, 3)):
        operand = arrays.target(x)
        assert operand.native.nbytes == 0
        assert operand.elements.size == 0
        assert operand.finish() is x


def test_elements_are_the_memory_itself() -> None:
    x = torch.zeros(2, 2, dtype=torch.bfloat16)
    arrays.target(x).elements[3] = 0x3F80
    assert x.tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_elements_outlive_the_operand() -> None:
    elements = arrays.source(torch.full((1000,), 7.0)).elements
    others = [torch.zeros(1000) for _ in range(10)]
    assert (elements == 7.0).all()
    assert len(others) == 10


@pytest.mark.parametrize(
    "x", [np.arange(12.0).reshape(3, 4).T, np.arange(12.0)[::-3], np.arange(12.0).reshape(3, 4)[:, 1:3]], ids=str
)
def test_a_numpy_array_that_is_not_contiguous_is_worked_on_through_a_copy(x: np.ndarray) -> None:
    expected = x.copy() + 1
    operand = arrays.target(x)
    assert np.array_equal(operand.elements, x.ravel())
    operand.elements[:] += 1
    assert not np.array_equal(x, expected)
    assert operand.finish() is x
    assert np.array_equal(x, expected)


def test_a_torch_tensor_that_is_not_contiguous_is_worked_on_through_a_copy() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    x = base.T
    expected = x + 1
    operand = arrays.target(x)
    operand.elements[:] += 1
    assert operand.finish() is x
    assert torch.equal(base, expected.T)


def test_a_foreign_array_that_is_not_contiguous_is_copied() -> None:
    data = np.arange(6.0).reshape(2, 3)
    assert arrays.source(Foreign(data.T)).elements.tolist() == data.T.ravel().tolist()


def test_a_misaligned_array_is_copied() -> None:
    x = np.frombuffer(bytes(range(17)), np.uint8)[1:].view(np.float32)
    assert not x.flags.aligned
    assert arrays.source(x).elements.tolist() == x.tolist()


def test_a_leaf_that_requires_grad_can_be_read_and_written() -> None:
    x = torch.nn.Parameter(torch.ones(3))
    operand = arrays.target(x)
    operand.elements[:] = 5
    assert operand.finish() is x
    assert x.tolist() == [5.0, 5.0, 5.0]
    assert x.requires_grad
    assert not operand.empty((2,)).finish().requires_grad


def test_rows_of_an_array_in_place_are_a_view() -> None:
    for x in (np.arange(6.0).reshape(3, 2), torch.arange(6.0).reshape(3, 2)):
        operand = arrays.target(x)
        part = operand.part(operand.row_bytes, 2 * operand.row_bytes)
        assert part.address == operand.native.address + operand.row_bytes
        rows = operand.rows(1, 2)
        rows[0, 0] = 100.0
        assert x[1, 0] == 100.0


def test_a_read_only_array_is_read_and_not_written_to() -> None:
    x = np.arange(3.0)
    x.flags.writeable = False
    assert arrays.source(x).elements.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="read-only: pass a copy"):
        arrays.target(x)


@pytest.mark.parametrize("x", [1.0, [1.0], np.float32(1), Foreign(np.zeros(3))], ids=lambda x: type(x).__name__)
def test_what_cannot_be_written_to_is_refused_in_place(x: Any) -> None:
    with pytest.raises(TypeError, match="use the form that returns a new array"):
        arrays.target(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3, np.complex64), "dtype complex64 is not supported: pass its real and imaginary parts"),
        (np.array(["a"]), "only numbers can be communicated"),
        ("a", "is not an array that Shoal can read"),
        (np.array([object()]), "only numbers"),
        (np.zeros(3, "datetime64[s]"), "dtype datetime64"),
        (np.zeros(3, np.longdouble), "is not supported: convert it to one of float32"),
        (np.zeros(3, ">f4"), "byte order"),
        (np.ma.masked_array([1.0], [True]), "mask"),
        (torch.zeros(3, dtype=torch.complex64), "view_as_real"),
        (torch.zeros(3).to_sparse(), "to_dense"),
        (quantised(), "dequantize"),
        (torch.zeros(3, device="meta"), "only CPU tensors"),
        (torch.zeros(3, dtype=torch.float8_e4m3fn), "float8"),
        (None, "is not an array"),
        ({"a": 1}, "builtins.dict is not an array"),
    ],
)
def test_what_is_not_supported_is_refused_and_says_what_to_do(x: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        arrays.source(x)


def test_an_expanded_tensor_is_refused_in_place() -> None:
    with pytest.raises(TypeError, match="contiguous"):
        arrays.target(torch.zeros(1).expand(3))
    assert arrays.source(torch.ones(1).expand(3)).elements.tolist() == [1.0, 1.0, 1.0]


def test_memory_at_an_address_needs_a_dtype_of_ours() -> None:
    x = torch.arange(6)
    array = _native.Array.at(x, x.data_ptr(), x.numel(), arrays.DTYPES["int64"])
    assert (array.address, array.nbytes, array.readonly, array.contiguous) == (x.data_ptr(), 48, False, True)
    with pytest.raises(ValueError, match="dtype"):
        _native.Array.at(x, x.data_ptr(), x.numel(), 99)
