"""What runs between fork and the program: asks the kernel to end this process when its parent dies, then becomes it.

Run by path (``python -I -S shim.py PARENT DESCRIPTORS COMMAND...``; DESCRIPTORS: the soft limit of them for the program, or "" to
leave it), so that it costs no import of the package. Python code between
fork and exec (``preexec_fn``) is not safe in a process with threads; a program of its own is. The request survives
exec. The kernel ties it to the *thread* that forked: start processes from a thread that lives as long as they do.
"""

import errno
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Has the kernel send SIGKILL to this process when ``parent``, its parent, dies; exits if it already has."""
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # a Python without ctypes: the guard (guard.py) is left to do it
    if os.getppid() != parent:
        sys.exit(1)


def limit_descriptors(soft: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def main() -> None:
    parent, descriptors, *command = sys.argv[1:]
    end_with_parent(int(parent))
    if descriptors:
        limit_descriptors(int(descriptors))
    try:
        os.execv(command[0], command)
    except OSError as error:
        hint = " (has its first line an interpreter, such as #!/bin/sh?)" if error.errno == errno.ENOEXEC else ""
        sys.exit(f"cannot start {command[0]}: {error.strerror}{hint}")


if __name__ == "__main__":
    main()
