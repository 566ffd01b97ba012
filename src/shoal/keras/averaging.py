"""How the gradients of one optimizer are averaged: under which names, by which operator, and when.

Gradients are matched by the paths of their variables. What an optimizer accumulates over several steps
(``gradient_accumulation_steps``) travels once, in the step that applies it, if the optimizer lets it be had there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from shoal.job import runtime
from shoal.job.groups import Group
from shoal.job.per_job import PerJob
from shoal.keras import backends
from shoal.keras.naming import check_shape, compare, members_of, names_of


class Averaging:
    """Belongs to the class of a distributed optimizer, and so to all optimizers of that class."""

    def __init__(self, group: Group | None, op: str, sparse_as_dense: bool) -> None:
        self._group = group
        self._op = op
        self._sparse_as_dense = sparse_as_dense
        self._of_backend = backends.average()
        self._averages = backends.untraced(self._averages_of)
        # Names of variables that all ranks have had in a step, or while one was traced.
        self._agreed: PerJob[set[tuple[str, ...]]] = PerJob(lambda _: set())
        self.has_begun = False
        """Whether a step has come here, or was traced."""
        # What runs inside must not average again.
        self._is_done = False
        # The variables of the gradients that are accumulated, while the optimizer's own part runs.
        self._accumulated: Sequence[Any] | None = None
        self._came = False

    def of_step(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The averages; None stays None.

        Raises Mismatch if the ranks do not have the same variables, ValueError for a gradient that is not of its variable's shape.
        """
        return list(gradients) if self._is_done else self._averages(gradients, variables)

    def _averages_of(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        self.has_begun = True
        names = names_of(variables)
        self._agree(variables, names)
        for gradient, variable, name in zip(gradients, variables, names, strict=True):
            if gradient is not None:
                check_shape(gradient, variable, name)
        averaged = list(gradients)
        for op, of_op in self._by_operator(variables).items():
            values = [gradients[index] for index in of_op]
            of_these = [f"gradient/{names[index]}" for index in of_op]
            results = self._of_backend(values, of_these, op, self._group, self._sparse_as_dense)
            for index, result in zip(of_op, results, strict=True):
                averaged[index] = result
        return averaged

    def _agree(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        """In the first step with these, and while nothing of it is compiled yet.

        A rank that has others later would wait here for those that have not. So where a step compares what it has itself, as on
        TensorFlow, that is left to it after the first one. Which gradients are None is compared by every step.
        """
        agreed = self._agreed.of(runtime.current())
        if agreed and backends.compares_each_step():
            return
        if tuple(names) not in agreed:
            compare(variables, names, "gradients", members_of(self._group))
            agreed.add(tuple(names))

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

    def _by_operator(self, variables: Sequence[Any]) -> dict[str, list[int]]:
        by_operator: dict[str, list[int]] = {}
        for index, variable in enumerate(variables):
            # Scales of 8-bit floats: where Keras has several, it takes the greatest.
            by_operator.setdefault("max" if overwrites(variable) else self._op, []).append(index)
        return by_operator


def overwrites(variable: Any) -> bool:
    """Whether the "gradient" is the variable's next value."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _is_last(optimizer: Any) -> Any:
    return (optimizer._iterations + 1) % optimizer.gradient_accumulation_steps == 0


def _applies_now(optimizer: Any) -> bool | None:
    """Whether this step applies what is accumulated; None while it is only traced."""
    try:
        return bool(_is_last(optimizer))
    except TypeError:
        return None
