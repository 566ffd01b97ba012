"""Processes on this machine: starting them, watching them, ending them.

``shoal run`` and ``shoal.testing`` stand on this package; it knows nothing of a command line. Its promise: a process
that was started here does not outlive the process that started it, nor do its own children, however either ended (see shim.py
and guard.py for how).

May import errors and the folders from config to server, and no framework.
"""

from shoal.processes.environment import (
    free_master_port,
    rank_environment,
    server_environment,
    spread,
    with_secret,
)
from shoal.processes.guard import Guard
from shoal.processes.job import JobDescription, LocalJob
from shoal.processes.output import for_terminal
from shoal.processes.process import Child, Process, Started, describe_exit, exit_code
from shoal.processes.program import Program, program_of
from shoal.processes.servers import ServerFailed, ServerProcess, start_server

__all__ = [
    "Child",
    "Guard",
    "JobDescription",
    "LocalJob",
    "Process",
    "Program",
    "ServerFailed",
    "ServerProcess",
    "Started",
    "describe_exit",
    "exit_code",
    "for_terminal",
    "free_master_port",
    "program_of",
    "rank_environment",
    "server_environment",
    "spread",
    "start_server",
    "with_secret",
]
