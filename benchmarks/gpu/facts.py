"""Facts about this machine: the GPU, its link to the host, processors, versions. Needs PyTorch, not Shoal."""

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import stage

GPU_FIELDS = (
    "name",
    "memory.total",
    "driver_version",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "compute_mode",
    "mig.mode.current",
    "clocks.max.sm",
)
TOOLS = ("nvidia-cuda-mps-control", "numactl", "mpirun", "c++", "cmake", "ninja")
MODULES = ("numpy", "click", "pytest", "hypothesis", "matplotlib", "scikit_build_core", "nanobind", "mpi4py")


def asked(command: Sequence[str]) -> str:
    """What a program says; why it says nothing, where it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=8, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no answer: {error}"
    return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()


def processors() -> dict[str, str]:
    wanted = {
        "Model name",
        "CPU(s)",
        "Thread(s) per core",
        "Socket(s)",
        "NUMA node(s)",
        "Hypervisor vendor",
        "L3 cache",
    }
    pairs = (line.partition(":")[::2] for line in asked(["lscpu"]).splitlines())
    found = {name.strip(): value.strip() for name, value in pairs if name.strip() in wanted}
    found["may be used"] = str(len(os.sched_getaffinity(0)))
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            found["memory"] = f"{int(line.split()[1]) / 2**20:.0f} GiB"
    shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").exists() else None
    found["/dev/shm"] = f"{shared.total / 2**30:.0f} GiB" if shared else "none"
    try:
        import resource

        found["memory that may be locked"] = str(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    except ValueError:
        pass
    return found


def gpu() -> dict[str, str]:
    fields = ",".join(GPU_FIELDS)
    said = asked(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    values = [value.strip() for value in said.split(",")]
    if len(values) != len(GPU_FIELDS):
        return {"nvidia-smi": said}
    return dict(zip(GPU_FIELDS, values, strict=True))


def stream_memory_operations() -> str:
    """What CUDA's driver library has, by the names that Shoal asks for. Whether they work, the stage "copies" tells."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    names = ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", "cuGetProcAddress_v2")
    return ", ".join(f"{name}: {'there' if hasattr(library, name) else 'missing'}" for name in names)


def versions() -> dict[str, str]:
    import torch
    import torch.distributed as dist

    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else None  # type: ignore[no-untyped-call]
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "NCCL": str(nccl),
        "CUDA devices": str(torch.cuda.device_count()),
        "glibc": " ".join(platform.libc_ver()),
        "Linux": platform.release(),
    }


def main() -> None:
    record = stage.Record()
    parts = {"gpu": gpu(), "processors": processors(), "versions": versions()}
    tools = {name: shutil.which(name) or "-" for name in TOOLS}
    modules = {name: "there" if find_spec(name) else "-" for name in MODULES}
    for name, found in {**parts, "tools": tools, "modules": modules}.items():
        record.keep(name, found)
        record.say(f"{name}: " + "; ".join(f"{key} {value}" for key, value in found.items()))
    operations = stream_memory_operations()
    record.keep("stream memory operations", operations)
    record.say(f"stream memory operations: {operations}")
    for command in (["nvidia-smi"], ["nvidia-smi", "topo", "-m"], ["lscpu"]):
        print(f"\n$ {' '.join(command)}\n{asked(command)}")


if __name__ == "__main__":
    main()
