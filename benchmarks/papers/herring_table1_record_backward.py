"""Records when the gradients of BERT-large become ready: the trace that herring_table1_overlap.py replays.

Real passes of BERT-large with both training heads (``replay.bert_large``) on this machine's processors, in float32, 4
sequences of 128 words of which 20 each are to be guessed. What is kept is the order, and each gradient's time as a part of the
whole backward pass, the median of a few passes; that part hardly depends on the processor, since nearly all of it is matrix
products.

    python benchmarks/papers/herring_table1_record_backward.py      8 GB of memory, a minute; writes benchmarks/results/herring_table1_overlap_trace.json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import replay
import torch
from results import FOLDER

from shoal.bench.machine import machine_facts

LAYERS, HEADS, WIDTH, INNER = 24, 16, 1024, 4096
SEQUENCES, WORDS, GUESSED = 4, 128, 20
PASSES = 5
TRACE = FOLDER / "herring_table1_overlap_trace.json"


class BertLarge(torch.nn.Module):
    """The network of ``replay.bert_large``; each parameter is kept flat, and seen as a matrix where one is needed."""

    def __init__(self) -> None:
        super().__init__()
        self._flat = {
            variable.name: torch.nn.Parameter(torch.randn(variable.elements) * 0.02) for variable in replay.bert_large()
        }

    def named(self) -> dict[str, torch.nn.Parameter]:
        return self._flat

    def forward(self, words: torch.Tensor, guessed: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """The loss. ``words``: [sequences, words]. ``guessed``: their places, [sequences, guessed]; ``truth``: what was there."""
        table = self._matrix("embeddings.word")
        x = table[words] + self._matrix("embeddings.position")[: words.shape[1]] + self._matrix("embeddings.segment")[0]
        x = self._norm("embeddings", x)
        for number in range(LAYERS):
            x = self._layer(f"layer{number}", x)
        # Both heads, in the order of their creation.
        pooled = torch.tanh(self._linear("pooler", x[:, 0]))
        following = pooled @ self._matrix("next.kernel", 2) + self._flat["next.bias"]
        picked = torch.gather(x, 1, guessed.unsqueeze(-1).expand(-1, -1, WIDTH))
        hidden = self._norm("words", torch.nn.functional.gelu(self._linear("words", picked)))
        scores = hidden @ table.T + self._flat["words.output.bias"]
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), truth.flatten()) + following.square().mean()

    def _layer(self, name: str, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._heads(self._linear(f"{name}.{part}", x)) for part in ("query", "key", "value"))
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS), -1)
        mixed = (weights @ value).transpose(1, 2).reshape(x.shape)
        x = self._norm(f"{name}.output.norm", x + self._linear(f"{name}.output", mixed))
        inner = torch.nn.functional.gelu(self._linear(f"{name}.inner", x, INNER))
        return self._norm(f"{name}.outer.norm", x + self._linear(f"{name}.outer", inner))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)

    def _linear(self, name: str, x: torch.Tensor, width: int = WIDTH) -> torch.Tensor:
        return x @ self._matrix(f"{name}.kernel", width) + self._flat[f"{name}.bias"]

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(
            x, (WIDTH,), self._flat[f"{name}.gamma"], self._flat[f"{name}.beta"], eps=1e-12
        )

    def _matrix(self, name: str, columns: int = WIDTH) -> torch.Tensor:
        return self._flat[name].view(-1, columns)


def record(model: BertLarge) -> tuple[list[tuple[str, float]], float]:
    """Each gradient's name and when it was ready, and how long the backward pass took, in seconds."""
    ready: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[torch.Tensor], None]:
        return lambda _: ready.append((name, time.monotonic()))

    hooks: list[Any] = []
    for name, parameter in model.named().items():
        parameter.grad = None
        hooks.append(parameter.register_post_accumulate_grad_hook(note(name)))  # type: ignore[no-untyped-call]
    vocabulary = model.named()["embeddings.word"].numel() // WIDTH
    loss = model(
        torch.randint(vocabulary, (SEQUENCES, WORDS)),
        torch.randint(WORDS, (SEQUENCES, GUESSED)),
        torch.randint(vocabulary, (SEQUENCES, GUESSED)),
    )
    begin = time.monotonic()
    loss.backward()
    seconds = time.monotonic() - begin
    for hook in hooks:
        hook.remove()
    return [(name, at - begin) for name, at in ready], seconds


def main() -> None:
    torch.manual_seed(0)
    model = BertLarge()
    record(model)  # the first pass finds memory
    passes = [record(model) for _ in range(PASSES)]
    order = [name for name, _ in passes[0][0]]
    sizes = {variable.name: variable.elements for variable in replay.bert_large()}
    assert sorted(order) == sorted(sizes), "every variable has one gradient"
    parts = [{name: at / seconds for name, at in ready} for ready, seconds in passes]
    typical = {name: statistics.median(part[name] for part in parts) for name in order}
    seconds = statistics.median(seconds for _, seconds in passes)
    trace = {
        "what": f"backward pass of BERT-large, {SEQUENCES} sequences of {WORDS} words, torch {torch.__version__}",
        "facts": machine_facts(),
        "seconds": round(seconds, 3),
        "gradients": [
            {"name": name, "elements": sizes[name], "part": round(typical[name], 5)}
            for name in sorted(order, key=typical.__getitem__)
        ],
    }
    TRACE.write_text(json.dumps(trace, indent=1) + "\n", encoding="utf-8")
    print(f"{len(order)} gradients in {seconds:.2f} s: {TRACE}")


if __name__ == "__main__":
    main()
