"""The examples for Horovod's door run, and do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "horovod"
SMALL = ["--model", "tiny", "--side", "32"]


def run(script: str | Path, *arguments: str, ranks: int = 2, options: tuple[str, ...] = ()) -> str:
    command = [sys.executable, "-m", "shoal.cli", "run", "-n", str(ranks), *options, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def values(pattern: str, output: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, output)]


def test_the_digits_are_learnt_by_a_script_that_says_horovod(tmp_path: Path) -> None:
    script = tmp_path / "mnist.py"
    script.write_text(
        (EXAMPLES / "mnist.py").read_text().replace("import shoal.horovod.torch as hvd", "import horovod.torch as hvd")
    )
    output = run(script, "--epochs", "6", "--lr", "0.05", "--fp16-allreduce", options=("--as-horovod",))
    assert values(r"accuracy (\d+\.\d+)%", output)[-1] > 85, output


@pytest.mark.slow
def test_the_digits_are_learnt() -> None:
    output = run(EXAMPLES / "mnist.py", "--epochs", "8", "--lr", "0.05", "--gradient-predivide-factor", "2", ranks=3)
    assert values(r"accuracy (\d+\.\d+)%", output)[-1] > 90, output


@pytest.mark.slow
def test_resnet_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    words = [
        *SMALL,
        "--images",
        "128",
        "--base-lr",
        "0.02",
        "--batches-per-allreduce",
        "2",
        "--checkpoints",
        str(tmp_path),
    ]
    output = run(EXAMPLES / "imagenet_resnet50.py", *words, "--epochs", "2")
    assert len(values(r"epoch (\d+): loss", output)) == 2
    output += run(EXAMPLES / "imagenet_resnet50.py", *words, "--epochs", "8")
    assert values(r"epoch (\d+): loss", output) == [1, 2, 3, 4, 5, 6, 7, 8]
    losses = values(r"loss (\d+\.\d+)", output)
    assert losses[-1] < losses[0] - 0.3, output


@pytest.mark.slow
def test_the_benchmark_tells_images_a_second() -> None:
    output = run(EXAMPLES / "synthetic_benchmark.py", *SMALL, "--num-iters", "2", "--fp16-allreduce")
    one, all_of_them = values(r"images a second on .*: (\d+\.\d+)", output)
    assert all_of_them == pytest.approx(2 * one, rel=0.1)


def test_resnet_50_has_161_parameters() -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from resnet import resnet
    finally:
        sys.path.remove(str(EXAMPLES))
    sizes = [parameter.numel() for parameter in resnet().parameters()]
    assert (len(sizes), sum(sizes)) == (161, 25_557_032)
