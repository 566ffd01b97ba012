"""What the training benchmarks train: two models, and the texts that they learn from. The same in every process that asks.

The transformer has 25 M parameters (101 MB) in 8 layers of width 512, and goes round an alphabet. The GPT has 10.8 M (43 MB) in 6
layers of width 384, as small ones have that people train to try it, and reads the sources of Python's standard library, byte by byte.
"""

import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

MODELS = ("transformer", "gpt")
_ALPHABET, _BYTES = 64, 256
# Bytes of the standard library's sources: enough that no rank sees one twice in these benchmarks.
_CORPUS = 4_000_000


class Network(nn.Module):
    """Guesses characters of a text, each from those before it. ``length``: of the texts."""

    def __init__(self, characters: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("before", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.positions.weight
        guessed: Tensor = self.head(self.layers(x, mask=self.before, is_causal=True))
        return guessed


def make(name: str, length: int) -> Network:
    """A model of ``MODELS`` with the same parameters wherever it is made."""
    torch.manual_seed(5)
    if name == "gpt":
        return Network(_BYTES, length, layers=6, width=384, heads=6)
    return Network(_ALPHABET, length, layers=8, width=512, heads=8)


def texts(name: str, step: int, rank: int, sequences: int, length: int) -> Tensor:
    """What a rank learns from in a step: ``sequences`` × (``length`` + 1) characters."""
    chance = torch.Generator().manual_seed(1_000 * step + rank)
    if name == "gpt":
        corpus = _sources()
        begins = torch.randint(len(corpus) - length, (sequences,), generator=chance).tolist()
        return torch.stack([corpus[begin : begin + length + 1] for begin in begins]).long()
    begin = torch.randint(_ALPHABET, (sequences, 1), generator=chance)
    stride = torch.randint(1, 5, (sequences, 1), generator=chance)
    return (begin + stride * torch.arange(length + 1)) % _ALPHABET


@lru_cache(maxsize=1)
def _sources() -> Tensor:
    """Bytes of the standard library, file by file in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    return torch.frombuffer(_read(sorted(folder.glob("*.py"))), dtype=torch.uint8)


def _read(files: Sequence[Path]) -> bytearray:
    content = bytearray()
    for file in files:
        content += file.read_bytes()
        if len(content) >= _CORPUS:
            break
    return content[:_CORPUS]
