"""Starts the ranks of the training benchmarks at a place, and tells them what to do, one team at a time.

A team is all ranks of one library; ``alone`` is a team that averages nothing. A team that is not asked for anything waits in a
socket, and costs nothing. Everything that was started ends with the block.
"""

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from training_ranks import ALONE, Task

from shoal.bench.channel import Channel, Message
from shoal.bench.conductor import BenchError, Player, unix_stage
from shoal.bench.naming import variant_name
from shoal.bench.places import Place
from shoal.bench.plan import Plan, Variant
from shoal.bench.shoal_teams import ShoalTeams
from shoal.bench.teams import START_SECONDS, Troupe, base_environment, hosts_of_ranks, start_gloo

GLOO = "gloo"
# Shoal once more, to see whether it does the same; and PyTorch's module on the backend "shoal".
AGAIN, C10D = variant_name("again"), variant_name("c10d")
_VARIANTS = {"again": Variant(), "c10d": Variant(c10d=True)}
_PATIENCE = 300.0
_PROGRAM = Path(__file__).with_name("training_ranks.py")

# The small GPT on four nodes: a step's texts on each rank, what trains it, and the lab.
SEQUENCES, LENGTH = 2, 64
SMALL_GPT = Task("gpt", SEQUENCES, LENGTH, optimizer="adamw")
SMALL_GPT_LAB = "nodes=4,servers=4,rate=1gbit"


@dataclass
class Steps:
    """What a team has done. ``losses``: of each step, the mean over all ranks. ``seconds``, ``cpu``: of a step, by turns that count."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self, answers: Sequence[Message], counts: bool) -> None:
        """The answers of all ranks after a turn."""
        of_steps = list(zip(*(one["losses"] for one in answers), strict=True))
        self.losses += map(statistics.fmean, of_steps)
        if counts:
            began, ended = min(one["start"] for one in answers), max(one["end"] for one in answers)
            self.seconds.append((ended - began) / len(of_steps) / 1e9)
            self.cpu.append(sum(one["cpu"] for one in answers) / len(of_steps))


class Teams:
    """``place``: closed with the block. ``variants``: of Shoal, by name, besides "again" and "c10d"; those that go by
    torch.distributed are called ``c10d NAME``. ``program``: what every rank runs. Use it in the main thread, as ``LocalPlace``.
    """

    def __init__(
        self,
        place: Place,
        variants: Mapping[str, Variant] | None = None,
        program: Path = _PROGRAM,
    ) -> None:
        self._stack = ExitStack()
        self._stack.callback(place.close)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-train-")))
        self._place = place
        task = {"size": place.nodes * place.ranks_each}
        self._troupe = Troupe(place, unix_stage(folder), folder, (str(program),), task)
        self._stack.callback(self._troupe.stage.close)
        self._shoal = ShoalTeams(self._troupe, Plan(variants={**_VARIANTS, **(variants or {})}))
        self._players: dict[str, list[Player]] = {}

    def __enter__(self) -> "Teams":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for team in self._players.values():
            for player in team:
                player.channel.close()
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        return self._place.pids

    @property
    def versions(self) -> dict[str, str]:
        return {name: team[0].versions[name] for name, team in self._players.items()}

    def start(self, name: str, task: Task) -> None:
        """The processes of a team, if they do not run yet, and new models for them. Raises BenchError."""
        if name not in self._players:
            print(f"starting {name}", file=sys.stderr)
            self._players[name] = self._processes(name)
        self.ask(name, {"do": "begin", "task": asdict(task)})

    def ask(self, name: str, message: Message) -> list[Message]:
        """Of all ranks of a team at once: their answers, by rank. Raises BenchError."""
        for player in self._players[name]:
            player.channel.send(message)
        return [self._answer(name, player.channel, player.rank) for player in self._players[name]]

    def in_turns(self, names: Sequence[str], task: Task, turns: int, first: int, steps: int) -> dict[str, Steps]:
        """Starts these teams, and has each do so many ``steps`` a turn, after ``first`` ones that do not count."""
        done = {name: Steps() for name in names}
        for name in names:
            self.start(name, task)
        for turn in range(-1, turns):
            for name in names:
                count = first if turn < 0 else steps
                done[name].take(self.ask(name, {"do": "steps", "count": count}), counts=turn >= 0)
        return done

    def ends(self, done: Mapping[str, Steps], names: Sequence[str]) -> dict[str, Any]:
        """What was done, for keeping, and what parameters these teams have come to."""
        ends = {name: self.ask(name, {"do": "digest"}) for name in names}
        return {
            "bytes": ends[names[0]][0]["bytes"],
            "steps": {name: asdict(one) for name, one in done.items()},
            "digests": {name: sorted({one["digest"] for one in answers}) for name, answers in ends.items()},
        }

    def _processes(self, name: str) -> list[Player]:
        if name == GLOO:
            return start_gloo(self._troupe)
        return self._start_alone() if name == ALONE else self._shoal.start(name.partition(" ")[2] or None)

    def _answer(self, name: str, channel: Channel, rank: int) -> Message:
        try:
            return channel.receive(_PATIENCE)
        except OSError as error:
            said = self._troupe.tail(f"{name} rank {rank}")
            raise BenchError(f"{name}: rank {rank} did not answer: {error}\n{said}") from None

    def _start_alone(self) -> list[Player]:
        hosts = hosts_of_ranks(self._place)
        for rank, host in enumerate(hosts):
            command = self._troupe.member_command(ALONE, self._place.address(host), {"rank": rank})
            self._troupe.start(host, f"{ALONE} rank {rank}", command, base_environment())
        return self._troupe.stage.admit(len(hosts), START_SECONDS, self._troupe.alive)
