"""What the benchmark is asked for: sizes, limits and places are read as they are meant, and refused with a reason."""

import pytest

from shoal.bench import LabShape, LocalPlace, Plan, Variant, choose_sizes, parse_limits, shown_name, variant_name
from shoal.bench.naming import CONTESTANTS, RIVAL_VARIANTS, family
from shoal.bench.sizes import parse_bytes, show_bytes, show_rate, show_seconds
from shoal.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("4KiB", 4096), ("4k", 4096), ("25MB", 25_000_000), ("1.5 MiB", 1572864)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "4 parsecs", "-1", "0.3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_bytes(text)


def test_figures_are_shown_with_their_unit() -> None:
    assert [show_bytes(size) for size in (4096, 25_000_000, 2**30, 12345)] == ["4 KiB", "25 MB", "1 GiB", "12345 B"]
    assert [show_seconds(seconds) for seconds in (8e-6, 0.0531, 0.812, 2.13)] == [
        "8.00 µs",
        "53.1 ms",
        "812 ms",
        "2.13 s",
    ]
    assert [show_rate(rate) for rate in (49.8e6, 1.25e9)] == ["49.8 MB/s", "1.25 GB/s"]


def test_sizes_are_listed_or_bounded() -> None:
    assert choose_sizes("25MB,4KiB") == (25_000_000, 4096)
    assert choose_sizes(None, "1MiB", "25MB") == (2**20, 4 * 2**20, 25_000_000)
    assert choose_sizes(None)[-1] == 100_000_000
    assert choose_sizes(None, None, "1GiB")[-1] == 2**30
    with pytest.raises(ConfigurationError, match="furlong"):
        choose_sizes("1furlong")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"sizes": [6]}, "multiple of 4"),
        ({"sizes": []}, "no size"),
        ({"rounds": 0}, "at least"),
        ({"contestants": ["smoke signals"]}, "smoke signals"),
        ({"limits": {"segmnt": 4096}}, "segmnt"),
        ({"variants": {"wide": Variant(limits={"segmnt": 4096})}}, "segmnt"),
        ({"variants": {"odd": Variant(window=4097)}}, "multiple of 4"),
        ({"variants": {"torch": Variant(c10d=True, shared=True)}}, "neither windows nor shared arrays"),
        ({"variants": {"": Variant()}}, "name of a variant"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Plan(**arguments)  # type: ignore[arg-type]


def test_a_variant_is_shown_as_shoal_by_another_name() -> None:
    assert [shown_name(name) for name in ("shoal", "openmpi", variant_name("ring"))] == [
        "Shoal",
        "Open MPI",
        "Shoal ring",
    ]


def test_rivals_with_settings_of_their_own_are_contestants_that_are_asked_for() -> None:
    plan = Plan(contestants=RIVAL_VARIANTS)
    assert [shown_name(name) for name in plan.contestants] == ["gloo lazy", "gloo wide", "Open MPI ucx"]
    assert {family(name) for name in RIVAL_VARIANTS} <= set(CONTESTANTS)
    with pytest.raises(ConfigurationError, match=r"'gloo fast' is no contestant: choose from .*gloo lazy"):
        Plan(contestants=["gloo fast"])


def test_limits_are_sizes_by_name() -> None:
    assert parse_limits("segment=16KiB,credit=65536") == {"segment": 16384, "credit": 65536}
    assert parse_limits(None) == {}
    with pytest.raises(ConfigurationError, match="name=value"):
        parse_limits("segment")


def test_a_lab_has_nodes_first_and_links_as_asked_for() -> None:
    shape = LabShape.parse("nodes=4,servers=2,rate=400mbit,queue=256kb,burst=64kb,cc=reno,slow=3:200mbit+5:100mbit")
    assert (shape.nodes, shape.servers) == (4, 2)
    assert (shape.link.rate, shape.link.queue, shape.link.burst) == (400e6, 262144, 65536)
    assert shape.link.congestion_control == "reno"
    assert shape.factors() == [1, 1, 1, 0.5, 1, 0.25]
    assert shape.link.slow_start_after_idle
    assert not LabShape.parse("nodes=2,slow_start_after_idle=off").link.slow_start_after_idle
    assert LabShape.parse("nodes=2,offload=16kb").link.largest_piece == 16384


@pytest.mark.parametrize(
    "text",
    [
        "servers=2",
        "nodes=1",
        "nodes=2,rate=fast",
        "nodes=2,colour=red",
        "nodes=2,slow=1:1mbit",
        "nodes=x",
        "nodes=2,slow_start_after_idle=0",
        "nodes=2,offload=1kb",
    ],
)
def test_a_lab_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        LabShape.parse(text)


@pytest.mark.parametrize(
    "text", ["n=1", "servers=2", "n=2,rate=1mbit", "n=two", "n=4,nodes=2", "n=4,nodes=1,servers=1"]
)
def test_a_place_on_loopback_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        LocalPlace.parse(text)


def test_ranks_on_loopback_may_be_one_node() -> None:
    for text, nodes, ranks_each in (("n=4,nodes=1", 1, 4), ("n=4,nodes=4", 4, 1), ("n=4,servers=2", 4, 1)):
        place = LocalPlace.parse(text)
        assert (place.nodes, place.ranks_each) == (nodes, ranks_each)
