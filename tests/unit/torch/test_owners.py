"""Parameters that several wrappers have: torch/owners.py."""

import threading
from collections.abc import Iterator

import pytest
from torch import nn

from shoal.torch import owners


class Parameters(list[nn.Parameter]):
    """Another wrapper, which has the same, is collected in the midst of whatever is done with these."""

    def __iter__(self) -> Iterator[nn.Parameter]:
        for each in super().__iter__():
            owners.remove([each])
            yield each


@pytest.mark.parametrize("ask", [owners.shared, owners.add, owners.remove])
def test_a_wrapper_may_be_collected_while_others_are_counted(ask: object) -> None:
    parameters = [nn.Parameter() for _ in range(3)]
    for _ in range(3):
        owners.add(parameters)
    before = owners.changes()
    asks = threading.Thread(target=ask, args=[Parameters(parameters)], daemon=True)  # type: ignore[arg-type]
    asks.start()
    asks.join(10)
    assert not asks.is_alive()
    assert owners.changes() > before
    shared = owners.shared(parameters)
    assert shared == (set() if ask is owners.remove else {0, 1, 2})
    for _ in range({owners.shared: 2, owners.add: 3, owners.remove: 1}[ask]):  # type: ignore[index]
        owners.remove(parameters)
    assert not any(each in owners._owners for each in parameters)
