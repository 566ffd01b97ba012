"""Where the inputs of a module go."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from shoal.errors import ConfigurationError
from shoal.torch.devices import moved, of_inputs

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.mark.parametrize("named", [1, "cuda:1", SECOND])
@pytest.mark.parametrize("output", [None, 1, "cuda:1"])
def test_device_ids_name_the_only_device_of_a_module(named: Any, output: Any) -> None:
    assert of_inputs([named], output, [SECOND, SECOND]) == SECOND


def test_without_device_ids_inputs_stay() -> None:
    for nothing in (None, []):
        assert of_inputs(nothing, None, [FIRST, SECOND]) is None
    assert of_inputs(None, 0, [FIRST]) is None


@pytest.mark.parametrize(
    ("device_ids", "output_device", "module"),
    [
        ([0], None, [torch.device("cpu")]),
        ([0, 1], None, [FIRST]),
        ([0], None, [FIRST, SECOND]),
        ([0], None, [SECOND]),
        ([0], 1, [FIRST]),
        (None, 1, [FIRST]),
        (["cpu"], None, [FIRST]),
        (["cpu"], None, [torch.device("cpu")]),
    ],
)
def test_other_devices_are_refused(device_ids: Any, output_device: Any, module: list[torch.device]) -> None:
    with pytest.raises(ConfigurationError, match="leave them out"):
        of_inputs(device_ids, output_device, module)


def test_tensors_are_moved_however_nested() -> None:
    x = torch.ones(2)
    arguments = ((x, [x, 3], {"a": (x, "text")}), {"packed": pack_sequence([x]), "nothing": None})
    (first, (second, number), mapping), keywords = moved(torch.device("meta"), arguments)
    assert [each.device.type for each in (first, second, mapping["a"][0], keywords["packed"].data)] == ["meta"] * 4
    assert (number, mapping["a"][1], keywords["nothing"]) == (3, "text", None)
