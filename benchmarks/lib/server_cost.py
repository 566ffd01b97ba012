"""What a byte costs a dedicated server and one of its nodes, in processor time."""

import sys
import time

import numpy

import shoal
from shoal.bench.watch import process_cpu
from shoal.testing import Cluster

NODES = 4

# What the nodes average, so often: enough that its ends do not count, more than the caches hold.
ARRAY_BYTES = 16 * 1024**2
REPETITIONS = 4
_WAIT = 30.0


def server_cost(frame: int, nodes: int = NODES) -> tuple[float, float, float]:
    """Processor seconds of the one server, and of one of its nodes, a byte that it receives; and its bytes a second."""
    with Cluster(nodes, servers=1, environment={"SHOAL_COLOCATED": "never"}) as cluster:
        pid = cluster.servers[0].process.pid
        job = cluster.start_script(__file__, "--feed", str(frame), str(pid))
        job.results(_WAIT)
        server, node, seconds, received = map(float, job.stdout(0).split())
    return server / received, node / (received / nodes), received / seconds


def _feed(frame: int, server_pid: int) -> None:
    """A node of ``server_cost``; rank 0 prints what it saw of the server and of itself."""
    shoal.init(_limits={"segment": frame, "credit": frame})
    values = numpy.full(ARRAY_BYTES // 4, 1e-3 * (-1) ** shoal.rank(), dtype=numpy.float32)
    for _ in range(3):
        shoal.allreduce_(values, op="sum")
    shoal.barrier()
    server, node, began = process_cpu(server_pid), time.process_time(), time.perf_counter()
    for _ in range(REPETITIONS):
        shoal.allreduce_(values, op="sum")
    shoal.barrier()
    server, node = process_cpu(server_pid) - server, time.process_time() - node
    seconds = time.perf_counter() - began
    if shoal.rank() == 0:
        print(server, node, seconds, REPETITIONS * shoal.size() * values.nbytes)
    shoal.shutdown()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--feed", frame_bytes, pid]:
            _feed(int(frame_bytes), int(pid))
