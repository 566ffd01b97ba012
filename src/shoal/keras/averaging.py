"""How the gradients of one optimizer are averaged: under which names, by which operator, and when.

Gradients are matched by the paths of their variables. What an optimizer accumulates over several steps
(``gradient_accumulation_steps``) travels once, in the step that applies it, if the optimizer lets it be had there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from shoal.job.groups import Group
from shoal.keras import backends


class Averaging:
    """Belongs to the class of a distributed optimizer, and so to all optimizers of that class."""

    def __init__(self, group: Group | None, op: str, sparse_as_dense: bool) -> None:
        self._group = group
        self._op = op
        self._sparse_as_dense = sparse_as_dense
        self._of_backend = backends.average()
        # What runs inside must not average again.
        self._is_done = False
        # The variables of the gradients that are accumulated, while the optimizer's own part runs.
        self._accumulated: Sequence[Any] | None = None
        self._came = False

    def of_step(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The averages; None stays None."""
        if self._is_done:
            return list(gradients)
        averaged = list(gradients)
        for op, of_op in self._by_operator(gradients, variables).items():
            names = unique(path_of(variables[index]) for index in of_op)
            values = [self._dense(gradients[index]) for index in of_op]
            results = self._of_backend(values, [f"gradient/{name}" for name in names], op, self._group)
            for index, result in zip(of_op, results, strict=True):
                averaged[index] = result
        return averaged

    @contextmanager
    def done(self) -> Iterator[None]:
        """Inside, gradients are averages already."""
        before, self._is_done = self._is_done, True
        try:
            yield
        finally:
            self._is_done = before

    def waits_for_last(self, optimizer: Any, variables: Sequence[Any]) -> bool:
        """Whether the optimizer accumulates gradients, and gives their sum to ``of_accumulated`` before it applies it."""
        if not getattr(optimizer, "gradient_accumulation_steps", None):
            return False
        if not (hasattr(optimizer, "_backend_apply_gradients") and hasattr(optimizer, "_clip_gradients")):
            return False
        # These are accumulated in another way, and never clipped.
        return not any(overwrites(variable) for variable in variables)

    @contextmanager
    def accumulating(self, optimizer: Any, variables: Sequence[Any]) -> Iterator[None]:
        """Inside, ``of_accumulated`` gets the sum of the gradients of these variables.

        Raises RuntimeError if it did not in a step that applied it.
        """
        if not self.waits_for_last(optimizer, variables) or self._is_done:
            yield
            return
        applies = _applies_now(optimizer)
        self._accumulated, self._came = variables, False
        try:
            yield
        finally:
            self._accumulated = None
        if applies is not False and not self._came:
            raise RuntimeError(
                f"Keras {keras.__version__} applies accumulated gradients in a way that Shoal does not know, so they were not "
                "averaged: leave out gradient_accumulation_steps"
            )

    def of_accumulated(self, optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
        """The averages of what has been accumulated; the gradients themselves outside of ``accumulating``."""
        variables = self._accumulated
        if variables is None:
            return list(gradients)
        self._came = True
        if keras.backend.backend() != "jax":
            # The others come here in the step that applies the gradients alone.
            return self.of_step(gradients, variables)
        result: list[Any] = keras.ops.cond(
            _is_last(optimizer), lambda: self.of_step(gradients, variables), lambda: list(gradients)
        )
        return result

    def _by_operator(self, gradients: Sequence[Any], variables: Sequence[Any]) -> dict[str, list[int]]:
        by_operator: dict[str, list[int]] = {}
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is not None:
                # Scales of 8-bit floats: where Keras has several, it takes the greatest.
                by_operator.setdefault("max" if overwrites(variable) else self._op, []).append(index)
        return by_operator

    def _dense(self, gradient: Any) -> Any:
        is_sliced = hasattr(gradient, "indices") and hasattr(gradient, "dense_shape")
        return keras.ops.convert_to_tensor(gradient) if is_sliced and self._sparse_as_dense else gradient


def path_of(variable: Any) -> str:
    """A variable of Keras, or of TensorFlow itself."""
    path: str = getattr(variable, "path", None) or variable.name
    return path


def unique(paths: Iterator[str]) -> list[str]:
    """The paths; what comes again with a number behind it."""
    seen: Counter[str] = Counter()
    names = []
    for path in paths:
        seen[path] += 1
        names.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return names


def overwrites(variable: Any) -> bool:
    """Whether the "gradient" is the variable's next value."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _is_last(optimizer: Any) -> Any:
    return (optimizer._iterations + 1) % optimizer.gradient_accumulation_steps == 0


def _applies_now(optimizer: Any) -> bool | None:
    """Whether this step applies what is accumulated; None while it is only traced."""
    if keras.backend.backend() == "torch":
        return bool(_is_last(optimizer))
    return None
