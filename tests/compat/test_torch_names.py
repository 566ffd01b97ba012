"""Every name of PyTorch's that Shoal uses is there in every version, or is a feature in shoal.torch.versions."""

import torch_names

from shoal.torch import versions

# What the lists call the classes and modules that features name.
OWNERS = {"ProcessGroup": torch_names.PROCESS_GROUP, "eval_frame": "torch._C._dynamo.eval_frame"}
LISTS = torch_names.lists()

# There in builds for CUDA alone.
OF_A_BUILD = {"torch.distributed.distributed_c10d.ProcessGroupNCCL"}


def release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def since() -> dict[tuple[str, str], tuple[int, int]]:
    """Owner, name → the first release that has it, of the names of features."""
    found = {}
    for feature in versions.FEATURES.values():
        for text in feature.names:
            owner, name = text.split(".")
            found[OWNERS[owner], name] = feature.since
    return found


def test_names_are_there_or_features() -> None:
    features = since()
    wrong = []
    for use in torch_names.used():
        by_version = LISTS.get(use.owner, {})
        known = any(use.name in names for names in by_version.values())
        if f"{use.owner}.{use.name}" in OF_A_BUILD or (use.owner == torch_names.PROCESS_GROUP and not known):
            continue  # that of a process group is an attribute of Shoal's own
        first = max(torch_names.oldest(use), features.get((use.owner, use.name), (0, 0)))
        wrong += [
            f"{use.where}: PyTorch {version} has no {use.owner}.{use.name}"
            for version, names in by_version.items()
            if use.name not in names and release(version) >= first
        ]
    assert not wrong, "\n".join(wrong)


def test_features_came_with_the_release_that_the_table_says() -> None:
    for (owner, name), first in since().items():
        there = {version: name in names for version, names in LISTS[owner].items()}
        assert there == {version: release(version) >= first for version in there}, f"{owner}.{name}"


def test_names_from_before_are_there_before() -> None:
    for version, names in LISTS[torch_names.PROCESS_GROUP].items():
        missing = {name for name in versions.BEFORE_SINGLE.values() if name not in names}
        assert not missing or release(version) >= versions.FEATURES["single"].since, (version, missing)


def test_uses_are_found() -> None:
    found = {(use.owner, use.name) for use in torch_names.used()}
    assert (torch_names.PROCESS_GROUP, "shutdown") in found
    assert ("torch.distributed", "get_rank") in found
    assert ("torch._C._distributed_c10d.ProcessGroupGloo", "create_default_device") in found
