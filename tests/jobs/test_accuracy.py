"""The mean of 16-bit numbers is rounded once: within half a unit in the last place, whatever the number of ranks."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed

import shoal
from shoal.testing import run_ranks

RANKS = 8
ELEMENTS = 20_000
# Significant bits, and the exponent of the smallest normal number.
FORMATS = {"bfloat16": (8, -126), "float16": (11, -14)}


def given(rank: int, dtype: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(ELEMENTS, generator=generator).to(getattr(torch, dtype))


def units_in_the_last_place(exact: np.ndarray, dtype: str) -> np.ndarray:
    digits, smallest = FORMATS[dtype]
    exponents = np.maximum(np.frexp(exact)[1] - 1, smallest)
    return np.ldexp(1.0, exponents - (digits - 1))


def means(store: str) -> dict[str, tuple[bytes, bytes]]:
    """For each dtype what Shoal gives and what gloo gives, as float64."""
    shoal.init()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=shoal.rank(), world_size=shoal.size()
    )
    results = {}
    for dtype in FORMATS:
        x = given(shoal.rank(), dtype)
        ours = shoal.allreduce(x)
        torch.distributed.all_reduce(x)
        results[dtype] = (ours.double().numpy().tobytes(), (x / RANKS).double().numpy().tobytes())
    torch.distributed.destroy_process_group()
    shoal.shutdown()
    return results


@pytest.mark.parametrize("servers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_sixteen_bit_means_are_rounded_once(servers: int, tmp_path: Path) -> None:
    ranks = run_ranks(means, RANKS, str(tmp_path / "store"), servers=servers, timeout=120)
    assert all(rank == ranks[0] for rank in ranks)
    for dtype, (ours, gloo) in ranks[0].items():
        inputs = np.array([given(rank, dtype).double().numpy() for rank in range(RANKS)])
        exact = inputs.mean(axis=0)
        unit = units_in_the_last_place(exact, dtype)
        # Each of the sums in float32, and the division, may be off by half a unit of float32.
        accumulation = RANKS * np.abs(inputs).sum(axis=0) / RANKS * 2.0**-24
        error = np.abs(np.frombuffer(ours) - exact)
        error_of_gloo = np.abs(np.frombuffer(gloo) - exact) / unit
        print(
            f"{dtype}, mean of {RANKS} ranks, error in units in the last place: Shoal at most {(error / unit).max():.4f}, "
            f"gloo {error_of_gloo.max():.2f} (average {(error / unit).mean():.3f} and {error_of_gloo.mean():.3f})"
        )
        assert (error <= unit / 2 + accumulation).all()


def test_the_units_are_those_of_the_types() -> None:
    for dtype, kind in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        x = np.array([1.0, 1.5, 2.0, 1e-3, 6.1e-5, 100.0])
        x = x.astype(kind)
        spacing = np.nextafter(x, np.array(np.inf, kind)).astype(np.float64) - x.astype(np.float64)
        assert np.array_equal(units_in_the_last_place(x.astype(np.float64), dtype), spacing)
