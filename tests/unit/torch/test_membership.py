"""membership.py: where a job that PyTorch starts finds rank 0."""

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from shoal.torch.c10d.membership import _master_host


def test_the_host_of_an_init_method_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    assert _master_host(PrefixStore("a", PrefixStore("b", store))) == "127.0.0.1"
    assert _master_host(PrefixStore("a", HashStore())) == "elsewhere"
    monkeypatch.delenv("MASTER_ADDR")
    assert _master_host(HashStore()) is None
