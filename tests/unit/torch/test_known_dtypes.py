"""Tensors in a dtype that Shoal has are views of the same memory, whatever their strides."""

import pytest
import torch

from shoal.torch.known_dtypes import NUMBERS, count, in_known_dtype

DTYPES = {
    "known": torch.float32,
    "complex": torch.complex64,
    "complex of half precision": torch.complex32,
    "8 bits": torch.float8_e4m3fn,
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("shape", [(2, 3), ()])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_a_view_of_all_elements(name: str, turned: bool, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(DTYPES[name])
    tensor = tensor.t() if turned and shape else tensor
    view = in_known_dtype(tensor)
    assert view.dtype in NUMBERS
    assert (view.numel(), view.nbytes) == (count(tensor), tensor.nbytes)
    assert view.data_ptr() == tensor.data_ptr()
    view.zero_()
    assert bytes(tensor.untyped_storage()) == bytes(tensor.nbytes)
