"""The lab keeps what it promises: links as fast as was asked, nothing outside, nothing left.

Real hosts and real traffic, so these tests need root; without it they are not run, and say so.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_hosts import needs_lab

from shoal.errors import ConfigurationError
from shoal.testing.lab import Host, Lab, LinkShape
from shoal.testing.lab.namespaces import existing

pytestmark = needs_lab

TRAFFIC = [sys.executable, "-I", "-S", str(Path(__file__).with_name("lab_traffic.py"))]
PORT = 7000
SECONDS = 30.0
FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448  # of a full TCP segment at an MTU of 1500


class Flow:
    """A TCP connection that sends ``size`` bytes from one host to another, already running."""

    def __init__(self, source: Host, sink: Host, size: int) -> None:
        port = PORT + source.index
        self._size = size
        self._receiver = self._start(sink, "receive", str(port))
        self._sender = self._start(source, "send", sink.address, str(port), str(size))

    def finish(self) -> float:
        """Waits until all bytes have come. The bits per second of Ethernet frames that carried them."""
        started, _ = self._last_words(self._sender)
        ended, received = self._last_words(self._receiver)
        assert received == self._size
        return received * 8 / (ended - started) * FRAME_BYTES / PAYLOAD_BYTES

    def _start(self, host: Host, *arguments: str) -> "subprocess.Popen[str]":
        process = host.start([*TRAFFIC, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def _last_words(self, process: "subprocess.Popen[str]") -> tuple[float, int]:
        output, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, errors
        when, size = output.split()
        return float(when), int(size)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def assert_rates(flows: Callable[[], list[Flow]], expected: list[float], least: float = 0.95) -> None:
    """Flows are at most 5 % faster than expected, and reach the share ``least`` of it.

    A busy machine may make them slower than their links, so they may try again.
    """
    for attempt in range(4):
        ratios = [flow.finish() / rate for flow, rate in zip(flows(), expected, strict=True)]
        assert max(ratios) < 1.05, "faster than the link"
        if min(ratios) > least or attempt == 3:
            break
    assert min(ratios) > least


def namespaces_of(pid: int) -> list[str]:
    return existing(f"shoal-lab-{pid}-")


def output_of(host: Host, *command: str) -> str:
    return subprocess.run(host.command(command), capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def shoal(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shoal.cli", "lab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


@contextlib.contextmanager
def owner_of_a_lab(block: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has made ``lab``, with two hosts, and run ``block``, and then only waits."""
    program = f"import time\nfrom shoal.testing.lab import Lab\nwith Lab(2) as lab:\n    {block}\n    time.sleep(300)\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_links_are_as_fast_as_was_asked() -> None:
    with Lab(2, LinkShape(rate=200e6, congestion_control="reno")) as lab:
        left, right = lab.hosts
        assert_rates(lambda: [Flow(left, right, 12_000_000)], [200e6])
        assert_rates(lambda: [Flow(right, left, 12_000_000)], [200e6])


def test_both_directions_of_a_link_work_at_once() -> None:
    with Lab(2, LinkShape(rate=200e6, congestion_control="reno")) as lab:
        left, right = lab.hosts
        # Answers wait behind the other flow's data, so neither is as fast as alone; half and half would be 0.5.
        flows = lambda: [Flow(left, right, 12_000_000), Flow(right, left, 12_000_000)]  # noqa: E731
        assert_rates(flows, [200e6, 200e6], least=0.6)


def test_directions_and_hosts_have_rates_of_their_own() -> None:
    shape = LinkShape(rate=200e6, congestion_control="reno")
    slower = LinkShape(rate=100e6, receive_rate=50e6, congestion_control="reno")
    with Lab(3, shape, shapes={1: slower}) as lab:
        fast, asymmetric, other = lab.hosts
        # One after the other: answers to one would wait behind the other's data.
        assert_rates(lambda: [Flow(fast, asymmetric, 3_000_000)], [50e6])
        assert_rates(lambda: [Flow(asymmetric, other, 6_000_000)], [100e6])
        assert_rates(lambda: [Flow(other, fast, 12_000_000)], [200e6])


def test_a_link_can_be_reshaped_and_unshaped_while_it_is_used() -> None:
    with Lab(2) as lab:
        lab.hosts[0].reshape(LinkShape(rate=1e6))
        flow = Flow(lab.hosts[0], lab.hosts[1], 12_000_000)  # takes 96 s as it is
        lab.hosts[0].reshape(LinkShape(rate=100e6))
        assert flow.finish() < 100e6 * 1.05
        lab.hosts[0].reshape(LinkShape())
        assert Flow(lab.hosts[0], lab.hosts[1], 100_000_000).finish() > 200e6


def test_counters_count_what_passes_and_nothing_else_does() -> None:
    with Lab(3) as lab:
        Flow(lab.hosts[0], lab.hosts[1], 1_000_000).finish()
        sender, receiver, bystander = lab.counters()
        # On a busy machine TCP takes a late acknowledgment for a loss and sends some packets of 64 KB again.
        assert 1_000_000 < sender.sent_bytes < 1_500_000
        assert receiver.received_bytes == sender.sent_bytes
        assert receiver.sent_bytes == sender.received_bytes > 0
        assert receiver.received_packets == sender.sent_packets > 0
        assert (bystander.sent_bytes, bystander.received_bytes) == (0, 0)
        assert (sender.sent_on_wire, sender.received_on_wire) == (None, None)
        assert [host.counters() for host in lab.hosts] == [sender, receiver, bystander]


def test_a_shaped_link_counts_every_frame_s_headers() -> None:
    with Lab(3, LinkShape(rate=200e6)) as lab:
        Flow(lab.hosts[0], lab.hosts[1], 3_000_000).finish()
        sender, receiver, bystander = lab.counters()
        assert sender.sent_on_wire is not None
        assert sender.sent_on_wire >= 3_000_000 * 1514 / 1448  # 1448 bytes of data a frame
        assert sender.sent_on_wire < 3_000_000 * 1.06
        assert sender.sent_on_wire > sender.sent_bytes  # pieces of up to 64 KB, each with one header
        # Two shapers, read one after the other: an acknowledgement may pass between.
        assert receiver.received_on_wire == pytest.approx(sender.sent_on_wire, abs=200)
        assert (bystander.sent_on_wire, bystander.received_on_wire) == (0, 0)


def test_a_connection_survives_a_cut_of_a_second() -> None:
    with Lab(2, LinkShape(rate=20e6)) as lab:
        flow = Flow(lab.hosts[0], lab.hosts[1], 2_500_000)
        wait_until(lambda: lab.hosts[1].counters().received_bytes > 500_000)
        lab.hosts[1].cut()
        received = lab.hosts[1].counters().received_bytes
        time.sleep(1)
        assert lab.hosts[1].counters().received_bytes == received < 2_500_000
        lab.hosts[1].mend()
        assert flow.finish() < 20e6 * 1.05


def test_two_hosts_can_be_cut_from_each_other_alone() -> None:
    with Lab(3, LinkShape(rate=20e6)) as lab:
        one, other, third = lab.hosts
        flow = Flow(one, other, 2_500_000)
        wait_until(lambda: other.counters().received_bytes > 500_000)
        one.cut_from(other)
        time.sleep(0.3)  # for what waits in the switch
        received = other.counters().received_bytes
        time.sleep(0.7)
        assert other.counters().received_bytes == received < 2_500_000
        assert Flow(third, other, 1_000_000).finish() > 0
        assert Flow(one, third, 1_000_000).finish() > 0
        one.mend_to(other)
        assert flow.finish() < 20e6 * 1.05


def test_what_a_queue_cannot_hold_is_dropped_and_counted() -> None:
    with Lab(3, LinkShape(rate=200e6), shapes={2: LinkShape(rate=100e6, queue=64 * 1024)}) as lab:
        flows = [Flow(lab.hosts[source], lab.hosts[2], 4_000_000) for source in (0, 1)]
        for flow in flows:
            flow.finish()
        counters = lab.counters()
        assert counters[2].dropped_receiving > 0
        assert [host.dropped_receiving for host in counters[:2]] == [0, 0]


def test_a_flow_fills_a_link_whose_queue_is_as_small_as_a_piece_of_segmentation_offload() -> None:
    with Lab(2, LinkShape(rate=200e6, queue=64 * 1024)) as lab:
        assert_rates(lambda: [Flow(lab.hosts[0], lab.hosts[1], 12_000_000)], [200e6], least=0.8)


def test_congestion_control_is_per_host() -> None:
    machines = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()

    def of(host: Host) -> str:
        return output_of(host, "cat", "/proc/sys/net/ipv4/tcp_congestion_control").strip()

    with Lab(2, shapes={1: LinkShape(congestion_control="reno")}) as lab:
        assert [of(host) for host in lab.hosts] == [machines, "reno"]
        lab.hosts[1].reshape(LinkShape())
        assert of(lab.hosts[1]) == machines


def test_slow_start_after_idle_is_per_host() -> None:
    def of(host: Host) -> str:
        return output_of(host, "cat", "/proc/sys/net/ipv4/tcp_slow_start_after_idle").strip()

    with Lab(2, shapes={1: LinkShape(slow_start_after_idle=False)}) as lab:
        assert [of(host) for host in lab.hosts] == ["1", "0"]
        lab.hosts[1].reshape(LinkShape())
        assert of(lab.hosts[1]) == "1"


def test_a_congestion_control_that_the_kernel_has_not_is_named_with_those_that_it_has() -> None:
    with pytest.raises(ConfigurationError, match=r"'nonesuch'.*allows in network namespaces .*reno"):
        Lab(2, LinkShape(congestion_control="nonesuch"))
    assert namespaces_of(os.getpid()) == []


def test_hosts_reach_each_other_and_nothing_else() -> None:
    def names(links: list[dict[str, Any]]) -> set[str]:
        return {link["ifname"] for link in links}

    before = names(json.loads(subprocess.check_output(["ip", "-json", "link"])))
    with Lab(2, mtu=9000) as lab:
        assert names(json.loads(subprocess.check_output(["ip", "-json", "link"]))) == before
        host = lab.hosts[0]
        interfaces = json.loads(output_of(host, "ip", "-json", "address"))
        assert names(interfaces) == {"lo", "eth0"}
        (eth0,) = [interface for interface in interfaces if interface["ifname"] == "eth0"]
        assert eth0["mtu"] == 9000
        assert [address["local"] for address in eth0["addr_info"]] == [host.address] == [lab.addresses[0]]
        routes = json.loads(output_of(host, "ip", "-json", "route"))
        assert [route["dst"] for route in routes] == ["10.98.0.0/24"]
        assert output_of(host, "ls", "/sys/class/net").split() == ["eth0", "lo"]


def test_a_lab_is_gone_with_its_block_even_when_that_raises() -> None:
    started = []

    def use_and_fail() -> None:
        with Lab(2) as lab:
            # A child in a session of its own is found too.
            started.append(lab.hosts[0].start(["sh", "-c", "setsid sleep 300 & exec sleep 300"]))
            assert len(namespaces_of(os.getpid())) == 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    assert started[0].returncode == -signal.SIGKILL
    assert namespaces_of(os.getpid()) == []


def test_labs_do_not_disturb_each_other() -> None:
    with Lab(1, name="one") as one, Lab(1, name="two"):
        with pytest.raises(ValueError, match="has a lab named 'one' already"):
            Lab(1, name="one")
        one.close()
        one.close()
        assert [name.split("-")[-2:] for name in namespaces_of(os.getpid())] == [["two", "host0"], ["two", "switch"]]


def test_a_lab_is_gone_with_its_process_and_what_ran_there_too() -> None:
    with owner_of_a_lab('print(lab.hosts[0].start(["sleep", "300"]).pid, flush=True)') as owner:
        assert owner.stdout is not None
        sleeper = int(owner.stdout.readline())
        owner.kill()
        wait_until(lambda: namespaces_of(owner.pid) == [])
        wait_until(lambda: not is_running(sleeper))


def test_what_was_on_its_way_into_a_lab_that_is_gone_is_killed() -> None:
    # Open before the lab is gone, and in it only afterwards: as "ip netns exec" is when it has to wait for a processor.
    enter = (
        "import ctypes, sys, time; place = open(sys.argv[1]); print(flush=True); time.sleep(0.5); "
        "ctypes.CDLL(None).setns(place.fileno(), 0); time.sleep(300)"
    )
    with owner_of_a_lab('print("made", flush=True)') as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        namespace = f"/var/run/netns/{namespaces_of(owner.pid)[0]}"
        with subprocess.Popen([sys.executable, "-c", enter, namespace], stdout=subprocess.PIPE) as late:
            assert late.stdout is not None
            late.stdout.readline()
            owner.kill()
            try:
                assert late.wait(SECONDS) == -signal.SIGKILL
            finally:
                late.kill()


def leave_a_lab_behind() -> int:
    """Kills a lab's process, after its janitor. The number that it had."""
    with owner_of_a_lab('print("made", flush=True)') as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        (janitor,) = map(int, Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split())
        os.kill(janitor, signal.SIGKILL)
        with Lab(1):
            assert len(namespaces_of(owner.pid)) == 3  # its process lives: it is left alone
    return owner.pid


def test_a_lab_that_was_left_behind_is_removed_by_the_next() -> None:
    pid = leave_a_lab_behind()
    with Lab(1):
        assert namespaces_of(pid) == []


def test_the_command_line_removes_labs_that_were_left_behind() -> None:
    pid = leave_a_lab_behind()
    names = namespaces_of(pid)
    cleaned = shoal("clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert {f"removed {name}" for name in names} <= set(cleaned.stdout.splitlines())
    assert namespaces_of(pid) == []


def test_ctrl_c_ends_a_lab_before_its_process() -> None:
    with owner_of_a_lab('print("made", flush=True)') as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        owner.send_signal(signal.SIGINT)
        owner.wait(timeout=SECONDS)
        assert namespaces_of(owner.pid) == []


def test_without_root_a_lab_says_what_it_needs() -> None:
    program = "import os; from shoal.testing.lab import Lab; os.setuid(65534); Lab(2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "needs root, and this process runs as user 65534: run it with sudo" in done.stderr


def test_the_command_line_runs_a_command_on_every_host() -> None:
    script = 'echo "$LAB_HOST/$LAB_HOSTS $LAB_ADDRESS of $LAB_ADDRESSES"; tc qdisc show dev eth0'
    done = shoal("--hosts", "2", "--rate", "400mbit", "--slow", "1=200mbit", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "[0] 0/2 10.98.0.1 of 10.98.0.1,10.98.0.2\n" in done.stdout
    assert "[1] 1/2 10.98.0.2 of 10.98.0.1,10.98.0.2\n" in done.stdout
    rates = {line.split()[0]: "rate 400Mbit" in line for line in done.stdout.splitlines() if "tbf" in line}
    assert rates == {"[0]": True, "[1]": False}


def test_the_command_line_stops_everything_when_one_host_fails() -> None:
    done = shoal("--hosts", "3", "--", "sh", "-c", 'trap "exit 0" TERM; [ $LAB_HOST != 1 ] || exit 7; exec sleep 300')
    assert done.returncode == 7
    assert "the command on host1 failed with exit code 7; ending the others" in done.stderr
