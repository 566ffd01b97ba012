"""Who measures whom, and what is made of what was found."""

import pytest

from shoal.config.addresses import Address
from shoal.tuning.probe import ProbeResult
from shoal.tuning.probe_schedule import Pair, ProbeSchedule


def schedule_of(nodes: int, servers: int) -> ProbeSchedule:
    return ProbeSchedule(
        [Address(f"10.0.0.{i}", 5000 + i) for i in range(nodes)], [Address(f"10.0.1.{j}", 7077) for j in range(servers)]
    )


def run_schedule(schedule: ProbeSchedule, rates: dict[str, int], busy: int = 10, usual: int = 1000) -> int:
    """Measures as if links had these rates, by address. How many rounds that took."""

    def flow(pair: Pair) -> ProbeResult:
        rate = min(rates.get(machine.address.host, usual) for machine in (pair.caller, pair.called))
        return ProbeResult(rate, rate if pair.both else 0, 50, busy)

    count = 0
    for rounds in (schedule.first_rounds, schedule.second_look):
        for pairs in rounds():
            count += 1
            for pair in pairs:
                schedule.note(pair, flow(pair))
    return count


@pytest.mark.parametrize(("nodes", "servers"), [(2, 0), (2, 1), (3, 2), (4, 4), (8, 3), (3, 8), (9, 9)])
def test_in_a_round_everybody_measures_once_and_in_the_end_all_have(nodes: int, servers: int) -> None:
    schedule = schedule_of(nodes, servers)
    sent, received = set(), set()
    for pairs in schedule.first_rounds():
        senders = [p.caller.address for p in pairs] + [p.called.address for p in pairs if p.both]
        receivers = [p.called.address for p in pairs] + [p.caller.address for p in pairs if p.both]
        assert len(senders) == len(set(senders))
        assert len(receivers) == len(set(receivers))
        assert all(pair.caller is not pair.called for pair in pairs)
        sent.update(senders)
        received.update(receivers)
    assert len(sent) == len(received) == nodes + servers


@pytest.mark.parametrize("slow", ["10.0.0.0", "10.0.0.3", "10.0.1.2"])
def test_one_slow_link_is_found_and_nobody_else(slow: str) -> None:
    schedule = schedule_of(4, 4)
    run_schedule(schedule, {slow: 500})
    network = schedule.network()
    assert network is not None
    everyone = [f"10.0.0.{i}" for i in range(4)] + [f"10.0.1.{j}" for j in range(4)]
    rates = [*network.node_rates, *network.server_rates]
    assert rates == [500 if host == slow else 1000 for host in everyone]
    assert network.round_trip == pytest.approx(50e-6)


def test_equal_links_need_no_second_look() -> None:
    schedule = schedule_of(4, 4)
    assert run_schedule(schedule, {"10.0.0.1": 950}) == len(schedule.first_rounds())
    assert schedule.second_look() == []
    network = schedule.network()
    assert network is not None
    assert len({*network.node_rates, *network.server_rates}) == 1


def test_what_only_processors_bounded_says_nothing_about_links() -> None:
    schedule = schedule_of(4, 2)
    run_schedule(schedule, {"10.0.0.1": 300, "10.0.1.0": 700}, busy=90)
    network = schedule.network()
    assert network is not None
    assert {*network.node_rates, *network.server_rates} == {1000}


def test_what_shares_an_address_shares_a_link() -> None:
    schedule = ProbeSchedule(
        [Address("a", 1), Address("a", 2), Address("b", 3)], [Address("b", 7077), Address("c", 7077)]
    )
    run_schedule(schedule, {})
    network = schedule.network()
    assert network is not None
    assert network.node_rates == (500, 500, 500)
    assert network.server_rates == (500, 1000)


def test_one_machine_has_nothing_to_measure() -> None:
    assert (
        ProbeSchedule([Address("127.0.0.1", port) for port in (1, 2, 3)], [Address("127.0.0.1", 7077)]).first_rounds()
        == []
    )


def test_who_could_not_be_measured_counts_as_most() -> None:
    schedule = schedule_of(3, 2)
    run_schedule(schedule, {"10.0.1.1": 0})
    assert schedule.unknown() == ["10.0.1.1:7077"]
    network = schedule.network()
    assert network is not None
    assert {*network.node_rates, *network.server_rates} == {1000}


def test_nothing_found_out_is_no_network() -> None:
    schedule = schedule_of(3, 2)
    run_schedule(schedule, {}, usual=0)
    assert schedule.network() is None
