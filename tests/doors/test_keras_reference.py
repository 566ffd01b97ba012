"""docs/reference.md against shoal.keras and Horovod's API for it: every public name with its arguments, and no other."""

from reference import in_the_code, on_the_page

import shoal.horovod
import shoal.horovod.keras as hvd
import shoal.horovod.keras.callbacks
import shoal.keras

DEFAULTS = {id(hvd.global_process_set): "global_process_set", id(hvd.Compression.none): "Compression.none"}
# Modules, and what the page has with PyTorch.
ELSEWHERE = {"Compression", "callbacks", "elastic", *shoal.horovod.__all__}


def test_every_public_name_is_on_the_page_with_its_arguments() -> None:
    assert on_the_page("shoal.keras") == in_the_code(shoal.keras, set(shoal.keras.__all__) - {"callbacks"})
    assert on_the_page("shoal.horovod.keras") == in_the_code(hvd, set(hvd.__all__) - ELSEWHERE, DEFAULTS)


def test_every_callback_is_on_the_page_with_its_arguments() -> None:
    for module in (shoal.keras.callbacks, shoal.horovod.keras.callbacks):
        page = on_the_page(module.__name__)
        assert page == in_the_code(module, set(module.__all__))
