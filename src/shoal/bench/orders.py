"""In which order contestants have their turns, so that none gains by its place or by who was before it."""

import itertools
from collections.abc import Iterator, Sequence


def balanced_orders(names: Sequence[str]) -> Iterator[list[str]]:
    """Orders of all ``names``, without end; they begin again after as many as there are names, or twice as many if that is odd.

    Until then everyone is equally often in each place, and equally often right after each other one. (Williams,
    Experimental designs balanced for the estimation of residual effects of treatments, 1949.)
    """
    count = len(names)
    # 0, 1, last, 2, last but one, ...: no two neighbours are equally far apart, in steps up modulo count.
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    for row in itertools.count():
        order = [names[(start + row) % count] for start in zigzag]
        # Of an odd count, the distances are balanced only together with those of the orders backwards.
        yield order[::-1] if count % 2 and row // count % 2 else order
