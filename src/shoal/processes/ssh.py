"""The command that reaches another host, and what its failures mean.

It is the system's ssh client: it reads ~/.ssh/config, asks agents, goes over jump hosts (docs/decisions/ssh.md). It never asks
a person anything (BatchMode), forwards nothing, and notices within the peer timeout that the host is gone.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

CONNECT_SECONDS = 15
_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_SECONDS}",
    "ServerAliveCountMax=3",
    # Of the user's configuration, what is for people: it would run something else, or stay behind.
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ControlMaster=no",
    "ControlPath=none",  # a connection that is shared has keepalives of its own, or none
    "LogLevel=ERROR",
)


@dataclass(frozen=True)
class Ssh:
    """How all hosts are reached, where their configuration does not say it: the port, and the file of the private key.

    ``silence``: seconds without an answer after which a host is lost.
    """

    port: int | None = None
    identity: str | None = None
    silence: int = 15

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """Runs ``arguments`` on ``host`` (a name of ``hosts.parse_hosts``)."""
        path = shutil.which("ssh") or "/usr/bin/ssh"
        options = [
            word
            for option in (*_OPTIONS, f"ServerAliveInterval={max(1, self.silence // 3)}")
            for word in ("-o", option)
        ]
        options += ["-p", str(self.port)] if self.port is not None else []
        options += ["-i", self.identity] if self.identity is not None else []
        user, at, name = host.rpartition("@")
        return [path, *options, "--", f"{user}{at}{name}", f"exec {shlex.join(arguments)}"]


def explain(host: str, said: Sequence[str], code: int) -> str:
    """Why an agent has not said hello: from what ssh and the host wrote on stderr, and ssh's exit code."""
    words = "; ".join(said[-3:]) or f"nothing, and ended with exit code {code}"
    if code in _OF_A_SHELL:
        return f"{_NO_PYTHON.format(host=host, python=sys.executable)} (it said: {words})"
    for pattern, meaning in _MEANINGS:
        if any(pattern in line for line in said):
            return f"{meaning.format(host=host, python=sys.executable)} (it said: {words})"
    if code == _OF_SSH:
        return f"{host} cannot be reached: ssh said: {words}; `ssh {host} true` shows whether it can"
    return f"{sys.executable} on {host} did not begin: it said: {words}"


_OF_SSH = 255
_OF_A_SHELL = (126, 127)  # what it should run cannot be run, or is not there
_NO_PYTHON = (
    "{host} has no {python}: shoal run starts the Python that runs it here, so install Python and Shoal at that path on every host, "
    "or start from a file system that all hosts have"
)
_OTHER_VERSION = "{host} has another version of Shoal, for {python}: install the same on every host"
# Parts of what OpenSSH and Python write, in the order in which they decide.
_MEANINGS = (
    (
        "cannot start",
        "{host} cannot be reached: there is no ssh on the PATH, install OpenSSH's client",
    ),
    (
        "Permission denied",
        "{host} wants a password, or a key that is not here: let ssh in without being asked (ssh-copy-id {host}; ssh-add for a "
        "key with a passphrase; -i for another key), until `ssh -o BatchMode=yes {host} true` works",
    ),
    (
        "Host key verification failed",
        "the key of {host} is not the one that ssh knows, or is not known yet: run `ssh {host} true` once and compare it",
    ),
    (
        "Could not resolve hostname",
        "there is no host {host}: is the name right? It is one of DNS, /etc/hosts or ~/.ssh/config",
    ),
    (
        "No module named 'shoal.processes",
        _OTHER_VERSION,
    ),
    ("No module named shoal.processes", _OTHER_VERSION),
    ("No module named", "Shoal is not installed on {host} for {python}: install it on every host"),
)
