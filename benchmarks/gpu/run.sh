#!/usr/bin/env bash
# What Shoal does on a machine with one GPU, stage by stage: run.py says which stages there are.
#
#     benchmarks/gpu/run.sh [STAGE ...]       a few, "first" or "rest"; all without
#     benchmarks/gpu/run.sh --rehearse        the same steps where no GPU is; shows nothing about GPUs
#
# Needs a python3 (or $PYTHON) that has PyTorch, numpy, click, pytest and hypothesis; nothing is fetched. The results
# are in $OUT if that is set, else in benchmarks/gpu/results.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" benchmarks/gpu/run.py "$@"
