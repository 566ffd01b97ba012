"""Hosts of a lab that are reached by ssh: a real sshd on each, with a key, a port and a configuration of its own.

They listen on the hosts' addresses alone, which nothing but the lab reaches. Their names are known to ssh alone.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from lab_hosts import needs_lab
from launching import SECONDS, Launcher

from shoal.testing.lab import Lab

SSHD = shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))
FIRST_PORT = 2200

needs_sshd = [
    needs_lab,
    pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client"),
]


class SshHosts:
    """Where sshd answers on the hosts of ``lab``, by name the ``ports``; ``key`` is the user's, ``ssh`` a client
    with the user's configuration; ``launch``, from any of them."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.key = folder / "user"
        self.ssh = folder / "bin" / "ssh"
        self.ports: dict[str, int] = {}
        Path("/run/sshd").mkdir(exist_ok=True)  # the folder of its privilege separation, which Debian makes at boot
        folder.chmod(0o755)
        self._make_key("user")
        self._write_client()

    def serve(
        self, index: int, name: str, also: str = "", *, client: str = "", known: bool = True, welcome: bool = True
    ) -> None:
        """Starts sshd on a host, which ssh knows as ``name``. ``also``: what it is told besides; ``client``: what ssh is told.

        ``known``: whether its key is known; ``welcome``: whether the user's key is known to it.
        """
        assert SSHD is not None
        address, port = self.lab.hosts[index].address, FIRST_PORT + len(self.ports)
        self.ports[name] = port
        key = self._make_key(name)
        if known:
            with (self.folder / "known").open("a") as file:
                file.write(f"[{address}]:{port} {key}")
        with (self.folder / "config").open("a") as file:
            file.write(f"Host {name}\n HostName {address}\n Port {port}\n {client}\n")
        settings, log = self.folder / f"{name}.sshd", self.folder / f"{name}.log"
        # Of what is said twice, the first counts.
        settings.write_text(f"""{also}
            ListenAddress {address}:{port}
            HostKey {self.folder}/{name}
            AuthorizedKeysFile {self.folder / "user.pub" if welcome else "none"}
            PermitRootLogin yes
            PasswordAuthentication no
            UsePAM no
            StrictModes no
            PidFile none
        """)
        with log.open("wb") as file:
            command = [SSHD, "-D", "-e", "-f", str(settings)]
            self.lab.hosts[index].start(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        deadline = time.monotonic() + SECONDS
        while "Server listening" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)

    def launch(self, on: int, *arguments: str | Path, **environment: str) -> Launcher:
        """``shoal run`` on a host."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return Launcher(*arguments, host=self.lab.hosts[on], **{"PATH": path, **environment})

    def _make_key(self, name: str) -> str:
        """The public part."""
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
        subprocess.run(command, check=True)
        return (self.folder / f"{name}.pub").read_text()

    def _write_client(self) -> None:
        """A user's configuration, and an ssh that reads it: the real one looks where /etc/passwd says."""
        lines = [f"IdentityFile {self.folder}/user", f"UserKnownHostsFile {self.folder}/known", "User root"]
        (self.folder / "config").write_text("\n".join(lines) + "\n")
        self.ssh.parent.mkdir()
        self.ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/config "$@"\n')
        self.ssh.chmod(0o755)
