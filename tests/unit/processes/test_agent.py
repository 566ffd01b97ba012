"""The agent of another host, started here: what it answers, and that it ends what it has started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shoal.processes.agent import GRACE_SECONDS
from shoal.processes.environment import free_master_port, handed_on
from shoal.processes.frames import HELLO, Frame, Kind, encode, frames_of
from shoal.processes.machines import own_address
from shoal.processes.python import module_command, needed_by_python
from shoal.processes.ssh import Ssh, explain

SECONDS = 30.0


class Caller:
    """The launcher's side, by hand."""

    def __init__(self, patience: float = SECONDS, ports: Sequence[int] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal.processes.agent", str(patience), *map(str, ports)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests = self.process.stdin
        line = self.process.stdout.readline()
        assert line.startswith(HELLO)
        self.hello = json.loads(line.removeprefix(HELLO))
        self.answers = frames_of(self.process.stdout)

    def send(self, frame: bytes) -> None:
        self.requests.write(frame)
        self.requests.flush()

    def start(self, program: str, directory: str = "/", *, shell: str = "", **environment: str) -> None:
        """A program of Python; ``shell``: what a shell runs it with, as ``"$@"``."""
        command = [sys.executable, "-c", program]
        request = {
            "name": "it",
            "command": ["/bin/sh", "-c", shell, "sh", *command] if shell else command,
            "environment": environment,
            "directory": directory,
            "hands_on": not shell,
        }
        self.send(encode(Kind.START, 7, request))

    def until(self, kind: Kind) -> list[Frame]:
        """The answers up to the first of a kind."""
        found = []
        for answer in self.answers:
            found.append(answer)
            if answer.kind == kind:
                return found
        raise AssertionError(f"no {kind!r} in {found}")

    def until_all_output(self) -> list[Frame]:
        """The answers of a process that ends by itself. As the launcher does: its output may come after its exit."""
        found = self.until(Kind.EXIT)
        self.send(encode(Kind.FINISH, 7))
        while Frame(Kind.STDOUT, 7, b"") not in found:
            found.append(next(self.answers))
        return found


@pytest.fixture
def callers() -> Iterator[list[Caller]]:
    started: list[Caller] = []
    yield started
    for caller in started:
        caller.process.kill()
        caller.process.wait()


def output(frames: Sequence[Frame], kind: Kind) -> bytes:
    return b"".join(frame.payload for frame in frames if frame.kind == kind)


def has_ended(pid: int) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_process_has_the_environment_that_is_sent_over_the_hosts_own(callers: list[Caller]) -> None:
    callers.append(Caller(HOSTS="own", BOTH="own", SHOAL_LOG="debug"))
    callers[0].start(
        "import os; print({n: os.environ.get(n) for n in ('HOSTS', 'BOTH', 'SENT', 'SHOAL_LOG')})",
        BOTH="x",
        SENT="é\udcff",
    )
    found = callers[0].until_all_output()
    callers[0].requests.close()
    assert (
        output(found, Kind.STDOUT) == b"{'HOSTS': 'own', 'BOTH': 'x', 'SENT': '\xc3\xa9\\udcff', 'SHOAL_LOG': None}\n"
    )
    assert [frame.value for frame in found if frame.kind == Kind.EXIT] == [0]
    assert callers[0].process.wait(SECONDS) == 0


def test_a_folder_that_is_not_there_is_said(callers: list[Caller]) -> None:
    callers.append(Caller())
    callers[0].start("", directory="/no/such/folder")
    found = callers[0].until(Kind.EXIT)
    assert found[-1].value == 127
    assert b"cannot start in /no/such/folder: No such file or directory" in output(found, Kind.STDERR)


def test_what_cannot_be_started_is_that_process_failure_alone(callers: list[Caller]) -> None:
    callers.append(Caller())
    callers[0].start("", TEXT="with a \0 in it")
    found = callers[0].until(Kind.EXIT)
    assert found[-1].value == 127
    assert b"cannot start in /: embedded null byte" in output(found, Kind.STDERR)
    request = {"index": 0, "environment": {"TEXT": "with a \0 in it"}}
    callers[0].send(encode(Kind.START_SERVER, 8, request))
    said = [frame for frame in callers[0].until(Kind.EXIT) if frame.kind == Kind.NOT_READY]
    assert [frame.value for frame in said] == ["cannot start server 0: embedded null byte"]
    callers[0].start("print('well')")
    assert output(callers[0].until_all_output(), Kind.STDOUT) == b"well\n"


def test_output_ends_once_the_process_is_finished_even_if_a_stranger_holds_it(callers: list[Caller]) -> None:
    callers.append(Caller())
    stranger = "import subprocess; print('last', subprocess.Popen(['sleep', '20'], start_new_session=True).pid)"
    callers[0].start(stranger)
    found = callers[0].until(Kind.EXIT)
    callers[0].send(encode(Kind.FINISH, 7))
    while sum(frame.kind in (Kind.STDOUT, Kind.STDERR) and not frame.payload for frame in found) < 2:
        found.append(next(callers[0].answers))
    word, pid = output(found, Kind.STDOUT).split()
    assert word == b"last"
    os.kill(int(pid), signal.SIGKILL)  # it has held its output open until now


WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(os.mkdir("saved")))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["its input ends", "silence", "SIGKILL"])
def test_nothing_outlives_the_connection(callers: list[Caller], tmp_path: Path, how: str) -> None:
    callers.append(Caller(patience=1.0 if how == "silence" else SECONDS))
    callers[0].start(WAITS, directory=str(tmp_path))
    pid = int(callers[0].until(Kind.STDOUT)[-1].payload)
    if how == "its input ends":
        callers[0].requests.close()
    elif how == "SIGKILL":
        callers[0].process.send_signal(signal.SIGKILL)
    assert has_ended(pid)
    # All but the last have a grace period.
    assert (tmp_path / "saved").exists() == (how != "SIGKILL")
    assert callers[0].process.wait(SECONDS) == {"its input ends": 0, "silence": 1, "SIGKILL": -9}[how]


def test_what_a_shell_runs_has_the_grace_period_too(callers: list[Caller], tmp_path: Path) -> None:
    """The shell itself ends at once."""
    callers.append(Caller())
    saves = WAITS.replace("sys.exit", "(time.sleep(1), sys.exit)[1]")
    callers[0].start(saves, directory=str(tmp_path), shell='"$@"; echo after')
    pid = int(callers[0].until(Kind.STDOUT)[-1].payload)
    started = time.monotonic()
    callers[0].requests.close()
    assert has_ended(pid)
    assert (tmp_path / "saved").exists()
    assert callers[0].process.wait(SECONDS) == 0
    assert time.monotonic() - started < GRACE_SECONDS


@pytest.mark.parametrize("request_", [Kind.STILL_HERE, Kind.SIGNAL])
def test_every_request_is_answered(callers: list[Caller], request_: Kind) -> None:
    """So a launcher that has much to say hears too that the agent lives."""
    callers.append(Caller())
    callers[0].send(encode(request_, 7, 2))
    assert next(callers[0].answers).kind == Kind.STILL_HERE


@pytest.mark.slow
def test_a_launcher_that_speaks_or_has_said_that_it_pauses_is_waited_for(callers: list[Caller]) -> None:
    callers.append(Caller(patience=2.0))
    callers[0].start(WAITS)
    for _ in range(5):
        time.sleep(0.5)
        callers[0].send(encode(Kind.STILL_HERE))
    callers[0].send(encode(Kind.PAUSE))
    time.sleep(3)
    assert callers[0].process.poll() is None
    callers[0].send(encode(Kind.STILL_HERE))
    assert callers[0].process.wait(SECONDS) == 1


def test_hello_says_at_which_of_its_own_addresses_the_host_is_reached(callers: list[Caller]) -> None:
    for own in ("127.0.0.1", "192.0.2.7"):  # neither of which others reach here
        callers.append(Caller(SSH_CONNECTION=f"192.0.2.1 50000 {own} 22"))
        assert (callers[-1].hello["address"], callers[-1].hello["client"]) == (own_address([]), "192.0.2.1")


def test_a_host_takes_its_ports_from_the_range_that_is_given(callers: list[Caller]) -> None:
    address = own_address([])
    first = free_master_port(address)
    callers.append(Caller(ports=(first, first + 1)))
    assert callers[0].hello["master_port"] == first
    request = {"index": 0, "environment": {"SHOAL_SECRET": "the secret of the agent's test"}}
    for number in range(2):
        callers[0].send(encode(Kind.START_SERVER, number, request))
    listens = [callers[0].until(Kind.LISTENS)[-1].value for _ in range(2)]
    assert {listen.rpartition(":")[2] for listen in listens} == {str(first), str(first + 1)}
    # Rank 0's host alone needs two in a row.
    callers.append(Caller(ports=(first, first + 1)))
    assert f"widen SHOAL_PORT_RANGE={first}-{first + 1}" in callers[1].hello["master_port"]
    callers[1].send(encode(Kind.START_SERVER, 0, request))
    said = callers[1].until(Kind.STDERR)[-1].payload
    assert f"SHOAL_PORT_RANGE={first}-{first + 1}: every port of it is taken on {address}".encode() in said


def test_what_speaks_of_this_machine_is_not_handed_on() -> None:
    own = {
        "HOME": "/h",
        "TMPDIR": "/t",
        "KRB5CCNAME": "k",
        "GPG_TTY": "/dev/pts/1",
        "HOST": "h",
        "SSH_AUTH_SOCK": "/s",
        "XDG_RUNTIME_DIR": "/r",
        "BASH_FUNC_f%%": "() { :; }",
        "OLDPWD": "/",
    }
    handed = {"PATH": "/bin", "SHOAL_SECRET": "s", "CUDA_VISIBLE_DEVICES": "0", "HOMEPAGE": "x"}
    assert handed_on({**own, **handed}) == handed


def test_what_python_needs_to_begin_means_the_same_in_any_folder() -> None:
    here = str(Path.cwd())
    needed = needed_by_python({"PYTHONPATH": "src::/lib", "LD_LIBRARY_PATH": "/l", "SHOAL_SECRET": "s"})
    assert needed == {"PYTHONPATH": f"{here}/src:{here}:/lib", "LD_LIBRARY_PATH": "/l"}
    assert needed_by_python({"PYTHONPATH": ""}) == {}


def test_modules_of_ours_do_not_import_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('a module of the user')\n")
    command = [*module_command("shoal.cli"), "run", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: shoal run")


def test_ssh_asks_nobody_and_forwards_nothing() -> None:
    words = Ssh(2222, "key", 15).command("me@fe80::7", ["python", "two words"])
    assert words[-3:] == ["--", "me@fe80::7", "exec python 'two words'"]
    assert words[words.index("-p") + 1] == "2222"
    assert words[words.index("-i") + 1] == "key"
    assert {"BatchMode=yes", "ForwardAgent=no", "ClearAllForwardings=yes", "ServerAliveInterval=5"} <= set(words)
    assert {"ControlMaster=no", "ControlPath=none"} <= set(words)


@pytest.mark.parametrize(
    ("said", "code", "meaning"),
    [
        (["me@h: Permission denied (publickey)."], 255, "h wants a password, or a key that is not here"),
        (["bash: line 1: /x/python: Permission denied"], 126, f"h has no {sys.executable}"),
        (["ImportError: No module named shoal.processes.agent"], 1, "h has another version of Shoal"),
        (["ImportError: ... (ModuleNotFoundError: No module named 'shoal')"], 1, "Shoal is not installed on h"),
        (["ssh: connect to host h port 22: No route to host"], 255, "h cannot be reached: ssh said: ssh: connect"),
        ([], 3, "did not begin: it said: nothing, and ended with exit code 3"),
    ],
)
def test_what_ssh_says_is_explained(said: list[str], code: int, meaning: str) -> None:
    assert meaning in explain("h", said, code)
