#!/usr/bin/env bash
# Shoal on a machine with one GPU, in three minutes: installed, its CUDA tests, a training of two ranks beside one process.
#
#     benchmarks/gpu/smoke.sh [RESULTS]        RESULTS: a folder, by default build/gpu-smoke
#
# Needs a python3 (or $PYTHON) that has PyTorch, numpy, click and pytest; nothing is fetched. A wheel in dist/ is installed if it
# fits, else Shoal is built here, with the scikit-build-core, nanobind, cmake and ninja that this Python has.
#
# Each stage has a process group and a time limit of its own. What came of it is in RESULTS/summary.txt when it ends, what it
# printed in RESULTS/STAGE.log. A stage that fails stops none of the next. The exit code is 0 if all have passed.
#
# Without a CUDA device it is a rehearsal: the same steps, with tensors on the CPU where the device would be. That shows that the
# script works, and nothing about GPUs. It may take ten times as long, on few processors.
set -uo pipefail
cd "$(dirname "$0")/../.."

limit=180   # seconds for everything
patience=1  # how many times as long everything may take
readonly python=${PYTHON:-python3}
readonly results=$(realpath -m "${1:-build/gpu-smoke}")
readonly venv=$results.venv
readonly venv_python=$venv/bin/python
readonly summary=$results/summary.txt
failed=0

say() { echo "$*" | tee -a "$summary"; }

# stage NAME SECONDS: the function stage_NAME, for so long at most.
stage() {
  local name=$1 seconds=$(($2 * patience)) left=$((limit - SECONDS)) status=0 begun=$SECONDS outcome
  ((seconds < left)) || seconds=$left
  if ((seconds <= 0)); then
    say "$name: NOT RUN: no time left"
    failed=1
    return
  fi
  # timeout makes the process group, whose number is that of its process.
  timeout --kill-after=5 "$seconds" bash -c "stage_$name" > "$results/$name.log" 2>&1 < /dev/null &
  local group=$!
  wait "$group" || status=$?
  kill -KILL -- "-$group" 2> /dev/null # what the stage has left running
  case $status in
    0) outcome=passed ;;
    124 | 137) outcome="FAILED: cut off after $seconds s" ;;
    *) outcome="FAILED with status $status" ;;
  esac
  ((status == 0)) || failed=1
  say "$name: $outcome ($((SECONDS - begun)) s)"
  grep '^result: ' "$results/$name.log" | sed 's/^result: /    /' | tee -a "$summary"
  ((status == 0)) || tail -n 15 "$results/$name.log" | sed 's/^/    | /' | tee -a "$summary"
}

stage_facts() {
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2> /dev/null | sed 's/^/result: GPU /'
  echo "result: $(nproc) processors, $(awk '/MemTotal/ {print int($2 / 1048576)}' /proc/meminfo) GiB, Linux $(uname -r)"
  "$python" - << 'END'
import platform, torch
from torch import distributed as dist
print(f"result: Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {dist.is_nccl_available()}")
print(f"result: {torch.cuda.device_count()} CUDA devices")
END
}

stage_install() {
  set -e
  "$python" -m venv --system-site-packages --without-pip --clear "$venv"
  # A virtual environment made in another one sees the system's packages, not the other's.
  "$python" -c 'import sys, sysconfig; sys.prefix != sys.base_prefix and print(sysconfig.get_path("purelib"))' \
    > "$("$venv_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/parent.pth"
  local pip=("$python" -m pip --python "$venv_python" --disable-pip-version-check install --no-deps --no-index --force-reinstall)
  PATH=$(dirname "$(command -v "$python")"):$PATH
  export PATH
  local wheel how=""
  for wheel in dist/*.whl; do
    if [[ -z $how && -e $wheel ]] && "${pip[@]}" "$wheel"; then how="the wheel $(basename "$wheel")"; fi
  done
  if [[ -z $how ]]; then
    "${pip[@]}" --no-build-isolation .
    how="built here"
  fi
  cd /
  "$venv_python" -c "import shoal._native, shoal.torch; print('result: $how,', shoal.__file__)"
}

stage_tests() {
  set -o pipefail
  "$venv_python" -m pytest -p no:cacheprovider -v --durations 5 tests/jobs/test_cuda.py | tee /dev/stderr |
    grep -E '^(FAILED|ERROR|SKIPPED)|^=+ .*(passed|failed|skipped|error).* =+$' | sed 's/^/result: /'
}

stage_training() {
  local status=0
  train() { # the job, then what the ranks do
    "$venv_python" -m shoal.cli run -n 2 $1 benchmarks/gpu/training.py $2 | tee /dev/stderr | sed 's/^/result: /' || status=1
  }
  set -o pipefail
  train "" "$device $device"
  train "--nodes 2 --servers 1" "$device cpu"
  train "" "$device $device --wrapper torch"
  train "" "$device cpu --wrapper torch"
  return $status
}

rm -rf "$results"
mkdir -p "$results"
device=cuda
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
  device=cpu
  patience=10
  limit=$((limit * patience))
  export CUDA_TESTS_REHEARSAL=1
  say "no CUDA device: rehearsal on the CPU, which shows nothing about GPUs"
fi
export device python venv venv_python
export -f stage_facts stage_install stage_tests stage_training

stage facts 20
stage install 90
stage tests 100
stage training 60
if ((failed)); then say "smoke: FAILED in $SECONDS s"; else say "smoke: passed in $SECONDS s, $device"; fi
exit $failed
