"""Arguments of the wrapper that are wrong are named before the wrapper joins a job."""

from collections.abc import Iterator

import pytest
import torch

import shoal
from shoal.torch import DistributedDataParallel, arguments


@pytest.fixture
def job() -> Iterator[None]:
    shoal.init()
    yield
    shoal.shutdown()


@pytest.mark.parametrize("name", ["bucket_cap_mb", "fusion_mb"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "above 0, got 0"),
        (-1.5, ValueError, "above 0, got -1.5"),
        (float("inf"), ValueError, "above 0, got inf"),
        (float("nan"), ValueError, "above 0, got nan"),
        ("25", TypeError, "got '25', of type str"),
        (True, TypeError, "got True, of type bool"),
    ],
)
def test_a_size_that_is_none_is_refused_by_the_name_that_was_given(
    name: str, value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{name} must be a number of MB.*{message}.*leave it out"):
        DistributedDataParallel(torch.nn.Linear(2, 2), **{name: value})
    assert not shoal.is_initialized(), "nobody waits for this rank yet"


@pytest.mark.usefixtures("job")
def test_the_rank_is_named_where_it_is_known() -> None:
    with pytest.raises(ValueError, match=r"^bucket_cap_mb must .* got 0 on rank 0 \(.*\): leave it out"):
        DistributedDataParallel(torch.nn.Linear(2, 2), bucket_cap_mb=0)


def test_a_size_may_be_given_by_either_name() -> None:
    assert arguments.megabytes(bucket_cap_mb=None, fusion_mb=None) is None
    assert arguments.megabytes(bucket_cap_mb=25, fusion_mb=None) == 25.0
    assert arguments.megabytes(bucket_cap_mb=None, fusion_mb=0.5) == 0.5
    assert arguments.megabytes(bucket_cap_mb=2, fusion_mb=2.0) == 2.0
    with pytest.raises(shoal.ConfigurationError, match=r"bucket_cap_mb=1 and fusion_mb=2 are two names.*pass one"):
        arguments.megabytes(bucket_cap_mb=1, fusion_mb=2)
