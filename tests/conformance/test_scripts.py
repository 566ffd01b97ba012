"""Programs that were written for PyTorch's own backends do with "shoal" what they do with "gloo": one word is different."""

from pathlib import Path

import pytest
from comparing import assert_same, run, run_with_gloo

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("ddp", 2),
        ("objects", 3),
        ("checkpoint", 2),
        ("uneven_inputs", 3),
        ("fsdp", 2),
        ("distributed_checkpoint", 4),
        ("subgroups", 4),
        ("compiled", 2),
        ("fabric", 2),
    ],
)
def test_a_script_prints_the_same_with_shoal_as_with_gloo(name: str, ranks: int) -> None:
    assert_same(run(name, "shoal", ranks), run_with_gloo(name, ranks))


def test_a_job_goes_on_after_a_rank_was_killed(tmp_path: Path) -> None:
    disturbed = run("elastic", "shoal", 3, "--folder", str(tmp_path / "shoal"), "--kill", "7")
    assert "resumed from step 6" in disturbed
    undisturbed = run("elastic", "shoal", 3, "--folder", str(tmp_path / "undisturbed"))
    assert disturbed[-7:] == undisturbed[-7:]
    # gloo takes the addresses of the dead for those of the living, if both starts have one store.
    gloo = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    assert_same(disturbed, run_with_gloo("elastic", 3, "--kill", "7", folder=tmp_path / "gloo", **gloo))
