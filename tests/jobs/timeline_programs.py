"""A program whose ranks have clocks that differ, for test_timeline.py.

AHEAD: seconds that the rank's CLOCK_MONOTONIC is ahead. The rank is started once more in a time namespace, and every
rank says that it works, and then what its clock showed before and after one operation.
"""

import json
import os
import sys
import time

import numpy as np


def main() -> None:
    ahead = os.environ.pop("AHEAD", "0")
    if ahead != "0":
        # "=": what follows may be negative.
        command = ["unshare", "--time", f"--monotonic={ahead}", "--fork", "--kill-child", sys.executable, __file__]
        os.execvp(command[0], command)

    import shoal

    shoal.init()
    print("working", flush=True)
    for step in range(20):
        shoal.allreduce(np.ones(1000, np.float32), name="gradient")
        if step == 10:
            shoal.barrier()
            if shoal.rank() == 1:
                time.sleep(0.1)
            before = time.monotonic_ns()
            shoal.allreduce(np.ones(10, np.float32), name="watched")
            after = time.monotonic_ns()
    print(json.dumps([before, after]))
    shoal.shutdown()


if __name__ == "__main__":
    main()
