"""The conductor: tells the processes of one contestant at a time what to do, and makes figures of what they say.

Everyone else waits in the control connection meanwhile. Clocks of processes on other machines are compared with this one's
by ping-pong; the time of a turn is from the earliest start to the latest end over all ranks.
"""

import itertools
import math
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from shoal.bench.channel import Channel, ChannelClosed, ChannelTimeout, Message
from shoal.bench.naming import family
from shoal.bench.orders import balanced_orders
from shoal.bench.plan import Plan
from shoal.bench.report import Result, Turn
from shoal.bench.watch import Sight, Watch
from shoal.errors import ShoalError

_MOST_REPETITIONS = 20_000
_PING_PONGS = 20
_QUIT_SECONDS = 5.0
# Memory above this is given back after a turn: there are several ranks of several contestants on one machine.
_KEPT_BYTES = 16 * 1024 * 1024

# Contestant, size, number of the turn (0: rehearsal), rounds.
Progress = Callable[[str, int, int, int], None]
Alive = Callable[[], None]


class BenchError(ShoalError):
    """The benchmark cannot go on: a process that took part failed. The message says which, and what it said."""


@dataclass
class Player:
    """One process that takes part. ``limits``: contestant → the limits of its job, if it has any. ``offset``: its
    clock minus ours, in nanoseconds."""

    channel: Channel
    rank: int
    size: int
    machine: str
    pid: int
    versions: dict[str, str]
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    offset: int = 0


@dataclass
class Stage:
    """Where processes come to take part: a listening socket, and the token that they must bring."""

    listener: socket.socket
    address: str
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def close(self) -> None:
        self.listener.close()

    def admit(self, count: int, seconds: float, alive: Alive) -> list[Player]:
        """The next ``count`` processes, by rank. ``alive`` raises when one of them has ended. Raises BenchError."""
        deadline = time.monotonic() + seconds
        players: list[Player] = []
        while len(players) < count:
            alive()
            if time.monotonic() > deadline:
                raise BenchError(f"{count - len(players)} of {count} ranks did not join in {seconds:g} s")
            self.listener.settimeout(0.5)
            with suppress(TimeoutError):
                connection, _ = self.listener.accept()
                player = self._introduced(Channel(connection), deadline, alive)
                if player is not None:
                    players.append(player)
        return sorted(players, key=lambda player: player.rank)

    def _introduced(self, channel: Channel, deadline: float, alive: Alive) -> Player | None:
        """None for a stranger, or one that went away."""
        try:
            said = _receive(channel, max(0.0, deadline - time.monotonic()), alive)
        except (ChannelClosed, ValueError):
            said = {}
        if not secrets.compare_digest(str(said.pop("token", "")), self.token):
            channel.close()
            return None
        return Player(channel=channel, **said)


def unix_stage(folder: Path) -> Stage:
    """For processes on this machine, in whatever network namespace."""
    path = folder / "control"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1024)
    return Stage(listener, str(path))


def tcp_stage(host: str) -> Stage:
    """For processes on other machines."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    listener.listen(1024)
    port = listener.getsockname()[1]
    return Stage(listener, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class Conductor:
    """``teams``: by contestant, its processes by rank. ``alive``: raises when a process has ended that should not."""

    def __init__(self, teams: dict[str, list[Player]], watch: Watch, patience: float, alive: Alive) -> None:
        self._teams = teams
        self._watch = watch
        self._patience = patience
        self._alive = alive

    def compare_clocks(self) -> None:
        """For processes that do not share this machine's clock."""
        for player in self._players():
            player.offset = min(self._ping(player) for _ in range(_PING_PONGS))[1]

    def link_rate(self, to: int | None = None) -> float:
        """Payload bytes per second of one TCP flow from rank 0 to this rank; None: the first on another host, or rank 1."""
        team = next(iter(self._teams.values()))
        far = next((player for player in team if player.machine != team[0].machine), team[1])
        other = far if to is None else team[to]
        place = self._ask(other, {"do": "flow listen"})
        other.channel.send({"do": "flow receive"})
        team[0].channel.send({"do": "flow send", "host": place["host"], "port": place["port"]})
        rate = float(self._answer(other)["rate"])
        self._answer(team[0])
        return rate

    def measure(self, plan: Plan, size: int, progress: Progress) -> list[Result]:
        """All contestants at one size: a rehearsal each, then ``plan.rounds`` rounds in which each has one turn.

        Every round has another order: what a turn leaves behind, in caches and in the memory of servers that several
        contestants share, meets no one more often than others. Contestants of one library, which are compared by the
        percent, repeat the operation equally often in a turn: what a turn costs or gives once, as the burst that a shaped
        link lets through for nothing, then has the same part in each operation's time.
        """
        rehearsed = {}
        for name in self._teams:
            progress(name, size, 0, plan.rounds)
            rehearsed[name] = self._rehearse(name, size, plan.turn_seconds)
        repetitions = {
            name: max(often for other, often in rehearsed.items() if family(other) == family(name))
            for name in rehearsed
        }
        turns: dict[str, list[Turn]] = {name: [] for name in self._teams}
        orders = itertools.islice(balanced_orders(list(self._teams)), plan.rounds)
        for number, order in enumerate(orders, start=1):
            for name in order:
                progress(name, size, number, plan.rounds)
                turns[name].append(self._play(name, size, repetitions[name]))
        self._forget()
        return [Result(name, size, repetitions[name], tuple(turns[name])) for name in self._teams]

    def close(self) -> None:
        """Lets every process leave, and waits a little until each has understood."""
        for player in self._players():
            with suppress(ChannelClosed):
                player.channel.send({"do": "quit"})
        for player in self._players():
            with suppress(ChannelClosed, ChannelTimeout, ValueError):
                while True:
                    player.channel.receive(_QUIT_SECONDS)

    def _players(self) -> list[Player]:
        """Everyone once, whoever plays for several contestants too."""
        return list({id(player): player for team in self._teams.values() for player in team}.values())

    def _rehearse(self, name: str, size: int, turn_seconds: float) -> int:
        """Checks that the result is right, warms up, and returns how often to repeat the operation in a turn.

        Turns grow until one lasts as long as it should: the first operations after a pause take several times as long as those
        that follow, so what a few of them take says little of many.
        """
        seconds = self._play(name, size, 1, check=True).seconds
        if seconds >= turn_seconds and size <= _KEPT_BYTES:
            # It may have made connections, which the next one has.
            seconds = self._play(name, size, 1).seconds
        repetitions = 1
        while repetitions * seconds < turn_seconds and repetitions < _MOST_REPETITIONS:
            repetitions = min(_MOST_REPETITIONS, max(2 * repetitions, math.ceil(turn_seconds / seconds)))
            seconds = self._play(name, size, repetitions).seconds
        return repetitions

    def _play(self, name: str, size: int, repetitions: int, *, check: bool = False) -> Turn:
        team = self._teams[name]
        self._ask_all(team, {"do": "prepare", "contestant": name, "bytes": size, "check": check})
        before = self._watch.look()
        answers = self._ask_all(team, {"do": "turn", "repetitions": repetitions, "check": check})
        turn = self._turn(team, answers, repetitions, before)
        if size > _KEPT_BYTES:
            self._ask_all(team, {"do": "forget"})
        return turn

    def _turn(self, team: Sequence[Player], answers: Sequence[Message], repetitions: int, before: Sight) -> Turn:
        after = self._watch.look()
        first = min(answer["start"] - player.offset for player, answer in zip(team, answers, strict=True))
        last = max(answer["end"] - player.offset for player, answer in zip(team, answers, strict=True))
        others = None if self._watch.others is None else self._watch.others(first, last)
        return Turn(
            seconds=(last - first) / repetitions / 1e9,
            rank_cpu=sum(answer["cpu"] for answer in answers) / repetitions,
            server_cpu=_each(before.server_cpu, after.server_cpu, repetitions),
            busy=_each(before.busy, after.busy, repetitions),
            # What other flows sent cannot be told from this.
            wire_bytes=None if others else _each(before.sent_bytes, after.sent_bytes, repetitions),
            drops=None if before.drops is None or after.drops is None else after.drops - before.drops,
            others_mean=statistics.mean(others) if others else None,
            others_least=min(others) if others else None,
        )

    def _forget(self) -> None:
        for team in self._teams.values():
            self._ask_all(team, {"do": "forget"})

    def _ping(self, player: Player) -> tuple[int, int]:
        """How long a ping-pong took, and how far the clocks are apart if both ways took the same."""
        sent = time.monotonic_ns()
        now = int(self._ask(player, {"do": "time"})["now"])
        back = time.monotonic_ns()
        return back - sent, now - (sent + back) // 2

    def _ask(self, player: Player, message: Message) -> Message:
        return self._ask_all([player], message)[0]

    def _ask_all(self, players: Sequence[Player], message: Message) -> list[Message]:
        for player in players:
            try:
                player.channel.send(message)
            except ChannelClosed:
                self._note_end(player)
        return [self._answer(player) for player in players]

    def _answer(self, player: Player) -> Message:
        """Raises BenchError for an error that the process reports, its end, or its silence."""
        who = _name(player)
        try:
            answer = _receive(player.channel, self._patience, self._alive)
        except ChannelTimeout:
            raise BenchError(f"{who} has not ended its turn in {self._patience:g} s") from None
        except ChannelClosed:
            self._note_end(player)
        if "error" in answer:
            raise BenchError(f"{who}: {answer['error']}")
        return answer

    def _note_end(self, player: Player) -> NoReturn:
        """Raises BenchError for a process that has ended."""
        time.sleep(0.5)  # for its exit to be noticed, which says more
        self._alive()
        raise BenchError(f"{_name(player)} has ended in the middle of the benchmark; see its output") from None


def _name(player: Player) -> str:
    return f"{'/'.join(player.versions)} rank {player.rank}"


def _each(before: float | None, after: float | None, repetitions: int) -> float | None:
    return None if before is None or after is None else (after - before) / repetitions


def _receive(channel: Channel, seconds: float, alive: Alive) -> Message:
    """Waits in steps, between which ``alive`` may raise. Raises ChannelTimeout, ChannelClosed, ValueError."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return channel.receive(max(0.001, min(1.0, left)))
        except ChannelTimeout:
            if left <= 1.0:
                raise
        alive()
