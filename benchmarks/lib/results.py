"""Where the scripts leave what they have measured: benchmarks/results, one name a script."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "results"


def results_of(script: str | Path) -> Path:
    """The results of a script (its ``__file__``), without a suffix: .json has every turn, .txt is for people, .png a figure."""
    return FOLDER / Path(script).stem
