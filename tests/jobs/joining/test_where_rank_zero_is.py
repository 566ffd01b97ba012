"""Where rank 0 is met: what its name leads to, who needs a secret, and who never comes."""

import contextlib
import dataclasses
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from thread_ranks import (
    HASTY,
    LIMIT,
    SECRET,
    errors,
    free_address,
    leave_all,
    run_job,
    run_ranks,
    sessions,
    settings,
)

from shoal.config.addresses import Address, is_loopback
from shoal.config.launchers import Launch, read_launch
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError, Timeout


def test_a_taken_rendezvous_port_is_an_error_on_every_rank() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        deadlines = dataclasses.replace(HASTY, rendezvous=3.0)
        outcomes = run_ranks([settings(rank, 3, address) for rank in range(3)], deadlines=deadlines)
        errors(outcomes[:1], ConfigurationError, str(address), "SHOAL_RENDEZVOUS", "taken")
        # To them it might be a rank 0 that is stopped.
        errors(outcomes[1:], Timeout, str(address), "another program has this port", "SHOAL_RENDEZVOUS")


def test_what_ends_every_connection_without_a_word_is_not_rank_zero() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.accept()[0].close()

        ending = threading.Thread(target=hang_up)
        ending.start()
        try:
            errors(run_ranks([settings(1, 2, address)]), ConfigurationError, str(address), "is not rank 0 of this job")
        finally:
            taken.shutdown(socket.SHUT_RDWR)
            ending.join(LIMIT)


def test_an_address_that_is_not_rank_zeros_is_named() -> None:
    errors(run_ranks([settings(0, 2, Address("192.0.2.77", 7000))]), ConfigurationError, "192.0.2.77:7000")


def of_several_machines(rank: int, size: int, address: Address | None, **changes: Any) -> Settings:
    launch = Launch("test", rank, size, 0, 1, None, 29500, "")
    return dataclasses.replace(settings(rank, size, address), launch=launch, **changes)


@pytest.mark.parametrize("host", ["192.0.2.77", "head.invalid"])  # RFC 5737, RFC 2606: nobody has them
def test_with_a_secret_rank_zero_can_be_met_under_a_name_that_is_not_its_own(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a service's address: what leads there is not seen by rank 0."""
    port = free_address().port
    ways = [Address(host, port), Address("127.0.0.1", port), Address("127.0.0.2", port)]
    joined = sessions(run_ranks([of_several_machines(rank, 3, way) for rank, way in enumerate(ways)]))
    assert f"{host} is no address of rank 0's machine" in caplog.text
    # The rendezvous alone was everywhere: what a rank listens at is one address.
    addresses = [address.host for address in joined[0]._joined.welcome.addresses]
    assert addresses[1:] == ["127.0.0.1", "127.0.0.1"]
    assert addresses[0] not in ("0.0.0.0", "::")
    leave_all(joined)


def test_without_a_secret_of_its_own_rank_zero_is_met_where_its_name_leads(tmp_path: Path) -> None:
    port = free_address().port
    address = Address("localhost", port)
    private = [of_several_machines(rank, 2, address, secret=None, secret_folder=tmp_path) for rank in range(2)]
    joined = sessions(run_ranks(private))
    assert all(is_loopback(address.host) for address in joined[0]._joined.welcome.addresses)
    leave_all(joined)


def test_nobody_who_knows_where_rank_zero_is() -> None:
    errors(run_ranks([settings(1, 2, None)]), ConfigurationError, "rank 1", "SHOAL_RENDEZVOUS=host:port")


def test_several_machines_need_a_secret() -> None:
    far = Launch("test", 0, 2, 0, 1, "192.0.2.1", 7000, "")
    outcomes = run_ranks([Settings(far, timeout=5.0)])
    errors(outcomes, ConfigurationError, "SHOAL_SECRET", "openssl rand")


def test_ranks_on_one_machine_need_none(tmp_path: Any) -> None:
    leave_all(sessions(run_job(2, secret=None, secret_folder=tmp_path)))


def test_rank_zero_that_never_comes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    with caplog.at_level(logging.WARNING, "shoal"):
        outcomes = run_ranks([settings(1, 2, address, timeout=1.0)])
    errors(outcomes, Timeout, "rank 1", str(address), "rank 0")
    assert "still trying" in caplog.text


def test_a_rank_that_never_comes_is_named_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    with caplog.at_level(logging.WARNING, "shoal"):
        outcomes = run_ranks([settings(rank, 4, address, timeout=1.0) for rank in (0, 2)])
    errors(outcomes, Timeout, "ranks 1, 3")
    assert "ranks 1, 3 of 4" in caplog.text


INTERACTIVE = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURM_STEP_NODELIST": "node7",
    "SLURM_JOB_ID": "88",
    "SLURM_STEP_ID": "0",
}


def test_a_shell_inside_a_job_hears_which_variables_promise_others(caplog: pytest.LogCaptureFixture) -> None:
    """As a plain python in `srun --pty bash`, on rank 0 and in the shell of another task."""
    promised = "SLURM_PROCID={0} and SLURM_STEP_NUM_TASKS=4 in the environment say that this is rank {0} of 4"
    alone = "if this process is to run alone, set RANK=0 and WORLD_SIZE=1"
    for rank in (0, 1):
        launch = read_launch({**INTERACTIVE, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        with caplog.at_level(logging.WARNING, "shoal"):
            outcomes = run_ranks([Settings(launch, secret=SECRET, timeout=1.0)])
        errors(outcomes, Timeout, promised.format(rank), alone)
        assert promised.format(rank) in caplog.text  # in the first warning already


def test_ranks_that_have_met_are_more_than_a_promise() -> None:
    launches = [
        read_launch({**INTERACTIVE, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(2)
    ]
    outcomes = run_ranks([Settings(launch, secret=SECRET, timeout=1.0) for launch in launches])
    assert all("alone" not in message for message in errors(outcomes, Timeout, "ranks 2, 3"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "0"}, id="no secret"),
        pytest.param(
            {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": ""}, id="no host"
        ),
    ],
)
def test_what_other_machines_need_is_asked_with_who_promised_them(changes: dict[str, str]) -> None:
    outcomes = run_ranks([Settings(read_launch({**INTERACTIVE, **changes}))])
    errors(outcomes, ConfigurationError, "SLURM_STEP_NUM_TASKS=4", "to run alone, set RANK=0 and WORLD_SIZE=1")
