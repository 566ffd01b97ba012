"""Random programs of ranks, some of which come to wait for each other in a circle.

A program is a row of barriers, each of a group of ranks. Every rank starts its own in the order of the row, in one thread
or two, and waits for each at once or some barriers later: so far nobody waits in vain. In programs of one thread a rank,
two steps of a rank may then change places, or one is left out, or there is a barrier that a rank does not wait for. What comes
of it is reckoned first (``Program.gets_stuck``): ranks that go on whenever they can, until none can.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import shoal

RANKS = 3
GROUPS = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]
# Longer than a rank takes to say what it waits for, and to be asked.
LONG = 5.0


@dataclass(frozen=True)
class Step:
    """Starts a barrier of a group, or waits for one that the thread has started, after a pause in seconds."""

    starts: bool
    barrier: int
    group: tuple[int, ...]
    pause: float


class Program:
    """``threads``: of each rank, the steps of each of its threads."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.seed = seed
        has_two_threads = chance.random() < 0.3
        self.threads: list[list[list[Step]]] = [[[] for _ in range(1 + has_two_threads)] for _ in range(RANKS)]
        for number in range(chance.randint(2, 8)):
            group = chance.choice(GROUPS)
            for rank in group:
                pause = LONG if chance.random() < 0.04 else chance.choice([0.0, 0.0, 0.05])
                thread = chance.choice(self.threads[rank])
                thread.append(Step(True, number, group, pause))
                thread.append(Step(False, number, group, 0.0))
        for threads in self.threads:
            for thread in threads:
                _wait_later(thread, chance)
        if not has_two_threads:
            _spoil(chance.choice(self.threads)[0], chance)

    def gets_stuck(self) -> bool:
        """Whether somebody waits for ever, where nobody hears of it."""
        threads = [(rank, thread) for rank, threads in enumerate(self.threads) for thread in threads]
        places = [0] * len(threads)
        started: dict[int, set[int]] = {}
        moved = True
        while moved:
            moved = False
            for number, (rank, thread) in enumerate(threads):
                while places[number] < len(thread):
                    step = thread[places[number]]
                    if step.starts:
                        started.setdefault(step.barrier, set()).add(rank)
                    elif started[step.barrier] != set(step.group):
                        break
                    places[number] += 1
                    moved = True
        return any(place < len(thread) for place, (_, thread) in zip(places, threads, strict=True))


def _wait_later(thread: list[Step], chance: random.Random) -> None:
    for place in reversed(range(len(thread))):
        if not thread[place].starts and chance.random() < 0.3:
            thread.insert(chance.randint(place, len(thread) - 1), thread.pop(place))


def _spoil(thread: list[Step], chance: random.Random) -> None:
    kind = chance.random()
    barriers = sorted({step.barrier for step in thread})
    if kind < 0.25 and barriers:
        left_out = chance.choice(barriers)
        thread[:] = [step for step in thread if step.barrier != left_out]
    elif kind < 0.5 and len(barriers) > 1:
        first, second = chance.sample(barriers, 2)
        of = {step: step for step in thread}
        starts = {step.barrier: step for step in thread if step.starts}
        waits = {step.barrier: step for step in thread if not step.starts}
        for here, there in ((first, second), (second, first)):
            of[starts[here]], of[waits[here]] = starts[there], waits[there]
        thread[:] = [of[step] for step in thread]
    elif kind < 0.6 and thread:
        unheeded = chance.choice(barriers)
        thread[:] = [step for step in thread if step.starts or step.barrier != unheeded]


def run_some(first: int, last: int) -> list[tuple[int, list[str]]]:
    """Runs programs one after the other; those in which this rank was told something, and what."""
    shoal.init()
    rank = shoal.rank()
    groups = {ranks: shoal.Group(ranks) for ranks in GROUPS if rank in ranks}
    told = []
    for seed in range(first, last):
        errors: list[str] = []
        run_threads(Program(seed), rank, groups, errors)
        if not errors:
            tell(errors, lambda name=f"end of {seed}": shoal.barrier(name=name))
        if errors:
            told.append((seed, errors))
        meet(seed)
    shoal.shutdown()
    return told


def meet(seed: int) -> None:
    """At the end of a program, whatever was heard in it. Who is still in it can be in a circle with those who are here."""
    for attempt in itertools.count():
        missed: list[str] = []
        tell(missed, lambda name=f"after {seed}, {attempt}": shoal.barrier(name=name))
        if not missed:
            return


def run_threads(program: Program, rank: int, groups: dict[tuple[int, ...], shoal.Group], errors: list[str]) -> None:
    own, *others = program.threads[rank]
    threads = [threading.Thread(target=run_thread, args=(program.seed, steps, groups, errors)) for steps in others]
    for thread in threads:
        thread.start()
    run_thread(program.seed, own, groups, errors)
    for thread in threads:
        thread.join()


def run_thread(seed: int, steps: list[Step], groups: dict[tuple[int, ...], shoal.Group], errors: list[str]) -> None:
    """Up to the first error, as a program that has not caught it."""
    open_: dict[int, shoal.Handle] = {}
    for step in steps:
        time.sleep(step.pause)
        if step.starts:
            open_[step.barrier] = shoal.barrier_async(name=f"{seed}.{step.barrier}", group=groups[step.group])
        else:
            tell(errors, open_[step.barrier].wait)
        if errors:
            return


def tell(errors: list[str], call: Callable[[], None]) -> None:
    try:
        call()
    except shoal.Mismatch as error:
        errors.append(str(error))
