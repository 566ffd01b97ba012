"""Our wrapper beside PyTorch's own: the programs of torch_programs.py and torch_nested.py, on 2 ranks."""

from pathlib import Path

import pytest
import torch_nested
import torch_programs

from shoal.testing import run_ranks

RANKS = 2


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """One job for all programs: by rank, what is wrong with the answer of each."""
    rendezvous = Path(tmp_path_factory.mktemp("gloo")) / "rendezvous"
    return run_ranks(
        torch_nested.run_all, RANKS, f"file://{rendezvous}", environment={"SHOAL_TIMEOUT": "20"}, timeout=200
    )


@pytest.mark.parametrize("name", torch_programs.PROGRAMS)
def test_a_program_has_the_same_gradients_as_with_pytorchs_wrapper(outcomes: list[dict[str, str]], name: str) -> None:
    wrong = [f"rank {rank}:\n{outcome[name]}" for rank, outcome in enumerate(outcomes) if outcome[name]]
    assert not wrong, "\n".join(wrong)
