"""The compiler for wheels: Zig's Clang, which brings the headers and link stubs of every glibc, for any processor.

What it links runs with glibc 2.28 (GLIBC) or newer. Its C++ library (libc++) is linked into the product, so the one of
the machine, of whatever age, does not matter. The unwinder is the machine's (libgcc_s.so.1), as with GCC: glibc itself
unwinds with it where a thread is ended (pthread_exit, which Python 3.13 and older call for a daemon thread at exit), and it
must understand our frames, and our frames its context. Zig would link LLVM's; unwinder.c says how it does not.
"""

import importlib.util
import stat
import subprocess
from pathlib import Path

GLIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")

_HERE = Path(__file__).parent


def zig() -> Path:
    """Zig's program, from the package ziglang of this Python."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise SystemExit("no package ziglang: use make wheels, which installs it into an environment of its own")
    return Path(spec.origin).parent / "zig"


class Toolchain:
    """Programs that stand for c++, ar and ranlib, and the unwinder to link against, in `folder`."""

    def __init__(self, architecture: str, folder: Path) -> None:
        self.architecture = architecture
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        target = f"-target {architecture}-linux-gnu.{GLIBC}"
        self.compiler = self._program("c++", f'exec "{zig()}" c++ {target} "$@"')
        self.archiver = self._program("ar", f'exec "{zig()}" ar "$@"')
        self.indexer = self._program("ranlib", f'exec "{zig()}" ranlib "$@"')
        self.unwinder = self.folder / "libgcc_s.so.1"
        self._make_unwinder(target)

    def cmake_arguments(self) -> list[str]:
        return [
            f"-DCMAKE_CXX_COMPILER={self.compiler}",
            f"-DCMAKE_AR={self.archiver}",
            f"-DCMAKE_RANLIB={self.indexer}",
            # The same for what is optimized across files.
            f"-DCMAKE_CXX_COMPILER_AR={self.archiver}",
            f"-DCMAKE_CXX_COMPILER_RANLIB={self.indexer}",
            f"-DCMAKE_CXX_STANDARD_LIBRARIES={self.unwinder}",
        ]

    def _program(self, name: str, line: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def _make_unwinder(self, target: str) -> None:
        options = ["-w", "-O1", "-shared", "-nostdlib", "-Wl,-soname,libgcc_s.so.1"]
        names = ["-Wl,--version-script=unwinder.map", "unwinder.c"]
        command: list[str | Path] = [zig(), "cc", *target.split(), *options, *names, "-o", self.unwinder]
        subprocess.run(command, cwd=_HERE, check=True)
