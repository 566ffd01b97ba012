"""PyTorch's storages, whose memory can be freed although somebody holds them: ``resize_``.

A reference to a storage keeps its memory through ``t.data = other`` and ``t.set_(other)``, which give a tensor another
storage. But ``resize_`` gives the storage other memory. Every way to it, in Python or C++, first asks the storage whether it
may be resized. It may not once ``t.numpy()`` has lent its memory out: a byte of the storage says so. Python can read that
(``storage.resizable()``), but not set it. So the byte's address is found by watching ``numpy()``, once in a process, and
used only if PyTorch's own answer follows what is written there. docs/decisions/memory-in-flight.md
"""

import ctypes
from typing import Any

from shoal.errors import ShoalError

# Bytes of a storage that are looked at; it has more. Its first ones are its vtable and its reference counts.
_FIRST, _LAST = 16, 88

# By the storage's type; 0 where it has none that is known.
_places: dict[type, int] = {}


def resizable_byte(storage: Any) -> int:
    """Where this storage keeps whether it may be resized, an address; 0 if that is not known of this PyTorch."""
    kind = type(storage)
    place = _places.get(kind)
    if place is None:
        place = _places[kind] = _found_or_0(kind)
    return storage._cdata + place if place else 0


def _found_or_0(kind: type) -> int:
    try:
        return _found(kind)
    except Exception:
        return 0


def _found(kind: type) -> int:
    import torch

    def probe() -> Any:
        return torch.empty(8, dtype=torch.uint8, device="cpu")

    def read(tensor: Any) -> bytes:
        return ctypes.string_at(tensor.untyped_storage()._cdata + _FIRST, _LAST - _FIRST)

    places = set(range(_LAST - _FIRST))
    for _ in range(3):
        lent, left_alone = probe(), probe()
        before, other_before = read(lent), read(left_alone)
        lent.numpy()
        after, other_after = read(lent), read(left_alone)
        places &= {i for i in places if (before[i], after[i]) == (1, 0) and other_before[i] == other_after[i] == 1}
    if len(places) != 1 or not issubclass(kind, torch.UntypedStorage):
        return 0
    place = _FIRST + places.pop()
    storage = probe().untyped_storage()
    byte = ctypes.c_uint8.from_address(storage._cdata + place)
    for value in (0, 1):
        byte.value = value
        if storage.resizable() != bool(value):
            return 0
    return place


def is_whole(tensor: Any) -> bool:
    """Whether the tensor's storage is as large as the tensor: it may have become smaller."""
    reaches = (
        tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    )
    return not tensor.numel() or bool(reaches * tensor.element_size() <= tensor.untyped_storage().nbytes())


def require_whole(tensor: Any) -> None:
    """Raises ShoalError if nothing can be written to the tensor, whose storage has become smaller than it."""
    if not is_whole(tensor):
        raise no_place()


def put(tensor: Any, elements: Any) -> None:
    """``tensor.copy_(elements)`` with the result of an operation, in whichever thread and mode that finds it.

    Who made the tensor in inference mode may wait outside of it, where PyTorch refuses to write to it. The tensor is detached, or
    does not require a gradient. Raises ShoalError as ``require_whole`` does.
    """
    import torch

    require_whole(tensor)
    with torch.inference_mode(tensor.is_inference()):
        tensor.copy_(elements)


def no_place() -> ShoalError:
    return ShoalError(
        "the storage of the tensor was resized while the operation was running, so there is no place for the result: wait for "
        "the operation before resize_()"
    )
