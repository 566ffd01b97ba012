"""Two ranks on the one GPU, under MPS where it can be had: the stress, and step times of a model that both train.

    python benchmarks/gpu/mps.py

Without MPS two processes take turns on a GPU, so that their kernels and copies never meet; under MPS they do. The
server is started here and ended here. Where it does not work this says so, and nothing else is run. A rehearsal runs
the same without it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import stage

CONTROL = "nvidia-cuda-mps-control"
ROUNDS = 150
# Whether the process has become a client of the server.
PROBE = "import torch; x = torch.ones(1 << 20, device='cuda'); print(float(x.sum()))"
HERE = Path(__file__).parent


@contextmanager
def server(record: stage.Record) -> Iterator[dict[str, str] | None]:
    """The environment of its clients, None if there is no server."""
    if stage.rehearses():
        record.say("MPS is not there in a rehearsal: the same without it")
        yield {}
        return
    if shutil.which(CONTROL) is None:
        record.say(f"no MPS: there is no {CONTROL} here")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="shoal-mps-") as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in environment.values():
            Path(path).mkdir()
        # In the foreground and in this process group: it is over when this stage is.
        daemon = subprocess.Popen(
            [CONTROL, "-f"], env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            time.sleep(1.0)
            yield environment if _works(environment, record) else None
        finally:
            _told("quit", environment)
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            for log in Path(folder, "log").glob("*.log"):
                print(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}")


def _works(environment: dict[str, str], record: stage.Record) -> bool:
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=25,
            check=False,
        )
    except subprocess.TimeoutExpired:
        record.say("no MPS: a client waits for ever")
        return False
    servers = _told("get_server_list", environment)
    if probe.returncode == 0 and servers:
        record.say(f"MPS: server {servers}")
        return True
    record.say(f"no MPS: servers {servers or 'none'}; a client: {(probe.stdout + probe.stderr).strip()[-200:]}")
    return False


def _told(command: str, environment: dict[str, str]) -> str:
    """What the server's control says to that."""
    try:
        done = subprocess.run(
            [CONTROL],
            input=command + "\n",
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=8,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no answer: {error}"
    return done.stdout.strip()


def run(program: str, arguments: Sequence[str], environment: dict[str, str], record: stage.Record) -> bool:
    """One of the other stages, with these arguments; what it says is said here."""
    own = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
    own.pop(stage.RECORD, None)
    command = [sys.executable, str(HERE / program), *arguments]
    print("$", *command, flush=True)
    with subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("result: "):
                record.say(line.removeprefix("result: ").rstrip())
            else:
                print(line, end="", flush=True)
    return process.returncode == 0


def main() -> int:
    record = stage.Record()
    rounds = str(12 if stage.rehearses() else ROUNDS)
    with server(record) as environment:
        if environment is None:
            record.keep("MPS", False)
            return 0
        record.keep("MPS", not stage.rehearses())
        right = run("stress.py", ["--rounds", rounds, "--only", "our wrapper, streams wait"], environment, record)
        arguments = ["--on-gpu", "2", "--model", "gpt2" if stage.rehearses() else "resnet50"]
        for name in ("alone", "shoal stream", "gloo"):
            arguments += ["--only", name]
        return 0 if run("steps.py", arguments, environment, record) and right else 1


if __name__ == "__main__":
    sys.exit(main())
