"""What the command line refuses, and in which words."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli import main


def shoal(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, arguments)


def test_help_lists_the_commands() -> None:
    result = shoal("--help")
    assert result.exit_code == 0
    assert "run" in result.output
    assert "server" in result.output


def test_run_needs_a_number_of_ranks(tmp_path: Path) -> None:
    result = shoal("run", str(tmp_path / "train.py"))
    assert result.exit_code == 2
    assert "-n" in result.output


def test_a_missing_script_is_named() -> None:
    result = shoal("run", "-n", "2", "no-such-file.py")
    assert result.exit_code == 2
    assert "there is no file 'no-such-file.py'" in result.output
    assert "-m" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "4", "train.py"], "--nproc-per-node is torchrun's: here -n is the number of all ranks"),
        (["--nproc_per_node=4", "train.py"], "--nproc_per_node is torchrun's"),
        (["-n", "4", "--machinefile", "hosts", "train.py"], "--machinefile is mpirun's: here it is -H host1:4,host2:4"),
        (["-np", "4", "--gloo", "python", "train.py"], "--gloo is horovodrun's: there is one way to start ranks"),
        (["-np", "4", "--network-interface", "eth0", "train.py"], "set SHOAL_INTERFACE"),
        (["-np", "4", "--fusion-threshold-mb", "32", "train.py"], "set SHOAL_FUSION_MB"),
        (["-np", "4", "--min-np", "2", "train.py"], "the loss of one ends it"),
        (["-np", "4", "--start-timeout=60", "train.py"], "one that does not answer in 15 seconds is an error"),
        (["-np", "4", "--check-build", "train.py"], "--check-build is horovodrun's"),
        (["-n", "4", "--node_rank", "0", "train.py"], "--node_rank is torchrun's: here -n is the number of all ranks"),
        (["-n", "4", "--max-restarts", "3", "train.py"], "--max-restarts is torchrun's: the loss of a rank ends"),
        (["-n", "4", "--log-dir", "logs", "train.py"], "--log-dir is torchrun's: the output of all ranks is"),
        (["-n", "4", "-t", "3", "train.py"], "-t is torchrun's: the output of all ranks is"),
        (["-np", "4", "-x", "NAME=value", "train.py"], "-x is mpirun's: every rank has this environment"),
        (["-np", "4", "--bind-to", "none", "train.py"], "--bind-to is mpirun's: ranks fill the hosts in order"),
        (["-np", "4", "-bind-to", "none", "train.py"], "-bind-to is mpirun's: ranks fill the hosts in order"),
        (["-np", "4", "-mca", "btl", "tcp", "train.py"], "-mca is mpirun's: there is no MPI here"),
        (["-np", "4", "-genvlist", "A,B", "train.py"], "-genvlist is mpirun's: every rank has this environment"),
        (["-np", "4", "-z", "train.py", "-zone", "x"], "No such option"),
        (["-n", "4", "torchrun", "--nproc-per-node", "4", "train.py"], "torchrun starts ranks of its own"),
        (["-n", "4", "-m", "torch.distributed.run", "train.py"], "torch.distributed.run starts ranks of its own"),
        (["-n", "4", "pythn", "train.py"], "there is no program 'pythn' on the PATH"),
        (["-n", "4", "--node", "2", "train.py"], "--nodes"),
    ],
)
def test_words_that_cannot_be_run_have_a_clear_answer(words: list[str], said: str) -> None:
    result = shoal("run", *words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--servers", "2"], "with one node there is nothing for a server to do: add --nodes"),
        (["--nodes", "5"], "4 ranks cannot be spread over 5 nodes"),
        (["--nodes", "0"], "--nodes"),
        (["--servers", "-1", "--nodes", "4"], "--servers"),
        (["-H", "a:2,b:1"], "4 ranks need 4 slots, and a:2,b:1 has 3"),
        (["-H", "a:2,b:two"], "'two' is no number of slots"),
        (["-H", "-oProxyCommand=x:4"], "'-oProxyCommand=x' is not the name or address of a host"),
        (["-H", "a:2,b:2", "--nodes", "2"], "each host is a node: leave out --nodes"),
        (["-H", "a:2,b:2", "--servers", "2"], "say on which hosts the servers are: --server-hosts"),
        (["-H", "a:4,b:2", "--server-hosts", "c"], "with all ranks on one host there is nothing for a server to do"),
        (["--nodes", "4", "--server-hosts", "c"], "say where the ranks are (-H or --hostfile)"),
        (["-H", "a:2,b:2", "--hostfile", __file__], "test_cli.py, line 1"),
        (["--hostfile", "no-such-file"], "no-such-file: No such file or directory"),
        (["-p", "2222"], "-p and -i are for ssh to other hosts"),
        (["-H", "a:4", "-i", "no-such-key"], "'no-such-key' does not exist"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], said: str) -> None:
    result = shoal("run", "-n", "4", *arguments, __file__)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("variable", ["SHOAL_PEER_TIMEOUT", "SHOAL_PORT_RANGE"])
def test_a_wrong_variable_of_the_launchers_is_refused_before_anything_is_started(variable: str) -> None:
    result = shoal("run", "-n", "2", "-H", "a:2", __file__, **{variable: "soon"})
    assert result.exit_code == 2
    assert variable in result.output


def test_servers_of_its_own_and_others_do_not_mix() -> None:
    result = shoal("run", "-n", "2", "--nodes", "2", "--servers", "1", __file__, SHOAL_SERVERS="127.0.0.1:7077")
    assert result.exit_code == 2
    assert "SHOAL_SERVERS is set" in result.output


def test_a_server_with_a_wrong_setting_says_so_in_one_line() -> None:
    result = shoal("server", "--port", "0", SHOAL_SECRET="short")
    assert result.exit_code == 1
    assert "SHOAL_SECRET" in result.output
    assert len(result.output.strip().splitlines()) == 1
    result = shoal("server", "--port", "0", SHOAL_SERVRES="127.0.0.1:1")
    assert result.exit_code == 1
    assert "SHOAL_SERVERS" in result.output


def test_a_server_beyond_loopback_needs_a_secret() -> None:
    result = shoal("server", "--host", "0.0.0.0", "--port", "0")
    assert result.exit_code == 1
    assert "SHOAL_SECRET" in result.output


@contextlib.contextmanager
def serving(**variables: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A ``shoal server`` with these variables of Shoal and no others, and its port."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    command = [sys.executable, "-m", "shoal.cli", "server", "--port", "0"]
    with subprocess.Popen(
        command,
        env={**environment, "SHOAL_SECRET": "the secret of the test", "PYTHONUNBUFFERED": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        watchdog = threading.Timer(30, server.kill)
        watchdog.start()
        try:
            assert server.stdout is not None
            listening = server.stdout.readline()
            assert "listening on 127.0.0.1:" in listening, server.communicate()
            yield server, int(listening.split("127.0.0.1:")[1].split(",")[0])
        finally:
            watchdog.cancel()
            with contextlib.suppress(ProcessLookupError):
                server.kill()


@pytest.mark.parametrize(
    "variables", [{"SHOAL_COLOCATED": "never"}, {"SHOAL_FUSION_MB": "many"}, {"RANK": "3", "WORLD_SIZE": "2"}]
)
def test_a_server_starts_whatever_is_said_to_ranks(variables: dict[str, str]) -> None:
    with serving(**variables) as (server, _):
        server.send_signal(signal.SIGTERM)
        assert server.communicate(timeout=10)[1] == ""
        assert server.returncode == 0


@pytest.mark.parametrize(("level", "said"), [("info", True), ("warning", False)])
def test_what_a_server_logs_is_said_by_the_variable(level: str, said: bool) -> None:
    with serving(SHOAL_LOG=level) as (server, port):
        with socket.create_connection(("127.0.0.1", port), 5) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser\r\nAccept: */*\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert browser.recv(1) == b""
        server.send_signal(signal.SIGTERM)
        output = server.communicate(timeout=10)[1]
        assert ("shoal: INFO: the server at 127.0.0.1" in output and "not_shoal" in output) == said, output
        assert bool(output) == said
