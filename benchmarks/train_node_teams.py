"""Starts the ranks of train_node.py and train_node_memory.py on this machine, and tells them what to do, one team at a time.

A team is all ranks of one library; ``alone`` is a team that averages nothing. A team that is not asked for anything waits in a
socket, and costs nothing. Everything that was started ends with the block.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from train_node_ranks import ALONE

from shoal.bench.channel import Channel, Message
from shoal.bench.conductor import BenchError, Player, unix_stage
from shoal.bench.naming import SHOAL
from shoal.bench.places import LocalPlace
from shoal.bench.plan import Plan, Variant
from shoal.bench.shoal_teams import ShoalTeams
from shoal.bench.teams import START_SECONDS, Troupe, base_environment, start_gloo

RANKS = 4
GLOO = "gloo"
# Shoal once more, to see whether it does the same.
AGAIN = f"{SHOAL} again"
_PATIENCE = 120.0


class Teams:
    """``arguments``: of ``train_node_ranks.Training``. Use it in the main thread, as ``LocalPlace``."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-train-")))
        self._place = LocalPlace(RANKS, one_machine=True)
        self._stack.callback(self._place.close)
        self._troupe = _Trainees(self._place, unix_stage(folder), folder, arguments)
        self._stack.callback(self._troupe.stage.close)
        self._shoal = ShoalTeams(self._troupe, Plan(variants={"again": Variant()}))
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

    def start(self, name: str) -> None:
        """The processes of a team, and their models. Raises BenchError."""
        print(f"starting {name}", file=sys.stderr)
        if name == GLOO:
            self._players[name] = start_gloo(self._troupe)
        elif name == ALONE:
            self._players[name] = self._start_alone()
        else:
            self._players[name] = self._shoal.start("again" if name == AGAIN else None)
        self.ask(name, {"do": "begin"})

    def ask(self, name: str, message: Message) -> list[Message]:
        """Of all ranks of a team at once: their answers, by rank. Raises BenchError."""
        for player in self._players[name]:
            player.channel.send(message)
        return [self._answer(name, player.channel, player.rank) for player in self._players[name]]

    def _answer(self, name: str, channel: Channel, rank: int) -> Message:
        try:
            return channel.receive(_PATIENCE)
        except OSError as error:
            said = self._troupe.tail(f"{name} rank {rank}")
            raise BenchError(f"{name}: rank {rank} did not answer: {error}\n{said}") from None

    def _start_alone(self) -> list[Player]:
        for rank in range(RANKS):
            command = self._troupe.member_command(ALONE, self._place.address(0), {"rank": rank})
            self._troupe.start(0, f"{ALONE} rank {rank}", command, base_environment())
        return self._troupe.stage.admit(RANKS, START_SECONDS, self._troupe.alive)


class _Trainees(Troupe):
    def __init__(self, place: LocalPlace, stage: Any, folder: Path, arguments: Mapping[str, Any]) -> None:
        super().__init__(place, stage, folder)
        self._arguments = dict(arguments)

    def member_command(self, contestant: str, hosts: str | Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
        asked = {
            "control": self.stage.address,
            "token": self.stage.token,
            "library": contestant,
            "joining": dict(arguments),
            "size": RANKS,
            "arguments": self._arguments,
        }
        return [sys.executable, str(Path(__file__).with_name("train_node_ranks.py")), json.dumps(asked)]
