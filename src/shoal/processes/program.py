"""What the words after ``shoal run``'s options mean: a Python script, or a program with its arguments.

A Python script is run by the interpreter that runs us. Everything else is a program and is started as a shell would start it: a
path as it is, a bare name as the PATH has it. So ``train.py``, ``python -u train.py``, ``env LR=0.1 python3 -m pkg`` and ``bash
train.sh`` all do what is written there. A program that cannot be started, or that would start ranks of its own, is a
ValueError with a message for the user.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_PYTHON_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz")
_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*t?")

# Of Python's options, those that take the next word with them. After -c come arguments.
_OPTIONS_WITH_A_WORD = ("-W", "-X", "--check-hash-based-pycs")

# Programs that start ranks of their own, by name; modules of Python that do.
_LAUNCHERS = {"torchrun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "horovodrun", "deepspeed"}
_LAUNCHERS_BY_FIRST_ARGUMENT = {("accelerate", "launch"), ("shoal", "run")}
_LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


@dataclass(frozen=True)
class Program:
    """``command``: its first word a path. ``is_python``: that is an interpreter, not a shell or a wrapper around one."""

    command: tuple[str, ...]
    is_python: bool


def program_of(word: str, arguments: Sequence[str], *, module: bool = False) -> Program:
    """What to start for these words. ``module``: ``word`` names a module, as after ``python -m``. Raises ValueError."""
    if module:
        _refuse_launching_module(word)
        return Program((sys.executable, "-m", word, *arguments), is_python=True)
    if word.endswith(_PYTHON_SUFFIXES) and Path(word).exists():
        return Program((sys.executable, word, *arguments), is_python=True)
    _refuse_launcher(word, arguments)
    path = _on_the_path(word) if os.sep not in word else None
    if path is None and _is_package(word):
        return Program((sys.executable, word, *arguments), is_python=True)
    if path is None and Path(word).is_file():
        path = word if os.sep in word else f".{os.sep}{word}"
    if path is None:
        raise ValueError(_nothing_there(word))
    if not os.access(path, os.X_OK):
        if _is_script_without_suffix(path):
            return Program((sys.executable, word, *arguments), is_python=True)
        raise ValueError(
            f"{word!r} is neither a Python script nor executable: say what runs it (for example: bash {word}), or chmod +x it"
        )
    return Program((path, *arguments), _runs_python(path))


def as_horovod(program: Program) -> Program:
    """The same script or module, to which ``import horovod`` is Shoal. Raises ValueError for what is none that Python runs."""
    path, *arguments = program.command
    if _INTERPRETER.fullmatch(Path(path).name):
        before = _options_before_the_program(arguments)
        if before is not None:
            return replace(program, command=(path, *arguments[:before], "-m", "shoal.horovod", *arguments[before:]))
    raise ValueError(
        "--as-horovod is for a script or module that Python runs (train.py, python train.py, or -m package.train): in anything "
        "else, write python -m shoal.horovod train.py where it says python train.py"
    )


def _options_before_the_program(arguments: Sequence[str]) -> int | None:
    """How many words of ``python ARGUMENTS`` come before its script, or the -m of its module; None where it runs neither."""
    words = enumerate(arguments)
    for index, word in words:
        if word in _OPTIONS_WITH_A_WORD:
            next(words, None)
        elif not word.startswith("-") or word == "-m":
            return index
        elif word == "-" or word.startswith(("-c", "-m")):
            return None
    return None


def _on_the_path(word: str) -> str | None:
    found = shutil.which(word)
    # Where shoal was called by its path, from an environment that is not activated, there may be no Python on the PATH.
    return found or (sys.executable if word in ("python", "python3") else None)


def _is_package(word: str) -> bool:
    """A folder that ``python FOLDER`` runs."""
    return Path(word, "__main__.py").is_file()


def _is_script_without_suffix(path: str) -> bool:
    first = _interpreter_line(path)
    return "python" in first if first else not Path(path).suffix


def _runs_python(path: str) -> bool:
    return bool(_INTERPRETER.fullmatch(Path(path).name)) or "python" in _interpreter_line(path)


def _interpreter_line(path: str) -> str:
    """What a file's first line says after ``#!``; empty where there is none."""
    try:
        with Path(path).open("rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    return os.fsdecode(first[2:].strip()) if first.startswith(b"#!") else ""


def _nothing_there(word: str) -> str:
    name, equals, _ = word.partition("=")
    if equals and name.isidentifier():
        return f"{word!r} is no program: to set a variable for the ranks, write env {word} before the program"
    if Path(word).is_dir():
        return f"{word!r} is a folder without a __main__.py: name the script in it, or a module with -m"
    if Path(f"{word}.py").is_file():
        return f"there is no program {word!r}: did you mean {word}.py?"
    if word.endswith(_PYTHON_SUFFIXES) or os.sep in word:
        return f"there is no file {word!r} (for a module, use -m)"
    return f"there is no program {word!r} on the PATH, and no file of that name here (for a module, use -m)"


def _refuse_launcher(word: str, arguments: Sequence[str]) -> None:
    name = Path(word).name
    if name in _LAUNCHERS:
        raise ValueError(_launches(name))
    if arguments and (name, arguments[0]) in _LAUNCHERS_BY_FIRST_ARGUMENT:
        raise ValueError(_launches(f"{name} {arguments[0]}"))
    if _INTERPRETER.fullmatch(name):
        _refuse_launching_module(_module_of(arguments))
        _refuse_standard_input(name, arguments)


def _refuse_launching_module(module: str) -> None:
    if module in _LAUNCHING_MODULES:
        raise ValueError(_launches(module))


def _refuse_standard_input(name: str, arguments: Sequence[str]) -> None:
    words = iter(arguments)
    for word in words:
        if word in _OPTIONS_WITH_A_WORD:
            next(words, None)
        elif word in ("-", "/dev/stdin"):
            raise ValueError(
                f"{' '.join((name, *arguments))} reads its program from standard input, which rank 0 alone has: write it to a "
                "file and name that"
            )
        elif not word.startswith("-") or word.startswith(("-c", "-m")):
            return


def _launches(name: str) -> str:
    if name == "horovodrun":
        return (
            "horovodrun starts ranks of its own, and so does shoal run, which takes its place: "
            "shoal run -np 2 -H host1:1,host2:1 python train.py"
        )
    return (
        f"{name} starts ranks of its own, and so does shoal run: each rank would become a job. Use one of them: shoal run -n N "
        f"train.py on this machine, or {name} without shoal run (Shoal reads who the ranks are from its variables)"
    )


def _module_of(arguments: Sequence[str]) -> str:
    """The module that ``python ARGUMENTS`` would run; empty if it is none."""
    words = iter(arguments)
    for word in words:
        if word in _OPTIONS_WITH_A_WORD:
            next(words, None)
        elif word == "-m":
            return next(words, "")
        elif word.startswith("-m"):
            return word[2:]
        elif not word.startswith("-") or word in ("-", "--", "-c"):
            return ""
    return ""
