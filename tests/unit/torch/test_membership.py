"""membership.py: where a job that PyTorch starts finds rank 0."""

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from shoal.config.addresses import default_source
from shoal.torch.c10d.membership import _master_host


def test_the_host_of_an_init_method_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    own = default_source()
    if own is None:
        pytest.skip("this machine has no address but the loopback's")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    assert _master_host(PrefixStore("a", PrefixStore("b", _store(own)))) == own
    assert _master_host(PrefixStore("a", HashStore())) == "elsewhere"
    monkeypatch.delenv("MASTER_ADDR")
    assert _master_host(HashStore()) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_host_that_leads_nowhere_from_elsewhere_does_not_count(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    assert _master_host(_store(host)) == "elsewhere"


def _store(host: str) -> TCPStore:
    return TCPStore(host, 0, is_master=True, wait_for_workers=False)
