"""Native tests of the core as it is built for aarch64, under qemu-user.

    python packaging/aarch64_test.py [TEST ...]

Run by make aarch64-test. Shows that the kernels for ARM give the bits of the reference and of x86_64's kernels, that the
bytes on the wire are those of x86_64, and that the protocol's state machines and a node's shared memory do what they
should. It cannot show that locks and shared counters are right on ARM: qemu keeps the strict memory order of the machine
that it runs on. What of the other tests cannot run there, and why: docs/decisions/wheels.md.

Needs qemu and glibc for aarch64: Debian's qemu-user, libc6-arm64-cross and libgcc-s1-arm64-cross.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from toolchain import Toolchain
from wheels import BUILD, build_core

TESTS = (
    "reduce_test", "reduce_processor_test", "bits_test", "wire_test", "sharding_test", "coordinator_test", "worker_test",
    "server_test", "server_endings_test", "shm_test", "engine_test",
)  # fmt: skip
QEMU = "qemu-aarch64"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # where the packages put glibc
TEST_SECONDS = 1800
KERNELS_USED = "  neon\n  portable\n"  # what reduce_processor_test prints: the kernels that reduce_test has compared


def run(program: Path) -> bool:
    """Whether a test passes. Prints how long it took, and what it has printed where it fails."""
    start = time.monotonic()
    command: list[str | Path] = [QEMU, "-L", SYSTEM, program]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"{program.name}: not done in {TEST_SECONDS} s", flush=True)
        return False
    passed = ran.returncode == 0 and (program.name != "reduce_processor_test" or KERNELS_USED in ran.stdout)
    last = (ran.stdout.strip().splitlines() or ["printed nothing"])[-1]
    print(f"{program.name}: {last} ({time.monotonic() - start:.0f} s)", flush=True)
    if not passed:
        print(f"{ran.stdout}{ran.stderr}ended with {ran.returncode}", flush=True)
    return passed


def main() -> None:
    if shutil.which(QEMU) is None or not (SYSTEM / "lib" / "libgcc_s.so.1").exists():
        raise SystemExit(
            "no qemu or glibc for aarch64: apt-get install qemu-user libc6-arm64-cross libgcc-s1-arm64-cross"
        )
    tests = sys.argv[1:] or TESTS
    folder = build_core(Toolchain("aarch64", BUILD / "aarch64" / "toolchain"), tests).parent
    if failed := [name for name in tests if not run(folder / name)]:
        sys.exit(f"failed on aarch64: {', '.join(failed)}")


if __name__ == "__main__":
    main()
