"""The life of a session, from go until nobody needs this process any more."""

import dataclasses
import os
import signal
import socket
import threading
import time

import numpy
import pytest
from thread_ranks import (
    HASTY,
    LIMIT,
    Outcome,
    call,
    errors,
    free_address,
    leave_all,
    run_job,
    run_ranks,
    sessions,
    settings,
)

from local_front import running
from shoal import _native
from shoal.config.settings import Limits
from shoal.errors import PeerLost, ShoalError
from shoal.job.bootstrap import Session, join
from shoal.server.front import Front

# docs/protocol/format.md, Frames.
ALL_GATHER, BARRIER, INT32 = 4, 6, 7


def finished(handles: list[_native.Handle]) -> None:
    for handle in handles:
        status = handle.wait(LIMIT)
        assert status is not None
        assert (status.code, status.message) == (0, "")


@pytest.mark.parametrize("tls", ["off", "psk"])
def test_peers_connect_on_first_use(tls: str) -> None:
    address = free_address()
    # Nodes of their own: ranks of one send nothing.
    ranks = [settings(rank, 3, address, tls=tls) for rank in range(3)]
    apart = [dataclasses.replace(one, launch=dataclasses.replace(one.launch, local_rank=0)) for one in ranks]
    joined = sessions(run_ranks(apart))
    finished([session.engine.submit(BARRIER, 0, "", 0, 0, [], [], 0, None, None, LIMIT) for session in joined])
    connected = joined[2].engine.statistics()["links"]
    blocks = [numpy.full((2, 50_000), session.rank, numpy.int32) for session in joined]
    handles = [
        session.engine.submit(ALL_GATHER, 0, "", 0, INT32, list(block.shape), [], 0, _native.Array(block), None, LIMIT)
        for session, block in zip(joined, blocks, strict=True)
    ]
    finished(handles)
    for handle in handles:
        found = numpy.frombuffer(handle.output(), numpy.int32).reshape(6, -1)
        assert found[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert joined[2].engine.statistics()["links"] == connected + 2
    leave_all(joined)


def test_closing_one_is_a_loss_to_the_others() -> None:
    joined = sessions(run_job(3))
    joined[1].close()
    joined[1].close()
    assert joined[1].wait_ended(0)
    joined[0].leave(10.0)
    joined[2].leave(10.0)
    assert joined[0].wait_ended(10.0)
    assert joined[2].wait_ended(10.0)


def test_an_attempt_at_a_lost_server_ends_in_time_and_leaves_no_connection() -> None:
    """What listens at its address accepts connections and says nothing."""
    address, deadlines = free_address(), dataclasses.replace(HASTY, returning=0.3)
    with running() as front:
        ranks = [settings(rank, 2, address, servers=(front.address,)) for rank in range(2)]
        joined = sessions(run_ranks(ranks, deadlines=deadlines))
    lost = 2 * joined[1].lanes
    with socket.create_server((front.address.host, front.address.port)):
        began = time.monotonic()
        joined[1]._links.run(joined[1]._connect_server(lost, 1))
        assert time.monotonic() - began < 5
    leave_all(joined)


def test_an_abort_ends_the_session() -> None:
    joined = sessions(run_job(2))
    joined[1].abort("out of cheese")
    assert joined[1].wait_ended(0)
    joined[0].leave(10.0)
    assert joined[0].wait_ended(10.0)


def test_a_session_lingers_until_all_have_left() -> None:
    joined = sessions(run_job(2))
    joined[0].leave(10.0)
    assert not joined[0].wait_ended(0.2)
    joined[1].leave(10.0)
    assert joined[0].wait_ended(10.0)
    assert joined[1].wait_ended(10.0)


def test_a_forked_child_has_nothing_of_it() -> None:
    joined = sessions(run_job(2))
    child = os.fork()
    if child == 0:
        os._exit(_look_around_in_child(joined[0]))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    leave_all(joined)


def _look_around_in_child(session: Session) -> int:
    try:
        session.leave(1.0)
        session.abort("nothing")
        session.close()
        if not session.wait_ended(0):
            return 2
        try:
            session.engine.statistics()
        except ShoalError:
            return 0
    except BaseException:
        return 3
    return 4


def test_an_interrupted_join_leaves_nothing_and_the_others_hear_of_it() -> None:
    """As Ctrl-C does, in the middle of waiting."""
    address = free_address()
    others: list[Outcome] = []
    thread = threading.Thread(target=lambda: others.extend(run_ranks([settings(1, 3, address)])))
    thread.start()
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        join(settings(0, 3, address), Limits(), deadlines=HASTY)
    thread.join(LIMIT)
    timer.join()
    errors(others, PeerLost, "rank 0")


def test_a_server_front_is_what_the_fixture_says() -> None:
    with running() as front:
        assert isinstance(front, Front)
        with call(front.address) as stranger:
            stranger.settimeout(10)
            stranger.sendall(b"x" * 64)
            assert stranger.recv(1) == b""
