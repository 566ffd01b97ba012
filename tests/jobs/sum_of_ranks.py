"""A job in a few lines, without a framework: what `make wheel-test` runs in an empty environment."""

import numpy as np

import shoal

shoal.init()
total = shoal.allreduce(np.full(100_000, shoal.rank() + 1, dtype=np.float32), op="sum")
expected = shoal.size() * (shoal.size() + 1) / 2
assert np.all(total == expected), f"rank {shoal.rank()}: {total} where {expected} was expected"
print(f"rank {shoal.rank()} of {shoal.size()}: the sum is {total[0]:g}")
shoal.shutdown()
