"""People's own tools on the backend "shoal" print what they print on gloo. `make tools-test` runs this, in an environment that has them.

What each needs to take the backend's name stands at the top of its program in scripts/.
"""

import sys
from pathlib import Path

import pytest
from comparing import assert_same, printed, run, run_with_gloo, start_by

# Programs and their ranks; 0: the tool starts them itself.
TOOLS = {
    "accelerated": 2,
    "deepspeed_init": 2,
    "hf_trainer": 2,
    "lightning_trainer": 2,
    "metrics": 3,
    "ray_train": 0,
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """DeepSpeed compiles a part of itself when it is first used: where no run that was cut off has left its lock, and with what this environment has."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.getbasetemp() / "extensions"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_prints_the_same_with_shoal_as_with_gloo(name: str) -> None:
    lines = [
        [line for line in found if not timed(line)]
        for found in (run(name, "shoal", TOOLS[name]), run_with_gloo(name, TOOLS[name]))
    ]
    assert_same(*lines)


def test_accelerates_own_launcher_starts_the_same() -> None:
    launcher = [str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", "2"]
    assert_same(printed(start_by(launcher, "accelerated", "shoal")), run_with_gloo("accelerated", 2))


def timed(line: str) -> bool:
    """Lines of the tools' own that say how long something took, or which address a rank has."""
    return line.startswith(("{", "distributed_backend=", "[")) or "_runtime" in line
