"""The store of torchrun's agent, as a process sees it that was started without torchrun in a shell that has its variables."""

from datetime import timedelta

import pytest

import shoal
from shoal.config.launchers import read_launch
from shoal.torch import runtime


def test_an_agent_that_is_gone_is_named_with_the_variables_that_promise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "STORE_TIMEOUT", timedelta(seconds=0.5))
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    launch = read_launch({**environ, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    with pytest.raises(shoal.Timeout, match=r"127.0.0.1:9 .*RANK=1 and WORLD_SIZE=2 .*set RANK=0 and WORLD_SIZE=1"):
        runtime.launchers_store(launch)
    assert runtime.launchers_store(read_launch(environ)) is None
