"""Running iproute2: many commands in one process, and errors that say what to do.

Every run is bounded by SECONDS; what fails is a ConfigurationError with the command, the tool's own words, and what is
missing where that is known.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from shoal.errors import ConfigurationError

SECONDS = 30.0

# Where distributions put what only root needs, should PATH not say so.
_MORE_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
_FAILED_LINE = re.compile(r"^Command failed -:(\d+)$", re.MULTILINE)
_HINTS = (
    ("qdisc kind is unknown", "this kernel has no tbf shaper (CONFIG_NET_SCH_TBF, module sch_tbf: try modprobe)"),
    ("Unknown device type", "this kernel has no veth or no bridge (CONFIG_VETH, CONFIG_BRIDGE: try modprobe)"),
    ("Operation not supported", "this kernel lacks a part of it (CONFIG_NET_NS, CONFIG_VETH, CONFIG_BRIDGE)"),
    ("Operation not permitted", "in a container, root needs the capabilities SYS_ADMIN and NET_ADMIN (--privileged)"),
    ("Read-only file system", "in a container, root needs the capabilities SYS_ADMIN and NET_ADMIN (--privileged)"),
)


def find_tool(name: str) -> str:
    """The path of one of iproute2's programs. Raises ConfigurationError where it is not installed."""
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_MORE_FOLDERS)))
    if path is None:
        raise ConfigurationError(f"the lab needs {name!r}, which is not there: install iproute2")
    return path


def require_root() -> None:
    """Raises ConfigurationError unless this process is root's and iproute2 is installed."""
    if os.geteuid() != 0:
        raise ConfigurationError(
            f"the lab makes network namespaces, which needs root, and this process runs as user {os.geteuid()}: "
            "run it with sudo, or as root in a container with the capabilities SYS_ADMIN and NET_ADMIN"
        )
    for name in ("ip", "tc", "bridge"):
        find_tool(name)


def batch(tool: str, lines: Sequence[str], namespace: str | None = None) -> None:
    """Runs many commands of ip, tc or bridge, in a namespace if one is named, up to the first that fails."""
    if not lines:
        return
    done = _run([find_tool(tool), *_inside(namespace), "-batch", "-"], "".join(f"{line}\n" for line in lines))
    if done.returncode != 0:
        failed = _FAILED_LINE.search(done.stderr)
        line = lines[int(failed[1]) - 1] if failed and int(failed[1]) <= len(lines) else "-batch"
        raise _error(f"{tool} {line}", namespace, _FAILED_LINE.sub("", done.stderr))


def query(tool: str, arguments: Sequence[str], namespace: str) -> list[dict[str, Any]]:
    """What ``ip -json`` or ``tc -json`` says, a dict an object."""
    done = _run([find_tool(tool), *_inside(namespace), "-json", *arguments])
    if done.returncode != 0:
        raise _error(f"{tool} {' '.join(arguments)}", namespace, done.stderr)
    result: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return result


def inside(namespace: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs a program in a namespace; it becomes the program, so that signals and exit are its own."""
    return [find_tool("ip"), "netns", "exec", namespace, *arguments]


def write_setting(namespace: str, setting: str, value: str) -> bool:
    """Writes a file below /proc/sys as a namespace sees it; False where the kernel does not take the value."""
    done = _run(inside(namespace, ["/bin/sh", "-c", 'echo "$1" > "/proc/sys/$0"', setting, value]))
    return done.returncode == 0


def _inside(namespace: str | None) -> list[str]:
    return [] if namespace is None else ["-n", namespace]


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
    )


def _error(command: str, namespace: str | None, said: str) -> ConfigurationError:
    where = f" in {namespace}" if namespace else ""
    hints = [hint for words, hint in _HINTS if words in said]
    words = " ".join(said.split()) or "no reason given"
    return ConfigurationError("; ".join([f"the lab could not be built: {command!r}{where} said: {words}", *hints[:1]]))
