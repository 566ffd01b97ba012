"""Running a plan at a place: starts everything, measures, and returns a report."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.bench import mpi_teams, teams
from shoal.bench.background import Background
from shoal.bench.conductor import Conductor, Player, unix_stage
from shoal.bench.job import run_in_job
from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL, family, variant_name
from shoal.bench.places import LabPlace, LabShape, LocalPlace, Place
from shoal.bench.plan import Plan
from shoal.bench.progress import Progress
from shoal.bench.report import Network, Report, Result
from shoal.bench.shoal_teams import ShoalTeams
from shoal.bench.watch import foreign_load
from shoal.errors import ConfigurationError

_AT_PLACES = (SHOAL, "gloo", "openmpi", "mpich")


def run_at(plan: Plan, lab: str | None, local: str | None, progress: Progress) -> Report | None:
    """As the command line has it: in the lab of that shape, on loopback, or in the job that this process is a rank of.

    None on ranks other than 0 of such a job. Raises ConfigurationError, BenchError.
    """
    if plan.background is not None and lab is None:
        raise ConfigurationError(
            "flows in the background need a lab, whose links are known: --lab nodes=8,rate=400mbit"
        )
    if lab is not None:
        place: Place = LabPlace(LabShape.parse(lab))
    elif local is not None:
        place = LocalPlace.parse(local)
    else:
        return run_in_job(plan, progress)
    try:
        return run(plan, place, progress)
    finally:
        progress.end()
        place.close()


def run(plan: Plan, place: Place, progress: Progress | None = None) -> Report:
    """Measures ``plan`` at ``place``, which it does not close.

    Raises ConfigurationError for what cannot be, BenchError when a process fails or a result is wrong.
    """
    progress = progress or Progress(sys.stderr, quiet=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        stage = unix_stage(folder)
        stack.callback(stage.listener.close)
        load = foreign_load()
        troupe = teams.Troupe(place, stage, folder)
        players, pids, missing = _assemble(troupe, plan, progress)
        watch = place.watch(pids)
        conductor = Conductor(players, watch, plan.patience, troupe.alive)
        stack.callback(conductor.close)
        progress.say("measuring the link")
        network = place.network(conductor.link_rate(to=place.ranks_each if place.nodes > 1 else 1))
        if plan.background is not None:
            progress.say("starting the flows of somebody else")
            watch.others = Background(troupe, plan.background).rates
        results = [result for size in plan.sizes for result in conductor.measure(plan, size, progress)]
        return _report(plan, place, network, results, players, missing, load)
    raise AssertionError


def _assemble(
    troupe: teams.Troupe, plan: Plan, progress: Progress
) -> tuple[dict[str, list[Player]], list[int], dict[str, str]]:
    players: dict[str, list[Player]] = {}
    shoals = ShoalTeams(troupe, plan)
    missing: dict[str, str] = {}
    variants = {variant_name(name): name for name in plan.variants}
    contestants = plan.contestants or _AT_PLACES
    for name in [*variants, *contestants] if plan.variants_first else [*contestants, *variants]:
        progress.say(f"starting {name}")
        if name == SHOAL or name in variants:
            players[name] = shoals.start(variants.get(name))
            continue
        try:
            players[name] = _STARTERS[family(name)](troupe, name)
        except ImportError as error:
            if plan.contestants:
                raise ConfigurationError(f"{name} cannot take part: {error}") from None
            missing[name] = str(error)
    return players, shoals.pids, missing


# By the contestant's library.
_STARTERS: dict[str, Callable[[teams.Troupe, str], list[Player]]] = {
    "gloo": teams.start_gloo,
    "openmpi": mpi_teams.start_openmpi,
    "mpich": mpi_teams.start_mpich,
}


def _report(
    plan: Plan,
    place: Place,
    network: Network,
    results: Sequence[Result],
    players: dict[str, list[Player]],
    missing: dict[str, str],
    load: float,
) -> Report:
    facts = {**machine_facts(), **place.facts(), "other load, before": f"{load:.2f} processors"}
    if plan.background is not None:
        facts["background"] = f"a bulk flow of somebody else from every host to the next, {plan.background}"
    return Report(
        title="all-reduce",
        ranks=place.nodes * place.ranks_each,
        nodes=place.nodes,
        servers=place.servers,
        network=network,
        results=tuple(results),
        versions={name: team[0].versions[name] for name, team in players.items()},
        limits={name: limits for team in players.values() for name, limits in team[0].limits.items()},
        facts=facts,
        missing=missing,
    )
