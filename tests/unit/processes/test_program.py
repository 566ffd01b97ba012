"""What ``shoal run`` makes of the words that it is given, before anything is started."""

import os
import sys
from pathlib import Path

import pytest

from shoal.processes import as_horovod, program_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, and a folder ``bin`` in it that is all of the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_python_script_is_run_by_our_own_interpreter(here: Path) -> None:
    executable(here / "train.py", "#!/usr/bin/env python2\n")
    assert program_of("train.py", ["-n", "7"]).command == (sys.executable, "train.py", "-n", "7")
    (here / "train").write_text("print('no suffix')")
    assert program_of("train", []).command == (sys.executable, "train")
    (here / "package").mkdir()
    (here / "package" / "__main__.py").touch()
    assert program_of("package", []).command == (sys.executable, "package")
    assert program_of("package.train", ["a"], module=True).command == (sys.executable, "-m", "package.train", "a")


def test_a_bare_name_is_looked_for_on_the_path_before_this_folder(here: Path) -> None:
    python = executable(here / "bin" / "python")
    (here / "python").mkdir()  # as many repositories have
    assert program_of("python", ["train.py"]).command == (str(python), "train.py")
    executable(here / "tool")
    assert program_of("tool", []).command == ("./tool",)
    on_the_path = executable(here / "bin" / "tool")
    assert program_of("tool", []).command == (str(on_the_path),)
    assert program_of("./tool", []).command == ("./tool",)


def test_python_is_ours_where_the_path_has_none(here: Path) -> None:
    for name in ("python", "python3"):
        assert program_of(name, ["-m", "x"]).command == (sys.executable, "-m", "x")
    with pytest.raises(ValueError, match=r"no program 'python2'"):
        program_of("python2", ["-m", "x"])


@pytest.mark.parametrize(
    ("name", "first", "is_python"),
    [
        ("python3.12", "", True),
        ("pypy3", "", True),
        ("python3.14t", "", True),
        ("train", "#!/usr/bin/env python3\n", True),
        ("train", "#!/bin/bash\n", False),
        ("env", "", False),
    ],
)
def test_whether_a_program_is_python_is_known(here: Path, name: str, first: str, is_python: bool) -> None:
    executable(here / "bin" / name, first)
    assert program_of(name, []).is_python == is_python


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("gone.py", r"there is no file 'gone.py' \(for a module, use -m\)"),
        ("./gone", r"there is no file './gone'"),
        ("gone", r"there is no program 'gone' on the PATH, and no file of that name here \(for a module, use -m\)"),
        ("train", r"there is no program 'train': did you mean train.py\?"),
        ("folder", r"'folder' is a folder without a __main__.py"),
        ("LR=0.1", r"'LR=0.1' is no program: to set a variable for the ranks, write env LR=0.1 before the program"),
        (
            "run.sh",
            r"'run.sh' is neither a Python script nor executable: say what runs it \(for example: bash run.sh\)",
        ),
        ("bashed", r"'bashed' is neither a Python script nor executable"),
    ],
)
def test_what_is_not_there_is_said_with_what_to_type(here: Path, word: str, said: str) -> None:
    (here / "train.py").touch()
    (here / "folder").mkdir()
    (here / "run.sh").touch()
    (here / "bashed").write_text("#!/bin/bash\n")
    with pytest.raises(ValueError, match=said):
        program_of(word, ["python", "train.py"])


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py"],
        [f"{os.sep}opt{os.sep}bin{os.sep}mpirun", "-np", "2", "train.py"],
        ["srun", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["shoal", "run", "-n", "2", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["python3", "-u", "-W", "ignore", "-mtorch.distributed.launch", "train.py"],
    ],
)
def test_what_starts_ranks_of_its_own_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"starts ranks of its own, and so does shoal run"):
        program_of(words[0], words[1:])


def test_in_the_place_of_horovodrun_which_shoal_refuses_stands_shoal_run() -> None:
    with pytest.raises(ValueError, match=r"takes its place.*: shoal run -np 2 ") as refused:
        program_of("horovodrun", ["-np", "2", "python", "train.py"])
    assert "without shoal run" not in str(refused.value)


@pytest.mark.parametrize("words", [["-"], ["-u", "-W", "ignore", "-", "a"], ["/dev/stdin"]])
def test_a_program_from_standard_input_which_one_rank_has_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"from standard input, which rank 0 alone has"):
        program_of(sys.executable, words)


def test_a_script_with_a_launchers_words_among_its_arguments_is_run() -> None:
    words = ["-c", "print()", "-m", "torch.distributed.run"]
    assert program_of(sys.executable, words).command == (sys.executable, *words)
    words = ["-u", __file__, "-m", "torch.distributed.run"]
    assert program_of(sys.executable, words).command == (sys.executable, *words)


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["train.py", "--lr", "1"], ["{here}", "-m", "shoal.horovod", "train.py", "--lr", "1"]),
        (["python", "train.py", "-m"], ["{python}", "-m", "shoal.horovod", "train.py", "-m"]),
        (
            ["python", "-u", "-X", "dev", "train.py"],
            ["{python}", "-u", "-X", "dev", "-m", "shoal.horovod", "train.py"],
        ),
        (["python", "-u", "-m", "train", "-c"], ["{python}", "-u", "-m", "shoal.horovod", "-m", "train", "-c"]),
    ],
)
def test_a_script_of_horovods_is_run_by_shoals_door(here: Path, words: list[str], run: list[str]) -> None:
    python = executable(here / "bin" / "python")
    (here / "train.py").touch()
    program = as_horovod(program_of(words[0], words[1:]))
    assert list(program.command) == [word.format(here=sys.executable, python=python) for word in run]
    assert program.is_python


def test_a_module_of_horovods_is_run_by_shoals_door() -> None:
    program = as_horovod(program_of("package.train", ["--lr", "1"], module=True))
    assert program.command == (sys.executable, "-m", "shoal.horovod", "-m", "package.train", "--lr", "1")


@pytest.mark.parametrize("words", [["python", "-mtrain"], ["python", "-c", "1"], ["bash", "train.sh"], ["python"]])
def test_the_door_is_for_scripts_and_modules(here: Path, words: list[str]) -> None:
    executable(here / "bin" / "python")
    executable(here / "bin" / "bash")
    with pytest.raises(ValueError, match="--as-horovod is for a script or module that Python runs"):
        as_horovod(program_of(words[0], words[1:]))
