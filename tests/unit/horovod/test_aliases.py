"""``python -m shoal.horovod``: a script that says ``import horovod`` has this door."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import horovod
import horovod.torch as hvd
import shoal.horovod.torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet
from horovod.common.util import gloo_built, mpi_built
from horovod.torch.compression import Compression
from horovod.torch.mpi_ops import allreduce_async_, synchronize
from horovod.torch.optimizer import DistributedOptimizer

assert hvd is shoal.horovod.torch and shoal.horovod.torch.__spec__.name == "shoal.horovod.torch"
assert DistributedOptimizer is hvd.DistributedOptimizer and ProcessSet is hvd.ProcessSet
assert HorovodInternalError is hvd.HorovodInternalError
assert gloo_built() and not mpi_built()
assert issubclass(HorovodInternalError, RuntimeError) and HostsUpdatedInterrupt(True).skip_sync
hvd.init()
import torch
for part in ("mxnet", "mxnet.mpi_ops", "spark", "runner.launch", "torch.elastic.state"):
    try: __import__(f"horovod.{part}")
    except ModuleNotFoundError as error: print(error)
try: hvd.elastic.run
except RuntimeError as error: print(error)
assert not hasattr(hvd.elastic, "TorchState")
try: from horovod.torch.elastic import TorchState
except ImportError: pass
print(sys.argv[1:], __name__, hvd.rank(), hvd.size(), hvd.allreduce(torch.ones(2)).tolist(), horovod.__version__)
"""


def run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "shoal.horovod", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)


def test_a_script_finds_horovod_and_hears_what_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "train.py", "--lr", "0.1")
    *not_there, last = done.stdout.splitlines()
    assert last == "['--lr', '0.1'] __main__ 0 1 [1.0, 1.0] 0.28.1", done.stderr
    assert len(not_there) == 6
    assert all("Shoal has no door for it yet" in line for line in not_there[:2])
    assert all("start the ranks with shoal run" in line for line in not_there[2:4])
    assert not_there[4].startswith("horovod.torch.elastic.state has no counterpart in shoal.horovod")
    assert not_there[5].startswith("hvd.elastic.run is not there yet")


PARENT = """
import multiprocessing
import sys

import horovod
from horovod.common.util import gloo_built

def work():
    import shoal.horovod
    return horovod is shoal.horovod and gloo_built() and sys.path.index(PLACE)

PLACE = next(place for place in sys.path if place.endswith("spawned"))

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.apply(work))
"""


@pytest.mark.parametrize("words", [("train.py",), ("-m", "train")])
def test_processes_that_a_script_starts_find_horovod(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, PARENT, *words)
    assert done.stdout.splitlines() == ["fork 1", "spawn 1", "forkserver 1"], done.stderr


@pytest.mark.parametrize("words", [(), ("-m",), ("--help",)])
def test_without_a_script_it_says_what_it_wants(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, "", *words)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m shoal.horovod [-m] SCRIPT")


def test_before_init_everything_says_to_call_it(tmp_path: Path) -> None:
    script = """
import torch, horovod.torch as hvd
for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous, hvd.stop_timeline, hvd.barrier, hvd.join,
             lambda: hvd.allreduce(torch.ones(1)), lambda: hvd.add_process_set([0]),
             lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1)], 0.1))):
    try: call()
    except ValueError as error:
        assert "call hvd.init() first" in str(error) and isinstance(error, hvd.HorovodInternalError), error
    else: raise AssertionError(call)
hvd.shutdown()
assert not hvd.is_initialized() and hvd.synchronize(0) is None
for wrong in ([1], object()):
    try: hvd.init(wrong)
    except ValueError as error: print(str(error)[:20])
hvd.init([], process_sets="dynamic")
hvd.init([0])
try: hvd.init(process_sets=[hvd.ProcessSet([0])])
except ValueError as error: print("have the same ranks" in str(error), hvd.is_initialized())
"""
    done = run(tmp_path, script, "train.py")
    assert done.stdout.splitlines()[0] == "comm=[1]: a job has ", done.stderr
    assert done.stdout.splitlines()[2:] == ["True True"], done.stderr
