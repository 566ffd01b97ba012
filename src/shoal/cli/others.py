"""What ``shoal run`` answers to the options of other launchers: what is said otherwise here, and how."""

_TORCHRUN = ("--nproc-per-node", "--nproc_per_node", "--nnodes", "--standalone", "--node-rank", "--rdzv", "--master")
_OF_TORCHRUN = "here -n is the number of all ranks, -H names the hosts (without it all are on this machine), and --nodes cuts them into nodes"

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
    (
        "--output-filename",
    ): "the output of all ranks is this command's, with the rank before each line: write it to a file",
    (
        "--start-timeout",
        "--disable-cache",
    ): "hosts are reached once, and one that does not answer in 15 seconds is an error",
    ("--config-file",): "there are few options: write the command into a script",
    ("--check-build",): "shoal --version says which version there is",
}
_MPIRUN = ("--host", "--machinefile")


def answer(option: str) -> str | None:
    """None for what is nobody's."""
    if option.startswith(_TORCHRUN):
        return f"{option} is torchrun's: {_OF_TORCHRUN}"
    if option in _MPIRUN:
        return f"{option} is mpirun's: here it is -H host1:4,host2:4, or --hostfile FILE"
    for names, words in _HOROVODRUN.items():
        if option.startswith(names):
            return f"{option} is horovodrun's: {words}"
    return None
