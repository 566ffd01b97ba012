"""How much memory averaging takes, of the device and of the host, pinned. On a simulated device that counts both.

| what | at most |
|---|---|
| pinned | the gradients' bytes once a rank; once a node where nodes sum first; a 16th more for operations' blocks |
| of the device | the arena, and a gradient or two on their way to it; with PyTorch's wrapper what that takes alone |
| pinned, with `wire_dtype` | half of that |
| of the device, with `wire_dtype` | half of each bucket on its way besides; with error feedback the gradients' bytes, too |

Beside that a device has 1 MiB of words for gates. While a module is wrapped its parameters are sent, before there is an
arena; pinned memory for that is let go of then by our wrapper, and when it was not used for a minute elsewhere.
"""

import memory_scenarios
import pytest
from memory_scenarios import GRADIENTS, LARGEST, SMALL

from shoal.testing import run_ranks

WORDS = 1 << 20
BLOCKS = 17 / 16

OURS = ["wrapper", "wrapper in nodes"]
THEIRS = ["backend", "hook", "hook in nodes"]


def counted(way: str) -> list[dict[str, int]]:
    ranks = 4 if "nodes" in way else 2
    return run_ranks(memory_scenarios.counted, ranks, way, nodes=2, timeout=60)


@pytest.fixture(scope="module")
def of_pytorch() -> int:
    return max(found["made on the device"] for found in counted("PyTorch alone"))


@pytest.mark.parametrize("way", OURS)
def test_our_wrapper_has_an_arena_and_its_mirror(way: str) -> None:
    members = 2 if "nodes" in way else 1
    for found in counted(way):
        assert GRADIENTS <= found["kept on the device"] <= GRADIENTS + SMALL, found
        assert found["made on the device"] <= GRADIENTS + 2 * LARGEST + SMALL, found
        assert found["made while it was wrapped"] <= GRADIENTS + SMALL, found
        assert found["pinned while it was wrapped"] <= GRADIENTS * BLOCKS + WORDS, found
        for when in ("in the first step", "later"):
            assert found[f"pinned {when}"] <= GRADIENTS // members + SMALL + WORDS, found


@pytest.mark.parametrize(
    ("way", "kept", "members"),
    [
        ("wrapper in 16 bits", 1, 1),
        pytest.param("wrapper in 16 bits, with error feedback", 2, 1, marks=pytest.mark.slow),
        pytest.param("wrapper in nodes in 16 bits", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_16_bits_take_half_of_the_mirror_and_half_of_what_is_on_its_way(way: str, kept: int, members: int) -> None:
    narrow = GRADIENTS // members // 2
    for found in counted(way):
        assert kept * GRADIENTS <= found["kept on the device"] <= kept * GRADIENTS + SMALL, found
        assert found["made on the device"] <= kept * GRADIENTS + narrow + 2 * LARGEST + SMALL, found
        for when in ("in the first step", "later"):
            assert found[f"pinned {when}"] <= narrow + SMALL + WORDS, found


@pytest.mark.slow
@pytest.mark.parametrize("way", THEIRS)
def test_pytorchs_wrapper_has_its_buckets_and_their_mirrors(way: str, of_pytorch: int) -> None:
    members = 2 if "nodes" in way else 1
    for found in counted(way):
        assert found["made on the device"] <= of_pytorch + 2 * LARGEST + SMALL, found
        assert found["kept on the device"] <= GRADIENTS + SMALL, found
        assert found["pinned while it was wrapped"] <= GRADIENTS * BLOCKS + SMALL + WORDS, found
        assert found["pinned later"] <= GRADIENTS * BLOCKS // members + SMALL + WORDS, found
        if way != "backend":
            # Which has sent the parameters before.
            assert found["pinned in the first step"] <= GRADIENTS * BLOCKS // members + SMALL + WORDS, found
