"""Sizes as people write them: 4KiB, 25MB, 1GiB or plain bytes; and how sizes, times and rates are shown."""

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_SHOWN = (("GiB", 1024**3), ("GB", 1000**3), ("MiB", 1024**2), ("MB", 1000**2), ("KiB", 1024), ("KB", 1000))


def parse_bytes(text: str) -> int:
    """``4KiB`` or ``4k`` is 4096, ``25MB`` is 25,000,000, ``512`` is 512. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with KiB, MiB, GiB, KB, MB or GB")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def show_bytes(size: int) -> str:
    """The shortest exact form: ``4 KiB``, ``25 MB``, ``1 GiB``, ``12345 B``."""
    for unit, factor in _SHOWN:
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def show_seconds(seconds: float) -> str:
    """Three significant digits or so: ``812 µs``, ``53.1 ms``, ``2.13 s``."""
    for unit, factor in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * factor:
            value = seconds / factor
            return f"{value:.{_decimals(value)}f} {unit}"
    return f"{seconds:.{_decimals(seconds)}f} s"


def show_rate(bytes_per_second: float) -> str:
    """``49.8 MB/s``, ``1.25 GB/s``."""
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.2f} GB/s"
    value = bytes_per_second / 1e6
    return f"{value:.{_decimals(value)}f} MB/s"


def _decimals(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2
