"""A report: its figures follow from its turns, it survives a file, and it can be shown."""

import dataclasses
import io
import json
from pathlib import Path

import pytest

from shoal.bench import Network, Report, Result, Turn, plot, print_report
from shoal.bench.table import COLUMNS, notes, row

RATE = 50e6
SIZE = 25_000_000
SMALL = 4096


def result(contestant: str, size: int, times: list[float], repetitions: int = 1) -> Result:
    turns = [
        Turn(seconds, rank_cpu=0.2, server_cpu=0.05, busy=0.4, wire_bytes=16.0 * size, drops=1) for seconds in times
    ]
    return Result(contestant, size, repetitions, tuple(turns))


@pytest.fixture
def report() -> Report:
    network = Network(RATE, shaped=True, burst=131072, node_factors=(1.0,) * 8, server_factors=(1.0,) * 8)
    results = (
        result("shoal", SMALL, [0.002, 0.001, 0.004], repetitions=500),
        result("gloo", SMALL, [0.005], repetitions=10),
        result("shoal", SIZE, [0.51, 0.5, 0.6]),
        result("gloo", SIZE, [1.0, 0.9, 0.95]),
    )
    facts = {"place": "a <lab>", "kernel": "Linux"}
    return Report(
        "all-reduce",
        8,
        8,
        8,
        network,
        results,
        {"shoal": "0.1.0", "gloo": "torch"},
        facts,
        {"mpich": "it is not there"},
    )


def test_figures_are_those_of_the_turns(report: Report) -> None:
    ours = report.result("shoal", SIZE)
    assert (ours.seconds, ours.fastest, ours.slowest) == (0.51, 0.5, 0.6)
    assert ours.quartiles == pytest.approx((0.505, 0.555))
    assert ours.bandwidth == pytest.approx(SIZE / 0.51)
    assert ours.cpu_per_gb == pytest.approx(0.25 * 40)
    assert ours.busy_per_gb == pytest.approx(0.4 * 40)
    assert ours.drops == 3
    assert report.speedup("gloo", SIZE) == pytest.approx(0.95 / 0.51)
    assert report.contestants == ["shoal", "gloo"]
    assert report.sizes == [SMALL, SIZE]
    with pytest.raises(KeyError):
        report.result("mpich", SIZE)


def test_the_bound_is_that_of_the_contestants_kind(report: Report) -> None:
    assert report.bound_ratio("shoal", SIZE) == pytest.approx(0.51 / ((SIZE - 131072) / RATE))
    assert report.bound_ratio("gloo", SIZE) == pytest.approx(0.95 / ((1.75 * SIZE - 131072) / RATE))


def test_the_bound_of_a_variant_is_that_of_shoal(report: Report) -> None:
    for name in ("shoal", "gloo"):
        assert report.network.bound(f"{name} ring", SIZE) == report.network.bound(name, SIZE)


def test_the_burst_is_free_once_in_a_turn_not_for_each_operation(report: Report) -> None:
    assert report.network.bound("shoal", SMALL) is None
    assert report.network.bound("shoal", SMALL, 500) == pytest.approx((SMALL - 131072 / 500) / RATE)


def test_links_without_a_speed_bound_nothing(report: Report) -> None:
    unshaped = dataclasses.replace(report, network=dataclasses.replace(report.network, shaped=False))
    assert unshaped.bound_ratio("shoal", SIZE) is None


def test_a_report_comes_back_from_json(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 99}', '{"format": 1, "title": "no network"}', "no JSON"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"report|Expecting"):
        Report.from_json(text)


def test_the_table_has_what_there_is_and_leaves_out_what_there_is_not(report: Report) -> None:
    output = io.StringIO()
    print_report(report, output)
    text = output.getvalue()
    for words in ("25 MB", "510 ms", "1.86 × as fast", "50.0 MB/s of payload", "MPICH took no part: it is not there"):
        assert words in text
    assert "others' share" not in text


def test_the_version_of_a_rival_with_settings_is_told_and_that_of_a_variant_of_shoal_is_not(report: Report) -> None:
    versions = {"shoal": "0.1", "shoal ring": "0.1", "gloo": "torch 2", "gloo lazy": "torch 2, lazily"}
    lines = notes(dataclasses.replace(report, versions=versions))
    assert [line for line in lines if "torch" in line or "0.1" in line] == [
        "Shoal: 0.1",
        "gloo: torch 2",
        "gloo lazy: torch 2, lazily",
    ]


def test_shares_of_links_are_shown_beside_other_flows(report: Report) -> None:
    turn = dataclasses.replace(report.results[2].turns[0], others_mean=0.5 * RATE, others_least=0.25 * RATE)
    beside = Result("shoal", SIZE, 1, (turn,))
    cells = dict(zip(COLUMNS, row(dataclasses.replace(report, results=(beside,)), beside), strict=True))
    assert cells["others' share"] == "0.500, one 0.250"
    assert float(cells["our share"]) == pytest.approx((SIZE - 131072) / RATE / 0.51, abs=1e-3)


@pytest.mark.parametrize("shaped", [True, False])
def test_a_plot_is_a_picture_and_a_page_that_needs_nothing_else(report: Report, shaped: bool, tmp_path: Path) -> None:
    shown = dataclasses.replace(report, network=dataclasses.replace(report.network, shaped=shaped))
    png, page = plot(shown, tmp_path / "figure.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<svg" in text
    assert "a &lt;lab&gt;" in text
    assert "510 ms" in text
    assert not any(outside in text for outside in ("<script", "<link", "<img", "@import", "url(http"))


def test_json_names_its_format(report: Report) -> None:
    assert json.loads(report.to_json())["format"] == 1
