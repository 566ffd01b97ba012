"""What ``shoal run`` answers to the options of other launchers: what is said otherwise here, and how."""

from collections.abc import Collection, Sequence

_OUTPUT = "the output of all ranks is this command's, with the rank before each line: write it to a file"

# torchrun's, by what they begin with; an underscore in them is a hyphen here.
_TORCHRUN = {
    ("--nproc-per-node", "--nnodes", "--standalone", "--node-rank", "--rdzv", "--master", "--local-addr"): (
        "here -n is the number of all ranks, -H names the hosts (without it all are on this machine), and --nodes cuts them into "
        "nodes; one command starts the ranks of all hosts"
    ),
    ("--max-restarts", "--monitor-interval"): (
        "the loss of a rank ends the job, and nothing is started again: put the command into a loop, and go on from a checkpoint"
    ),
    ("--tee", "-t", "--redirects", "-r", "--log-dir", "--local-ranks-filter", "--logs-specs"): _OUTPUT,
    ("--no-python", "--run-path"): "a program is named as it is: leave it out",
    ("--start-method", "--role", "--virtual-local-rank"): "there is nothing like it: leave it out",
}

# mpirun's and mpiexec's. One hyphen before several letters is as good as two.
_MPIRUN = {
    ("--host", "--hosts", "--machinefile", "-f"): "here it is -H host1:4,host2:4, or --hostfile FILE",
    ("-x", "--genv", "--genvall", "--genvlist", "--envall", "--envlist", "--env"): (
        "every rank has this environment, on all hosts: leave it out, or set a variable by env NAME=VALUE before the program"
    ),
    ("--bind-to", "--map-by", "--rank-by", "--report-bindings", "--display-map", "--cpu-set", "--oversubscribe"): (
        "ranks fill the hosts in order and are bound to no processors: leave it out; numactl or taskset before the program binds"
    ),
    ("--ppn", "--npernode", "--perhost"): "here -H host1:4,host2:4 says how many each host has",
    ("--mca", "--gmca", "--prtemca", "--iface"): (
        "there is no MPI here: leave it out; SHOAL_INTERFACE names the interfaces to use"
    ),
    ("--allow-run-as-root",): "nothing keeps root from it: leave it out",
    ("--tag-output", "--timestamp-output", "--prepend-rank"): "each line has its rank already: leave it out",
    ("--wdir", "--wd"): "ranks start in the current folder, on every host: change to it before",
}

# horovodrun's, by what they begin with.
_HOROVODRUN = {
    ("--gloo-timeout",): "set SHOAL_TIMEOUT to as many seconds",
    ("--gloo", "--mpi", "--jsrun", "--tcp", "--binding-args"): (
        "there is one way to start ranks, and one that sends; under mpirun or srun start them without shoal run"
    ),
    ("--network-interface",): "set SHOAL_INTERFACE to the names or addresses of the interfaces",
    ("--fusion-threshold-mb",): "set SHOAL_FUSION_MB to as many megabytes",
    (
        "--cycle-time-ms",
        "--cache-capacity",
        "--hierarchical",
        "--no-hierarchical",
        "--num-nccl-streams",
        "--thread-affinity",
    ): ("there is nothing like it to be tuned: leave it out"),
    ("--autotune", "--no-autotune"): "window and shares follow from measured links: leave it out",
    (
        "--min-n",
        "--max-n",
        "--slots-per-host",
        "--elastic-timeout",
        "--reset-limit",
        "--blacklist",
        "--host-discovery-script",
    ): "the ranks of a job are fixed, and the loss of one ends it: leave it out, and start again from a checkpoint",
    ("--timeline", "--no-timeline"): "set SHOAL_TRACE to a folder for timelines",
    ("--no-stall-check", "--stall-check"): (
        "late ranks are named after 10 seconds; an operation without progress fails after SHOAL_TIMEOUT seconds"
    ),
    ("--log-level",): "set SHOAL_LOG to debug, info, warning, error or critical",
    ("--verbose",): "set SHOAL_LOG=debug",
    ("--log-", "--prefix-output-with-timestamp"): ("lines have their rank alone: time them in the program, or with ts"),
    ("--output-filename",): _OUTPUT,
    (
        "--start-timeout",
        "--disable-cache",
    ): "hosts are reached once, and one that does not answer in 15 seconds is an error",
    ("--config-file",): "there are few options: write the command into a script",
    ("--check-build",): "shoal --version says which version there is",
}


def answer(option: str, words: Sequence[str] = (), known: Collection[str] = ()) -> str | None:
    """What to say to an option that there is not. None for what is nobody's.

    ``option``: as it was found among ``words``. Of one that is a single hyphen and several letters, as ``-bind-to``, it is the
    first letter that is none of the ``known`` options.
    """
    written = option if option.startswith("--") else _written(option[1:], words, known) or option
    name = written if len(written) == 2 else f"--{written.lstrip('-').replace('_', '-')}"
    for names, said in _MPIRUN.items():
        if name in names:
            return f"{written} is mpirun's: {said}"
    for launcher, answers in (("torchrun", _TORCHRUN), ("horovodrun", _HOROVODRUN)):
        for names, said in answers.items():
            if name.startswith(names):
                return f"{written} is {launcher}'s: {said}"
    return None


def _written(letter: str, words: Sequence[str], known: Collection[str]) -> str | None:
    """The first word of one hyphen with this letter in it."""
    options = (word.partition("=")[0] for word in words if word.startswith("-") and not word.startswith("--"))
    return next((word for word in options if letter in word and word not in known), None)
