"""``shoal run`` as users have it: a command whose processes, output, signals and exit codes are looked at from outside."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import SECONDS, Launcher, all_gone, is_running

from shoal.processes import free_master_port, job, output

# Not imported by the scripts: most of what is tested needs nothing of Shoal but the launcher.
Write = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """Writes a script and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def launch() -> Iterator[Callable[..., Launcher]]:
    started: list[Launcher] = []

    def start(*arguments: str | Path, **environment: str) -> Launcher:
        started.append(Launcher(*arguments, **environment))
        return started[-1]

    yield start
    for launcher in started:
        launcher.process.kill()
        launcher.process.communicate(timeout=SECONDS)


def test_ranks_find_their_places(launch: Callable[..., Launcher], script: Write) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT SHOAL_SECRET"
    path = script(
        f"import json\nprint(json.dumps([{{name: os.environ[name] for name in {names.split()}}}, sys.argv[1:]]))"
    )
    code, out, err = launch("-n", "3", "--nodes", "2", path, "--lr", "0.1", "-n", "7").finish()
    assert (code, err) == (0, "")
    found = {}
    for line in out.splitlines():
        prefix, _, text = line.partition(" ")
        environment, arguments = json.loads(text)
        assert prefix == f"[{environment['RANK']}]"
        assert arguments == ["--lr", "0.1", "-n", "7"]
        found[int(environment["RANK"])] = environment
    assert [(found[rank]["LOCAL_RANK"], found[rank]["LOCAL_WORLD_SIZE"]) for rank in range(3)] == [
        ("0", "2"),
        ("1", "2"),
        ("0", "1"),
    ]
    assert len({found[rank]["SHOAL_SECRET"] for rank in found}) == 1
    assert len({found[rank]["MASTER_PORT"] for rank in found}) == 1


def test_a_module_is_run_by_name(launch: Callable[..., Launcher]) -> None:
    code, out, _ = launch("-n", "2", "-m", "json.tool", "--help").finish()
    assert code == 0
    assert re.search(r"^\[0\] usage: .*json\.tool", out, re.MULTILINE)


WORDS = {
    "python with options": ["python", "-u", "-X", "dev", "{script}"],
    "a path to an interpreter": [sys.executable, "{script}"],
    "a module by python": ["python3", "-m", "script"],
    "env": ["env", "LR=0.1", "python", "{script}"],
    "bash": ["bash", "{folder}/train.sh"],
    "an executable": ["{folder}/train.sh"],
    "a program on the PATH": ["train.sh"],
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_words_before_the_script_are_a_program(
    launch: Callable[..., Launcher], script: Write, tmp_path: Path, words: list[str]
) -> None:
    path = script("print(rank, os.environ['WORLD_SIZE'], sys.prefix, sys.argv[1:], os.environ.get('LR'))")
    shell = tmp_path / "train.sh"
    shell.write_text(f'#!/bin/sh\nLR=0.1 python {path} "$@"\n')
    shell.chmod(0o755)
    # As in an environment that is activated.
    folders = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    started = [word.format(script=path, folder=tmp_path) for word in words]
    rate = "0.1" if "env" in words or "train.sh" in words[-1] else None
    launcher = launch("-n", "2", *started, "-n", "7", PATH=folders, PYTHONPATH=str(tmp_path))
    code, out, err = launcher.finish()
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{rank}] {rank} 2 {sys.prefix} ['-n', '7'] {rate}" for rank in range(2)]


@pytest.mark.parametrize(
    ("number", "seconds"), [(signal.SIGINT, 0.1), pytest.param(signal.SIGTERM, 3.0, marks=pytest.mark.slow)]
)
def test_a_signal_reaches_what_a_shell_has_started(
    launch: Callable[..., Launcher], script: Write, number: signal.Signals, seconds: float
) -> None:
    assert number == signal.SIGINT or seconds > output.LINGER_SECONDS
    path = script(f"""
        def stop(number, frame):
            time.sleep({seconds})
            print("saved", flush=True)
            sys.exit(0)
        signal.signal({int(number)}, stop)
        print("ready", flush=True)
        time.sleep(600)
    """)
    launcher = launch("-n", "1", "bash", "-c", f"{sys.executable} {path}; exit 5")
    launcher.wait_for(1, "ready")
    launcher.process.send_signal(number)
    code, out, _ = launcher.finish()
    assert out == "[0] saved\n"
    assert code == (5 if number == signal.SIGINT else 128 + number)


def test_hosts_that_do_not_answer_keep_no_interrupt_waiting(
    launch: Callable[..., Launcher], script: Write, tmp_path: Path
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho >> "{tmp_path}/started"\nexec sleep 600\n')
    ssh.chmod(0o755)
    hosts = ",".join(f"me@h{number}" for number in range(12))
    launcher = launch("-n", "12", "-H", hosts, script(""), PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    while not ((tmp_path / "started").exists() and len((tmp_path / "started").read_text()) == 12):
        assert launcher.process.poll() is None
        time.sleep(0.05)
    launcher.process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert launcher.finish() == (128 + signal.SIGINT, "", "")
    assert time.monotonic() - started < 15


def test_lines_are_whole_whoever_writes(launch: Callable[..., Launcher], script: Write) -> None:
    path = script("""
        for number in range(300):
            stream = sys.stderr if number % 3 == 0 else sys.stdout
            for piece in (f"<{rank}:", f"{number}:", "x" * 300, ">\\n"):
                stream.write(piece)
                stream.flush()
    """)
    code, out, err = launch("-n", "4", path).finish()
    assert code == 0
    for text, expected in ((out, 800), (err, 400)):
        lines = text.splitlines()
        assert len(lines) == expected
        assert all(re.fullmatch(r"\[(\d)\] <\1:\d+:x{300}>", line) for line in lines)
    numbers = [int(line.split(":")[1]) for line in out.splitlines() if line.startswith("[1]")]
    assert numbers == [number for number in range(300) if number % 3]


def test_a_last_line_without_end_is_not_lost(launch: Callable[..., Launcher], script: Write) -> None:
    code, out, err = launch("-n", "1", script("os.write(1, b'last'); os.write(2, b'words')")).finish()
    assert (code, out, err) == (0, "[0] last\n", "[0] words\n")


def test_output_that_nobody_reads_at_once_is_not_lost(launch: Callable[..., Launcher], script: Write) -> None:
    launcher = launch(
        "-n", "1", script("sys.stdout.write('y' * 99 + '\\n' * 1); print(('z' * 99 + '\\n') * 5000, end='')")
    )
    time.sleep(2 * job.LINGER_SECONDS)  # the pipe is full, the rank waits; nothing may time out
    code, out, _ = launcher.finish()
    assert code == 0
    assert len(out.splitlines()) == 5001


def test_the_first_failure_decides_and_ends_the_others(launch: Callable[..., Launcher], script: Write) -> None:
    path = script("""
        print("pid", os.getpid(), flush=True)
        if rank == 1:
            time.sleep(0.3)
            sys.exit(7)
        time.sleep(600)
    """)
    started = time.monotonic()
    launcher = launch("-n", "3", path)
    pids = [int(line.split()[-1]) for line in launcher.wait_for(3, "pid")]
    code, _, err = launcher.finish()
    assert code == 7
    assert "shoal run: rank 1 failed with exit code 7; ending the others" in err
    assert time.monotonic() - started < 4 * job.GRACE_SECONDS
    assert all_gone(pids, 0)


def test_other_ranks_have_time_for_last_words(launch: Callable[..., Launcher], script: Write) -> None:
    path = script("""
        if rank == 1:
            sys.exit(3)
        time.sleep(1)
        print("last words")
        sys.exit(4)
    """)
    code, out, _ = launch("-n", "2", path).finish()
    assert (code, out) == (3, "[0] last words\n")


@pytest.mark.slow
def test_a_rank_that_ignores_sigterm_is_killed(launch: Callable[..., Launcher], script: Write) -> None:
    path = script("""
        signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
        print("ready", flush=True)
        while rank == 0:
            time.sleep(600)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    code, out, err = launch("-n", "2", path).finish()
    assert code == 128 + signal.SIGKILL
    assert "rank 1 was ended by SIGKILL" in err
    assert "[0] not yet" in out


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGHUP))]
)
def test_signals_are_passed_on(launch: Callable[..., Launcher], script: Write, number: signal.Signals) -> None:
    path = script(f"""
        def stop(number, frame):
            print("got", number, flush=True)
            sys.exit(0)
        signal.signal({int(number)}, stop)
        print("ready", flush=True)
        time.sleep(600)
    """)
    launcher = launch("-n", "2", path)
    launcher.wait_for(2, "ready")
    launcher.process.send_signal(number)
    code, out, err = launcher.finish()
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[0] got {int(number)}", f"[1] got {int(number)}"]


def test_a_hangup_that_is_ignored_is_ignored_for_the_job_too(launch: Callable[..., Launcher], script: Write) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        launcher = launch("-n", "2", script("print('ready', flush=True); time.sleep(1); print('trained')"))
    finally:
        signal.signal(signal.SIGHUP, before)
    launcher.wait_for(2, "ready")
    launcher.process.send_signal(signal.SIGHUP)
    code, out, err = launcher.finish()
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[0] trained", "[1] trained"]


def test_a_signal_that_ends_the_ranks_is_the_exit_code(launch: Callable[..., Launcher], script: Write) -> None:
    launcher = launch("-n", "2", script("print('ready', flush=True); time.sleep(600)"))
    launcher.wait_for(2, "ready")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.finish() == (128 + signal.SIGTERM, "", "")


def test_a_second_interrupt_kills(launch: Callable[..., Launcher], script: Write) -> None:
    path = script("""
        signal.signal(signal.SIGINT, lambda *_: print("stubborn", flush=True))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("pid", os.getpid(), flush=True)
        while True:
            time.sleep(600)
    """)
    launcher = launch("-n", "2", path)
    pids = [int(line.split()[-1]) for line in launcher.wait_for(2, "pid")]
    launcher.process.send_signal(signal.SIGINT)
    launcher.wait_for(2, "stubborn")
    launcher.process.send_signal(signal.SIGINT)
    code, _, _ = launcher.finish()
    assert code == 128 + signal.SIGINT
    assert all_gone(pids, 0)


FAMILY = """
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
    print("pids", os.getpid(), child.pid, flush=True)
"""


def test_nothing_is_left_when_the_launcher_is_killed(launch: Callable[..., Launcher], script: Write) -> None:
    launcher = launch("-n", "2", script(FAMILY + "    time.sleep(600)"))
    pids = [int(word) for line in launcher.wait_for(2, "pids") for word in line.split()[2:]]
    assert len(pids) == 4
    assert all(map(is_running, pids))
    launcher.process.kill()
    assert all_gone(pids)


def test_what_a_rank_leaves_behind_is_ended(launch: Callable[..., Launcher], script: Write) -> None:
    launcher = launch("-n", "2", script(FAMILY))
    pids = [int(word) for line in launcher.wait_for(2, "pids") for word in line.split()[2:]]
    code, _, _ = launcher.finish()
    assert code == 0
    assert all_gone(pids, 0)


def test_a_reader_that_leaves_ends_the_job(launch: Callable[..., Launcher], script: Write) -> None:
    launcher = launch("-n", "2", script("while True: print('line'); time.sleep(0.01)"))
    launcher.wait_for(1, "line")
    assert launcher.process.stdout is not None
    launcher.process.stdout.close()
    assert launcher.process.wait(timeout=SECONDS) == 128 + signal.SIGPIPE


CHILDREN = """
    def servers():
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    parent = int(open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[1])
                    command = open(f"/proc/{entry}/cmdline").read().split("\\0")
                except OSError:
                    continue
                if parent == os.getppid() and "server" in command:
                    found.append(int(entry))
        return found
"""


def test_servers_are_there_for_the_ranks_and_then_no_more(launch: Callable[..., Launcher], script: Write) -> None:
    path = script(
        CHILDREN
        + """
    import socket
    for address in os.environ["SHOAL_SERVERS"].split(","):
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()
    print("servers", len(os.environ["SHOAL_SERVERS"].split(",")), *servers())
    """
    )
    launcher = launch("-n", "2", "--nodes", "2", "--servers", "2", path)
    count, *pids = (int(word) for word in launcher.wait_for(1, r"\] servers \d")[0].split()[2:])
    code, _, err = launcher.finish()
    assert (code, err) == (0, "")
    assert (count, len(pids)) == (2, 2)
    assert all_gone(pids, 0)


def free_ports(many: int) -> int:
    """The first of so many in a row that are free."""
    while True:
        first = free_master_port()
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as taken:
            for port in range(first, first + many):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def test_every_port_is_of_the_range(launch: Callable[..., Launcher], script: Write) -> None:
    path = script("""
        import shoal
        from shoal.job import runtime
        shoal.init()
        own = runtime.current()._joined.welcome.addresses[rank].port
        servers = [address.split(":")[1] for address in os.environ["SHOAL_SERVERS"].split(",")]
        print("ports", os.environ["MASTER_PORT"], int(os.environ["MASTER_PORT"]) + 1, *servers, own)
        shoal.barrier()
    """)
    many = 8
    first = free_ports(many)
    job = ("-n", "2", "--nodes", "2", "--servers", "2")
    code, out, err = launch(*job, path, SHOAL_PORT_RANGE=f"{first}-{first + many - 1}").finish()
    assert (code, err) == (0, "")
    ports = {int(word) for line in out.splitlines() if "] ports " in line for word in line.split()[2:]}
    assert len(ports) == 6
    assert first <= min(ports) <= max(ports) < first + many


def test_a_range_without_room_for_the_ranks_to_meet_is_said(launch: Callable[..., Launcher], script: Write) -> None:
    first = free_ports(2)
    job = ("-n", "2", "--nodes", "2", "--servers", "1")
    code, out, err = launch(*job, script("print('started')"), SHOAL_PORT_RANGE=f"{first}-{first + 1}").finish()
    assert (code, "started" in out) == (255, False)
    assert err.startswith(f"shoal run: no two ports in a row from {first} to {first + 1} are free on 127.0.0.1")


def test_a_server_that_dies_ends_the_job(launch: Callable[..., Launcher], script: Write) -> None:
    path = script(CHILDREN + "    if rank == 0: os.kill(servers()[0], signal.SIGKILL)\n    time.sleep(600)")
    code, _, err = launch("-n", "2", "--nodes", "2", "--servers", "1", path).finish()
    assert code == 1
    assert "shoal run: server 0 was ended by SIGKILL; ending the others" in err


def test_a_server_that_cannot_start_is_one_line_and_no_rank_starts(
    launch: Callable[..., Launcher], script: Write
) -> None:
    launcher = launch("-n", "2", "--nodes", "2", "--servers", "1", script("print('started')"), SHOAL_SECRET="short")
    code, out, err = launcher.finish()
    assert code == 1
    assert out == ""
    lines = err.splitlines()
    assert any(line.startswith("[server 0]") and "SHOAL_SECRET" in line for line in lines)
    assert sum(line.startswith("shoal run:") for line in lines) == 1
    assert any("server 0 failed with exit code 1 before it was ready" in line for line in lines)
