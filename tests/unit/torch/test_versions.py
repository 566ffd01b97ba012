"""The table of what PyTorch's versions do differently, against the version that is here."""

import pytest

from shoal.torch import versions
from shoal.torch.c10d.process_group import ShoalProcessGroup


@pytest.mark.parametrize("feature", versions.FEATURES)
def test_a_feature_is_there_from_the_release_that_the_table_says(feature: str) -> None:
    assert versions.has(feature) == (versions.FEATURES[feature].since <= versions.RELEASE)


@pytest.mark.parametrize(("name", "before"), versions.BEFORE_SINGLE.items())
def test_pytorch_has_the_method_that_it_is_asked_for(name: str, before: str) -> None:
    assert hasattr(versions.ProcessGroup, versions.method_name(name))
    assert versions.method_name(name) == (name if versions.has("single") else before)
    assert versions.method_name(name) in vars(ShoalProcessGroup), "C++ would hand it to the gloo group inside"
