"""docs/reference.md against shoal.tensorflow and Horovod's API for it: every public name with its arguments, and no other."""

from reference import in_the_code, on_the_page

import shoal.horovod
import shoal.horovod.tensorflow as hvd
import shoal.tensorflow

DEFAULTS = {id(hvd.global_process_set): "global_process_set", id(hvd.Compression.none): "Compression.none"}
# Modules, and what the page has with PyTorch.
ELSEWHERE = {"Compression", "elastic", "util", *shoal.horovod.__all__}


def test_every_public_name_is_on_the_page_with_its_arguments() -> None:
    assert on_the_page("shoal.tensorflow") == in_the_code(shoal.tensorflow, set(shoal.tensorflow.__all__))


def test_every_public_name_of_horovods_is_on_the_page_with_its_arguments() -> None:
    names = set(hvd.__all__) - ELSEWHERE
    assert on_the_page("shoal.horovod.tensorflow") == in_the_code(hvd, names, DEFAULTS)
