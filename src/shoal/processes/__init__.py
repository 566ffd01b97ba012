"""The processes of a job, on this machine and on others over ssh: starting them, watching them, ending them.

``shoal run`` and ``shoal.testing`` stand on this package; it knows nothing of a command line. Its promise: a process
that was started does not outlive the process that started it, nor do its own children, however either ended (see shim.py
and guard.py for how); on another host it does not outlive the connection to there (agent.py).

May import errors and the folders from config to server, and no framework.
"""

from shoal.processes.description import JobDescription
from shoal.processes.environment import (
    free_master_port,
    rank_environment,
    server_environment,
    spread,
    with_secret,
)
from shoal.processes.guard import Guard
from shoal.processes.hosts import Host, parse_host_names, parse_hosts, read_hostfile
from shoal.processes.job import Job
from shoal.processes.output import for_terminal
from shoal.processes.process import Child, Process, Started, describe_exit, exit_code
from shoal.processes.program import Program, as_horovod, program_of
from shoal.processes.servers import ServerFailed, ServerProcess, start_server
from shoal.processes.ssh import Ssh

__all__ = [
    "Child",
    "Guard",
    "Host",
    "Job",
    "JobDescription",
    "Process",
    "Program",
    "ServerFailed",
    "ServerProcess",
    "Ssh",
    "Started",
    "as_horovod",
    "describe_exit",
    "exit_code",
    "for_terminal",
    "free_master_port",
    "parse_host_names",
    "parse_hosts",
    "program_of",
    "rank_environment",
    "read_hostfile",
    "server_environment",
    "spread",
    "start_server",
    "with_secret",
]
