"""Whether this machine lets anybody make a lab. Asked of the system itself: a lab that fails here is a test that fails."""

import shutil
import subprocess

import pytest


def _allowed() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "--net", "true"], capture_output=True).returncode == 0


needs_lab = pytest.mark.skipif(
    not _allowed(),
    reason="a lab makes network namespaces, which needs root (in containers: CAP_SYS_ADMIN and CAP_NET_ADMIN)",
)
