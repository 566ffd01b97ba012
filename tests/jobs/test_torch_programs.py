"""Our wrapper beside PyTorch's own: the programs of torch_programs.py and the files with more, on 2 ranks."""

from pathlib import Path

import pytest
import torch_kept
import torch_nested
import torch_programs
import torch_settings
import torch_stand_ins

from shoal.testing import run_ranks

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """One job for all programs: by rank, what is wrong with the answer of each."""
    rendezvous = Path(tmp_path_factory.mktemp("gloo")) / "rendezvous"
    more = [torch_kept.__name__, torch_nested.__name__, torch_settings.__name__, torch_stand_ins.__name__]
    return run_ranks(
        torch_programs.run_all, RANKS, f"file://{rendezvous}", more, environment={"SHOAL_TIMEOUT": "20"}, timeout=200
    )


@pytest.mark.parametrize("name", torch_programs.PROGRAMS)
def test_a_program_has_the_same_gradients_as_with_pytorchs_wrapper(outcomes: list[dict[str, str]], name: str) -> None:
    wrong = [f"rank {rank}:\n{outcome[name]}" for rank, outcome in enumerate(outcomes) if outcome[name]]
    assert not wrong, "\n".join(wrong)
