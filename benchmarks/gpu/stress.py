"""300 rounds of stress: two ranks train while everything is done that could show a missing wait (stress_ranks.py).

    python benchmarks/gpu/stress.py [--rounds N] [--only NAME]

The parameters have to be those of one process, but for the last bits, and the same bits in two runs. Both ranks have
the one GPU, but in the last case, where one is on the CPU. The exit code is 1 if anything else comes out.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import stage

from shoal.testing import Cluster, Nursery, RankFailed, TimeLimitReached, ranks_from

ALLOWED = 1e-9
SECONDS = 60
# After so many rounds the order of gradients has been renewed (shoal/gradients/arrival_order.py).
RENEWS = 150
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONFAULTHANDLER": "1"}
MODULES = ("numpy", "torch", "torch.distributed", "shoal", "shoal.torch")


@dataclass(frozen=True)
class Case:
    """``share``: of the rounds. ``runs``: that have to end with the same bits."""

    wrapper: str
    waits: str
    nodes: int = 1
    servers: int = 0
    places: tuple[str, ...] = ("gpu", "gpu")
    share: float = 1.0
    runs: int = 1


CASES = {
    "our wrapper, streams wait": Case("shoal", "stream", runs=2),
    "DDP on shoal": Case("torch", "stream", nodes=2, share=1 / 3),
    "our wrapper, the host waits": Case("shoal", "host", nodes=2, servers=1, share=1 / 3),
    "GPU and CPU": Case("shoal", "stream", nodes=2, servers=1, places=("gpu", "cpu"), share=1 / 3),
    "DDP, GPU and CPU": Case("torch", "stream", places=("gpu", "cpu"), share=1 / 6),
}


def run(case: Case, rounds: int) -> list[Any]:
    """What each rank has found. Raises RankFailed, TimeLimitReached."""
    import stress_ranks

    environment = ENVIRONMENT | {"SHOAL_CUDA_WAIT": case.waits}
    with Cluster(len(case.places), nodes=case.nodes, servers=case.servers, environment=environment) as cluster:
        job = cluster.start(stress_ranks.train, case.wrapper, case.places, rounds, stage.rehearses())
        return job.results(SECONDS * (4 if stage.rehearses() else 1))


def judge(name: str, case: Case, rounds: int, record: stage.Record) -> bool:
    begun = time.monotonic()
    try:
        runs = [run(case, rounds) for _ in range(case.runs)]
    except (RankFailed, TimeLimitReached) as error:
        print(error)
        record.say(f"{name}: FAILED: {str(error).strip().splitlines()[-1]}")
        return False
    record.keep(name, {"rounds": rounds, "runs": runs})
    of_ranks = [found for ranks in runs for found in ranks]
    differences = [found["difference"] for found in of_ranks]
    is_finite = None not in differences
    largest = max(differences) if is_finite else float("nan")
    on_gpu = [ranks[0]["digest"] for ranks in runs]
    is_same = len(set(on_gpu)) == 1
    wrong = sum(found["kept and changed"] for found in of_ranks)
    # That what was to be done was done.
    is_stress = of_ranks[0]["moved"] > 0.01 and of_ranks[0]["kept"] > 0
    if case.wrapper == "shoal" and (rounds >= RENEWS or stage.rehearses()):
        is_stress = is_stress and of_ranks[0]["orders"] > 1 and of_ranks[0]["arenas"] > 1
    right = is_finite and largest <= ALLOWED and is_same and wrong == 0 and is_stress
    words = [
        f"{rounds} rounds, at most {largest:.1e} from one process",
        *(["the same bits in two runs" if is_same else "OTHER BITS in the second run"] if case.runs > 1 else []),
        f"{of_ranks[0]['orders']} orders, {of_ranks[0]['arenas']} arenas" if case.wrapper == "shoal" else "",
        f"{of_ranks[0]['kept']} gradients kept, {wrong} of them changed",
        f"{time.monotonic() - begun:.0f} s",
    ]
    record.say(f"{name}: {'right' if right else 'WRONG'}: {', '.join(filter(None, words))}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=12 if stage.rehearses() else 300)
    parser.add_argument("--only", choices=list(CASES))
    given = parser.parse_args()
    record = stage.Record()
    cases = {name: case for name, case in CASES.items() if given.only in (None, name)}
    with Nursery(MODULES, {**os.environ, **ENVIRONMENT}) as nursery, ranks_from(nursery):
        outcomes = [judge(name, case, max(8, int(given.rounds * case.share)), record) for name, case in cases.items()]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
