"""A script for the tests of launchers: all ranks average without end, until one of them ends as it is told.

Run as ``failing_rank.py HOW``: rank 1 raises (``raise``), calls sys.exit(3) (``exit``) or waits for a signal (``wait``).
Each says its process number when it works; the others say when they failed (CLOCK_MONOTONIC) and
with what, each in one write, since launchers mix what several ranks write.
"""

import os
import sys
import time

import numpy as np

import shoal

LAST_STEP = 20

if "TORCHELASTIC_RUN_ID" in os.environ:
    import shoal.torch

    shoal.torch.init()  # where ranks meet through torchrun's store
else:
    shoal.init()
gradient = np.ones(200_000, np.float32)
shoal.allreduce_(gradient, name="gradient")
print(f"rank {shoal.rank()} pid {os.getpid()} working\n", end="", flush=True)
try:
    step = 0
    while True:
        step += 1
        if shoal.rank() == 1 and step == LAST_STEP and sys.argv[1] != "wait":
            print(f"rank 1 at {time.monotonic()} ends\n", end="", flush=True)
            if sys.argv[1] == "raise":
                raise ArithmeticError("the loss is infinite")
            sys.exit(3)
        time.sleep(0.005)
        shoal.allreduce_(gradient, name="gradient")
except shoal.ShoalError as error:
    print(f"rank {shoal.rank()} at {time.monotonic()} failed: {type(error).__name__}: {error}\n", end="", flush=True)
    raise
