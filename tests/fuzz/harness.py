"""What the fuzzers of Python code share: decisions taken from an input's bytes, and the command line of libFuzzer.

A fuzzer is a function of bytes that must end without an exception, whatever they are. Atheris runs it with ever new ones
(``make fuzz``); tests/unit/test_fuzz_corpus.py runs it with those that were kept, and needs no Atheris.
"""

import gc
import json
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any


class Input:
    """The bytes of an input, taken one after another. Behind the end everything is 0."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def byte(self) -> int:
        first, self._rest = self._rest[:1], self._rest[1:]
        return first[0] if first else 0

    def below(self, count: int) -> int:
        return self.byte() % count

    def number(self, count: int) -> int:
        return int.from_bytes(self.bytes(count), "little")

    def bytes(self, most: int) -> bytes:
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken

    def rest(self) -> bytes:
        return self.bytes(len(self._rest))

    def json_value(self, depth: int = 3) -> Any:
        """What JSON can say, and what it says with escapes: any number, any text, lists and objects."""
        kind = self.below(12 if depth else 8)
        if kind < 3:
            return [None, True, False][kind]
        if kind == 3:
            return self.byte() - 8
        if kind == 4:
            return self.number(8) << self.byte()
        if kind == 5:
            return float(self.number(2)) / (1 + self.byte())
        if kind == 6:
            return float("nan") if self.below(2) else float("inf")
        if kind == 7:
            return self.text()
        if kind < 10:
            return [self.json_value(depth - 1) for _ in range(self.below(5))]
        return {self.text(): self.json_value(depth - 1) for _ in range(self.below(5))}

    def text(self) -> str:
        """Half of a pair of surrogates among its characters, which JSON's escapes can write and UTF-8 cannot."""
        return "".join(
            chr(self.number(2)) if self.below(4) == 0 else chr(self.byte() % 128) for _ in range(self.below(40))
        )


def damaged(fields: dict[str, Any], data: Input) -> bytes:
    """A JSON object with some of its fields, or of theirs, changed, left out or added."""
    fields = json.loads(json.dumps(fields))
    for _ in range(data.below(4)):
        place = fields
        while True:
            names = list(place)
            name = names[data.below(len(names))] if names and data.below(8) else data.text()
            inner = place.get(name)
            if isinstance(inner, list) and inner and isinstance(inner[0], dict) and data.below(2):
                inner = inner[0]
            if not isinstance(inner, dict) or not data.below(4):
                break
            place = inner
        if data.below(8):
            place[name] = data.json_value()
        else:
            place.pop(name, None)
    return json.dumps(fields).encode()


def main(one_input: Callable[[bytes], None]) -> None:
    """libFuzzer's command line."""
    import atheris  # not needed to run what was kept

    # What is to be covered; more would only be slow.
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and (found.__module__ or "").partition(".")[0] in ("shoal", "json"):
            atheris.instrument_func(found)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
