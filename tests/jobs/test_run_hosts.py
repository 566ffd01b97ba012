"""``shoal run`` on several hosts of a lab, each with a real sshd, as its users have it: looked at from outside."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launcher, all_gone, is_running
from ssh_hosts import SshHosts, needs_sshd

from shoal.processes.python import module_command
from shoal.testing.lab import Lab
from shoal.testing.lab.commands import write_setting
from shoal.testing.lab.namespaces import FOLDER

pytestmark = needs_sshd

Launch = Callable[..., Launcher]
Write = Callable[[str], Path]

# Who runs the ranks in most tests; h0 has the launcher.
TWO_HOSTS = ("-np", "4", "-H", "h1:2,h2:2")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with Lab(4) as lab:
        hosts = SshHosts(lab, tmp_path_factory.mktemp("ssh"))
        hosts.serve(1, "h1")
        # As hosts do whose shell says hello to everybody.
        hosts.serve(2, "h2", "ForceCommand sh -c 'echo Welcome!; echo -n to h2:; eval \"$SSH_ORIGINAL_COMMAND\"'")
        hosts.serve(3, "h3")
        yield hosts


@pytest.fixture
def launch(hosts: SshHosts) -> Iterator[Launch]:
    started: list[Launcher] = []

    def start(*arguments: str | Path, on: int = 0, **environment: str) -> Launcher:
        started.append(hosts.launch(on, *arguments, **environment))
        return started[-1]

    yield start
    for launcher in started:
        launcher.process.kill()
        launcher.process.communicate()


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """Writes a script and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(text))
        return path

    return write


TRAINS = """
    import torch, shoal.torch
    torch.manual_seed(rank)
    model = shoal.torch.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = torch.arange(8.0)
    for step in range(30):
        inputs = torch.randn(16, 8)
        loss = (model(inputs).squeeze() - inputs @ truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained", f"{loss.item() < 5}", model.module.weight.detach().numpy().tobytes().hex(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "servers", [[], ["--servers", "2", "--server-hosts", "h3"]], ids=["alone", "servers on a third"]
)
def test_two_hosts_of_two_ranks_train_the_same_model(launch: Launch, script: Write, servers: list[str]) -> None:
    code, out, err = launch(*TWO_HOSTS, *servers, script(TRAINS)).finish()
    assert (code, err) == (0, "")
    trained = [line.split() for line in out.splitlines() if "trained" in line]
    assert sorted(line[0] for line in trained) == ["[0]", "[1]", "[2]", "[3]"]
    assert {line[2] for line in trained} == {"True"}
    assert len({line[3] for line in trained}) == 1
    assert len(re.findall(r"^\[server [01]\] shoal server: listening on 10\.", out, re.MULTILINE)) == (
        2 if servers else 0
    )


def shown(out: str) -> dict[int, dict[str, str]]:
    """What ranks have printed as JSON, by rank."""
    return {int(rank): json.loads(text) for rank, text in re.findall(r"^\[(\d+)\] (\{.*\})$", out, re.MULTILINE)}


def test_ranks_fill_the_hosts_in_order(hosts: SshHosts, launch: Launch, script: Write, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("h2 slots=2\nlocalhost:2  # here\nh3 slots=4\n")
    path = script("""
        import json, socket
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 9))
            address = probe.getsockname()[0]
        print(json.dumps({**os.environ, "address": address, "folder": os.getcwd(), "words": sys.argv[1:]}))
    """)
    code, out, err = launch("-np", "5", "--hostfile", hostfile, path, "-H", "x").finish()
    assert (code, err) == (0, "")
    found = shown(out)
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "address")
    address = hosts.lab.addresses
    assert [tuple(found[rank][name] for name in names) for rank in range(5)] == [
        ("0", "2", "5", address[2]),
        ("1", "2", "5", address[2]),
        ("0", "2", "5", address[0]),
        ("1", "2", "5", address[0]),
        ("0", "1", "5", address[3]),
    ]
    assert {found[rank]["MASTER_ADDR"] for rank in found} == {address[2]}
    assert len({found[rank]["MASTER_PORT"] for rank in found}) == 1
    assert len({found[rank]["SHOAL_SECRET"] for rank in found}) == 1
    assert {found[rank]["folder"] for rank in found} == {str(Path.cwd())}
    assert all(found[rank]["words"] == ["-H", "x"] for rank in found)


def test_the_environment_is_handed_on_but_for_what_is_the_hosts_own(launch: Launch, script: Write) -> None:
    strange = "two\nlines, \"quotes' and \udcff"
    path = script("import json\nprint(json.dumps(dict(os.environ)))")
    own = {"HOSTNAME": "h0", "SSH_AUTH_SOCK": "/tmp/agent", "HOME": "/somewhere", "XDG_RUNTIME_DIR": "/run/user/7"}
    code, out, _ = launch("-np", "1", "-H", "h1", path, STRANGE=strange, SHOAL_LOG="info", **own).finish()
    assert code == 0
    found = shown(out)[0]
    assert found["STRANGE"] == strange
    assert found["SHOAL_LOG"] == "info"
    assert found["PATH"].endswith(os.environ["PATH"])
    assert found["HOME"] == "/root"
    assert not {"HOSTNAME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"} & set(found)


def test_ranks_of_two_hosts_average_through_servers_on_a_third(hosts: SshHosts, launch: Launch, script: Write) -> None:
    """Rank 0 is here, and the others reach it."""
    path = script("""
        import numpy, shoal
        shoal.init()
        print("mean", shoal.allreduce(numpy.full(300000, float(rank)))[-1], os.environ["MASTER_ADDR"])
        assert 7100 <= int(os.environ["MASTER_PORT"]) < 7109
    """)
    words = ("-np", "3", "-H", "localhost:2,h2:1", "--servers", "2", "--server-hosts", "h1")
    code, out, err = launch(*words, path, on=3, SHOAL_PORT_RANGE="7100-7109").finish()
    assert (code, err) == (0, "")
    here, third = hosts.lab.addresses[3], hosts.lab.addresses[1]
    assert sorted(line for line in out.splitlines() if "mean" in line) == [
        f"[{rank}] mean 1.0 {here}" for rank in range(3)
    ]
    assert len(re.findall(rf"^\[server [01]\] shoal server: listening on {third}:710\d,", out, re.MULTILINE)) == 2


@pytest.mark.slow
def test_much_output_from_many_ranks_comes_whole(launch: Launch, script: Write) -> None:
    path = script("""
        for number in range(2000):
            stream = sys.stderr if number % 4 == 0 else sys.stdout
            stream.write(f"<{rank}:{number}:{'x' * 200}>\\n")
            stream.flush()
        os.write(1, b"last words")
    """)
    launcher = launch("-np", "4", "-H", "h1:2,h2:2", path)
    time.sleep(1.0)  # pipes are full, the ranks wait
    code, out, err = launcher.finish()
    assert code == 0
    lines = [line for line in out.splitlines() if "last words" not in line]
    assert (len(lines), len(err.splitlines()), out.count("last words")) == (6000, 2000, 4)
    assert all(re.fullmatch(r"\[(\d)\] <\1:\d+:x{200}>", line) for line in [*lines, *err.splitlines()])
    numbers = [int(line.split(":")[1]) for line in lines if line.startswith("[3]")]
    assert numbers == [number for number in range(2000) if number % 4]


def test_a_rank_that_fails_ends_the_job_on_all_hosts(launch: Launch, script: Write) -> None:
    path = script("""
        print("pid", os.getpid(), flush=True)
        if rank == 3:
            time.sleep(0.5)
            sys.exit(7)
        time.sleep(600)
    """)
    launcher = launch(*TWO_HOSTS, path)
    pids = [int(line.split()[-1]) for line in launcher.wait_for(4, "pid")]
    code, _, err = launcher.finish()
    assert (code, err) == (7, "shoal run: rank 3 on h2 failed with exit code 7; ending the others\n")
    assert all_gone(pids, 0)


STAYS = """
    def stop(number, frame):
        print("got", number, flush=True)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("pid", os.getpid(), flush=True)
    while True:
        time.sleep(600)
"""


def test_interrupts_reach_all_hosts_and_a_second_kills(launch: Launch, script: Write) -> None:
    launcher = launch(*TWO_HOSTS, script(STAYS))
    pids = [int(line.split()[-1]) for line in launcher.wait_for(4, "pid")]
    launcher.process.send_signal(signal.SIGINT)
    assert sorted(launcher.wait_for(4, "got")) == [f"[{rank}] got 2" for rank in range(4)]
    launcher.process.send_signal(signal.SIGINT)
    code, _, _ = launcher.finish()
    assert code == 128 + signal.SIGINT
    assert all_gone(pids, 0)


# Ranks whose children end by SIGKILL alone.
FAMILY = """
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
    agent = os.getppid()
    print("pids", os.getpid(), child.pid, agent, flush=True)
    time.sleep(600)
"""


def pids_of(launcher: Launcher, ranks: int) -> list[int]:
    """Of ranks of FAMILY, their children and who has started them."""
    found = [int(word) for line in launcher.wait_for(ranks, "pids") for word in line.split()[2:]]
    assert all(map(is_running, found))
    return found


def processes(word: str, namespace: str) -> dict[int, int]:
    """The parents of those in a namespace that have ``word`` among their arguments."""
    inode = (FOLDER / namespace).stat().st_ino
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if word.encode() in words and (entry / "ns" / "net").stat().st_ino == inode:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def ssh_of(launcher: Launcher, hosts: SshHosts) -> list[int]:
    here = hosts.lab.hosts[0].namespace
    return [pid for pid, parent in processes("BatchMode=yes", here).items() if parent == launcher.process.pid]


def test_nothing_is_left_on_any_host_when_the_launcher_is_killed(launch: Launch, script: Write) -> None:
    launcher = launch("-np", "3", "-H", "localhost:1,h1:1,h2:1", script(FAMILY))
    pids = pids_of(launcher, 3)
    launcher.process.kill()
    assert all_gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["ssh", "agent"])
def test_a_host_whose_connection_dies_ends_the_job_and_what_it_has_started(
    hosts: SshHosts, launch: Launch, script: Write, who: str
) -> None:
    launcher = launch("-np", "2", "-H", "h1:1,h2:1", script(FAMILY))
    pids = pids_of(launcher, 2)
    agents = set(pids[2::3])
    os.kill(min(ssh_of(launcher, hosts) if who == "ssh" else agents), signal.SIGKILL)
    code, _, err = launcher.finish()
    assert code == 255
    assert re.fullmatch(r"shoal run: h[12] is lost: .*; ending the others\n", err), err
    assert all_gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize(("who", "interrupted"), [("agent", True), ("agent", False), ("ssh", True)])
def test_what_stands_still_keeps_nothing_from_ending(
    hosts: SshHosts, launch: Launch, script: Write, who: str, interrupted: bool
) -> None:
    patience = "60" if interrupted else "5"
    launcher = launch("-np", "2", "-H", "h1:1,h2:1", script(FAMILY), SHOAL_PEER_TIMEOUT=patience)
    pids = pids_of(launcher, 2)
    stopped = pids[2] if who == "agent" else min(ssh_of(launcher, hosts))
    os.kill(stopped, signal.SIGSTOP)
    try:
        started = time.monotonic()
        for _ in range(2 if interrupted else 0):
            launcher.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        code, _, err = launcher.finish()
        assert time.monotonic() - started < 25
        assert code == (128 + signal.SIGINT if interrupted else 255)
        said = r"shoal run: h[12] is lost: Shoal's agent there has not answered for 5 seconds; ending the others\n"
        assert interrupted or re.fullmatch(said, err), err
    finally:
        if who == "agent":
            os.kill(stopped, signal.SIGCONT)
    assert all_gone(pids)


@pytest.mark.slow
def test_a_host_whose_link_is_cut_ends_the_job_and_what_it_has_started(
    hosts: SshHosts, launch: Launch, script: Write
) -> None:
    launcher = launch(*TWO_HOSTS, script(FAMILY), SHOAL_PEER_TIMEOUT="3")
    pids = pids_of(launcher, 4)
    hosts.lab.hosts[2].cut()
    try:
        started = time.monotonic()
        code, _, err = launcher.finish()
        assert code == 255
        assert re.fullmatch(r"shoal run: h2 is lost: .*; ending the others\n", err), err
        assert time.monotonic() - started < 15
        assert all_gone(pids, 20)
    finally:
        hosts.lab.hosts[2].mend()


@pytest.mark.slow
def test_a_server_that_dies_on_its_host_ends_the_job(hosts: SshHosts, launch: Launch, script: Write) -> None:
    path = script("print('working', flush=True)\ntime.sleep(600)")
    launcher = launch("-np", "2", "-H", "h1:1,h2:1", "--server-hosts", "h3", path)
    launcher.wait_for(2, "working")
    (server,) = processes("--ready-fd", hosts.lab.hosts[3].namespace)
    os.kill(server, signal.SIGKILL)
    code, _, err = launcher.finish()
    assert code == 1
    assert err == "shoal run: server 0 on h3 was ended by SIGKILL; ending the others\n"


def test_secrets_are_in_no_argument_and_not_with_ssh(hosts: SshHosts, launch: Launch, script: Write) -> None:
    secret = "a secret that nobody sees 0123456789"
    path = script("print('working', 'secret' in os.environ['SHOAL_SECRET'], flush=True)\ntime.sleep(600)")
    launcher = launch("-np", "3", "-H", "localhost:1,h1:1,h2:1", "--server-hosts", "h3", path, SHOAL_SECRET=secret)
    assert all(line.endswith("True") for line in launcher.wait_for(3, "working"))
    ssh = ssh_of(launcher, hosts)
    assert len(ssh) == 3
    for pid in ssh:
        assert b"SHOAL_" not in Path(f"/proc/{pid}/environ").read_bytes()
    (*_, agent) = module_command("shoal.processes.agent")
    assert all(processes(agent, hosts.lab.hosts[index].namespace) for index in (1, 2, 3))
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            assert secret.encode() not in (entry / "cmdline").read_bytes()
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.finish()[0] == 128 + signal.SIGTERM


# What keeps a host from being used: what its sshd is told, and what is said.
OBSTACLES = {
    "password": ({"also": "PasswordAuthentication yes", "welcome": False}, "wants a password, .*ssh-copy-id "),
    "older": ({"also": "SetEnv PYTHONPATH={other}"}, r"has version 0\.0\.1 of Shoal and this machine \d"),
    "stranger": ({"known": False}, "the key of .* is not known yet"),
    "no Python": ({"also": "ForceCommand exec /no/such/python"}, "has no {python}: "),
    "no login": ({"also": "ForceCommand echo This account is not available."}, "This account is not available"),
    "no Shoal": ({"also": "ForceCommand exec {python} -S -m shoal.cli"}, "Shoal is not installed on"),
}


@pytest.mark.parametrize(
    "name",
    [name if name in ("password", "older") else pytest.param(name, marks=pytest.mark.slow) for name in OBSTACLES],
)
def test_what_keeps_a_host_from_being_used_is_said_in_one_line(
    hosts: SshHosts, launch: Launch, script: Write, tmp_path: Path, name: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\nreal = metadata.version\n"
        "metadata.version = lambda name: '0.0.1' if name == 'shoal' else real(name)\n"
    )
    told, said = OBSTACLES[name]
    told = {
        word: value.format(other=tmp_path, python=sys.executable) if word == "also" else value
        for word, value in told.items()
    }
    alias = name.replace(" ", "-")
    hosts.serve(3, alias, **told)
    code, out, err = launch("-np", "2", "-H", f"localhost:1,{alias}:1", script("print('started')")).finish()
    assert (code, out, len(err.splitlines())) == (255, "", 1), err
    assert err.startswith("shoal run: ")
    assert re.search(said.format(python=re.escape(sys.executable)), err), err
    assert alias in err


def test_hosts_that_are_not_there_are_said_so(hosts: SshHosts, launch: Launch, script: Write) -> None:
    path = script("print('started')")
    address = hosts.lab.addresses[1]  # where no sshd listens at port 22
    for host, said in (("nowhere", "there is no host nowhere"), (address, f"{address} cannot be reached: .*refused")):
        code, out, err = launch("-np", "2", "-H", f"localhost:1,{host}:1", path).finish()
        assert (code, out) == (255, ""), err
        assert re.match(f"shoal run: {said}.*\n$", err), err


def test_a_port_and_a_key_can_be_given(hosts: SshHosts, launch: Launch, script: Write) -> None:
    path = script("print('started')")
    words = ("-np", "1", "-H", hosts.lab.addresses[1], "-p", str(hosts.ports["h1"]), "-i", hosts.key)
    assert launch(*words, path).finish() == (0, "[0] started\n", "")


def test_an_address_is_ours_where_an_interface_has_it(hosts: SshHosts, launch: Launch, script: Write) -> None:
    """Neither where it can be listened on, nor only if packets to it would come from it."""
    here = hosts.lab.hosts[0]
    assert write_setting(here.namespace, "net/ipv4/ip_nonlocal_bind", "1")
    for address in ("10.199.0.1/24", "10.199.0.2/24"):
        subprocess.run(here.command(["ip", "address", "add", address, "dev", "lo"]), check=True)
    ours = "from shoal.processes.hosts import is_own; import sys; print(*map(is_own, sys.argv[1:]))"
    addresses = [
        *hosts.lab.addresses[:2],
        "10.199.0.2",
        "127.0.0.2",
        "::1",
        "fe80::7%lo",
        f"::ffff:{hosts.lab.addresses[0]}",
    ]
    found = subprocess.run(here.command([sys.executable, "-c", ours, *addresses]), stdout=subprocess.PIPE, check=True)
    assert found.stdout.split() == [b"True", b"False", b"True", b"True", b"True", b"False", b"True"]


def test_what_lies_in_the_home_there_is_not_imported(
    hosts: SshHosts, launch: Launch, script: Write, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "random.py").write_text("raise SystemExit('a module of the user')\n")
    go = f"ForceCommand sh -c 'cd {home}; eval \"$SSH_ORIGINAL_COMMAND\"'"
    for index in (1, 2, 3):
        hosts.serve(index, f"at-home-{index}", go)
    words = ("-np", "2", "-H", "at-home-1,at-home-2", "--server-hosts", "at-home-3")
    code, out, err = launch(*words, script("print('started')"), PYTHONPATH="::here").finish()
    assert (code, err) == (0, "")
    assert {"[0] started", "[1] started"} <= set(out.splitlines())


def test_a_machine_with_two_names_is_one_node(hosts: SshHosts, launch: Launch, script: Write) -> None:
    hosts.serve(1, "h1-too")
    path = script("print('started')")
    code, out, err = launch("-np", "2", "-H", "h1,h1-too", path).finish()
    assert (code, out) == (255, "")
    assert err == "shoal run: h1 and h1-too are the same machine: name it once, with all its slots\n"
    code, out, err = launch("-np", "2", "-H", "h1,h2", "--server-hosts", "h1-too", path).finish()
    assert (code, out) == (255, "")
    assert err.startswith("shoal run: h1-too is the machine of h1, which has ranks, "), err


@pytest.mark.slow
def test_hosts_behind_a_jump_host_reach_rank_0_here(hosts: SshHosts, launch: Launch, script: Write) -> None:
    hosts.serve(3, "behind", client="ProxyJump h1")
    path = script("""
        import numpy, shoal
        shoal.init()
        print("mean", shoal.allreduce(numpy.full(3, float(rank)))[0], os.environ["MASTER_ADDR"])
    """)
    code, out, err = launch("-np", "2", "-H", "localhost:1,behind:1", path).finish()
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{rank}] mean 0.5 {hosts.lab.addresses[0]}" for rank in range(2)]


@pytest.mark.slow
def test_a_job_goes_on_while_its_launcher_is_stopped_by_the_terminal(launch: Launch, script: Write) -> None:
    path = script("""
        print("pid", os.getpid(), flush=True)
        time.sleep(8)
        print("trained")
    """)
    launcher = launch("-np", "2", "-H", "h1:1,h2:1", path, SHOAL_PEER_TIMEOUT="1")
    pids = [int(line.split()[-1]) for line in launcher.wait_for(2, "pid")]
    launcher.process.send_signal(signal.SIGTSTP)
    time.sleep(5)  # more than twice the peer timeout
    assert Path(f"/proc/{launcher.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    assert all(map(is_running, pids))
    launcher.process.send_signal(signal.SIGCONT)
    code, out, err = launcher.finish()
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[0] trained", "[1] trained"]


@pytest.mark.slow
def test_two_stops_by_the_terminal_at_once_are_one(launch: Launch, script: Write) -> None:
    path = script("print('ready', flush=True)\ntime.sleep(7)\nprint('trained')")
    launcher = launch("-np", "1", "-H", "h1:1", path, SHOAL_PEER_TIMEOUT="1")
    launcher.wait_for(1, "ready")
    for _ in range(2):
        launcher.process.send_signal(signal.SIGTSTP)
        time.sleep(0.1)
    time.sleep(0.5)
    launcher.process.send_signal(signal.SIGCONT)
    assert launcher.finish() == (0, "[0] trained\n", "")


@pytest.mark.slow
def test_a_cut_host_is_noticed_where_the_user_shares_connections(
    hosts: SshHosts, launch: Launch, script: Write
) -> None:
    """A shared connection would have the keepalives of whoever opened it: none."""
    hosts.serve(3, "shared", client=f"ControlMaster auto\n ControlPath {hosts.folder}/socket\n ControlPersist 60")
    opened = hosts.lab.hosts[0].start([hosts.ssh, "shared", "echo open; exec sleep 60"], stdout=subprocess.PIPE)
    assert opened.stdout is not None
    assert opened.stdout.readline() == b"open\n"
    launcher = launch("-np", "1", "-H", "shared:1", script(FAMILY), SHOAL_PEER_TIMEOUT="3")
    pids = pids_of(launcher, 1)
    hosts.lab.hosts[3].cut()
    try:
        started = time.monotonic()
        code, _, err = launcher.finish()
        assert code == 255
        assert time.monotonic() - started < 15
        assert all_gone(pids, 20)
        assert "shared is lost" in err
    finally:
        hosts.lab.hosts[3].mend()
        opened.kill()
        opened.wait()
        subprocess.run([hosts.ssh, "-O", "exit", "shared"], capture_output=True, check=False)
