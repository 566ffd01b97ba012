"""Whether examples/hsdp.py does what it says with 2 × 2 ranks that have one GPU: NCCL inside the nodes, Shoal between
them.

    python benchmarks/gpu/hsdp.py

NCCL refuses two ranks on one GPU. Each rank says that it is on another host (NCCL_HOSTID), so that they talk through
sockets: good for whether it works, not for how fast.
"""

import os
import runpy
import subprocess
import sys

import stage

RANKS, SHARD = 4, 2
RANK_OPTION = "--rank"
EXAMPLE = str(stage.ROOT / "examples/hsdp.py")


def rank() -> None:
    os.environ |= {"NCCL_HOSTID": f"host{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    sys.argv = [EXAMPLE, "--shard", str(SHARD)]
    runpy.run_path(EXAMPLE, run_name="__main__")


def main() -> int:
    record = stage.Record()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command += [__file__, RANK_OPTION]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = ""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            print(line, end="", flush=True)
            said = line.strip() if "from one process" in line else said
    inside = "gloo" if stage.rehearses() else "NCCL"
    right = job.returncode == 0 and said != ""
    record.say(f"{inside} inside the nodes: {said if right else f'FAILED: status {job.returncode}'}")
    return 0 if right else 1


if __name__ == "__main__":
    if sys.argv[1:] == [RANK_OPTION]:
        rank()
    else:
        sys.exit(main())
