"""An optimizer of Keras' that applies the gradients of all ranks, where Keras runs on TensorFlow: of Keras 3, and of 2.

The optimizer stays the same object, with its state. Its class becomes one that is derived from it and has its name and
module: so what is saved with it loads without Shoal.

Gradients are combined where the optimizer computes them (``compute_gradients``, ``get_gradients``, ``minimize``), or else
where it applies them. What was combined is not combined again, also where the program has clipped or scaled it in between.
"""

import warnings
from collections.abc import Callable, Sequence
from types import new_class
from typing import Any

import tensorflow as tf

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.tensorflow.combined import CombinedGradients
from shoal.horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from shoal.horovod.tensorflow.origins import Origin
from shoal.horovod.tensorflow.step_gradients import StepGradients

Pairs = list[tuple[Any, Any]]


class _Distributed:
    """What the derived class has beside its own."""

    _shoal_gradients: StepGradients
    _shoal_combined: CombinedGradients
    # Whether a step has come here, or was traced.
    _shoal_has_begun: bool
    _shoal_has_warned: bool

    @property
    def _agg_helper(self) -> LocalGradientAggregationHelper | None:
        return self._shoal_gradients.aggregation

    def register_local_var(self, var: Any) -> None:
        """From now on the gradient of ``var`` is this rank's own: divided by the number of ranks, or as it is."""
        self._shoal_gradients.register_local_var(var)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """Pairs of the gradients of all ranks and the variables, for ``apply_gradients``, which may be changed before it.

        ``loss``: a function without arguments; or a tensor, and ``tape`` has recorded how it was computed. Raises ValueError
        for a tensor without a tape, and as ``hvd.allreduce``.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Pairs:
        own: Any = super()
        if hasattr(own, "_compute_gradients"):
            pairs = own._compute_gradients(loss, var_list, grad_loss, tape=tape)
        elif hasattr(own, "compute_gradients") and grad_loss is None:
            pairs = own.compute_gradients(loss, var_list, tape=tape)
        else:
            pairs = _pairs_of(loss, var_list, grad_loss, tape)
        gradients, variables = (list(each) for each in zip(*pairs, strict=True))
        return list(zip(self._allreduce(gradients, variables), variables, strict=True))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The gradients of all ranks, of an optimizer whose class has a ``get_gradients``: older ones of Keras 2, in graphs.

        Raises NotImplementedError for others, and as ``hvd.allreduce``.
        """
        own: Any = super()
        if not hasattr(own, "get_gradients"):
            raise NotImplementedError(
                f"{type(self).__name__} has no get_gradients, which was for graphs of TensorFlow 1: use compute_gradients"
            )
        return self._allreduce(own.get_gradients(loss, params), params)

    def _allreduce(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks. With several passes a step those of the pass, but in the last one."""
        self.__dict__["_shoal_has_begun"] = True
        combined = self._shoal_gradients.combined(grads, vars)
        if self._shoal_combined.add(combined, vars):
            self._shoal_warn()
        return combined

    def _shoal_apply(
        self, gradients: list[Any], variables: list[Any], is_combined: bool, apply: Callable[[Sequence[Any]], Any]
    ) -> Any:
        """What ``apply`` returns for the gradients of all ranks. With several passes a step, None."""
        self.__dict__["_shoal_has_begun"] = True
        # First, since what follows may read variables.
        origins = self._shoal_combined.apply(gradients, variables)
        aggregation = self._shoal_gradients.aggregation
        # Here, since variables cannot be made in a branch.
        if aggregation is not None and hasattr(self, "build") and not getattr(self, "built", False):
            with tf.init_scope():
                self.build(variables)
            if hasattr(self, "built"):
                self.built = True
        combined = gradients if is_combined else self._shoal_of_all(gradients, variables, origins)
        if aggregation is None:
            return apply(combined)

        def apply_in_branch() -> None:
            apply(combined)

        aggregation.apply_gradients(apply_in_branch, self, list(zip(combined, variables, strict=True)))
        return None

    def _shoal_of_all(self, gradients: list[Any], variables: list[Any], origins: list[Origin]) -> list[Any]:
        """The gradients, those combined that are not yet. What is None goes with these, as ranks compare it.

        In doubt they are combined, which changes nothing in an average of averages. A pass is not counted again.
        """
        aggregation = self._shoal_gradients.aggregation
        taken = (Origin.COMBINED,) if aggregation is None else (Origin.COMBINED, Origin.UNCERTAIN)
        places = [place for place, origin in enumerate(origins) if gradients[place] is None or origin not in taken]
        if Origin.UNCERTAIN in origins or (
            any(gradients[place] is not None for place in places)
            and self._shoal_combined.has_elsewhere(variables[place] for place in places)
        ):
            self._shoal_warn()
        if len(places) < len(gradients):
            if all(gradients[place] is None for place in places):
                return gradients
            if aggregation is not None:
                raise ValueError(
                    "with backward_passes_per_step the gradients that are applied are all of compute_gradients or all of the "
                    f"program's own, since a pass is counted once: {len(places)} of {len(gradients)} are not of compute_gradients"
                )
        combined = list(gradients)
        results = self._shoal_gradients.combined(
            [gradients[place] for place in places], [variables[place] for place in places]
        )
        for place, result in zip(places, results, strict=True):
            combined[place] = result
        return combined

    def _shoal_warn(self) -> None:
        """Once, where it cannot be told whether gradients that are applied were combined."""
        if self._shoal_has_warned:
            return
        self.__dict__["_shoal_has_warned"] = True
        done = "combined once more" if self._shoal_gradients.aggregation is None else "taken for those"
        warnings.warn(
            "compute_gradients has combined gradients, and it cannot be told whether apply_gradients is given what comes of them, "
            f"which is {done} here: if it does, pass skip_gradients_aggregation=True, or compute and apply in one tf.function, "
            "in the same branch, and in the same turn of a loop; eagerly, read the variables before compute_gradients",
            stacklevel=5,
        )


class _OfKeras3(_Distributed):
    @property
    def variables(self) -> Any:
        """As Keras' own; may be called, as programs for older versions do."""
        return _CallableList(super().variables)  # type: ignore[misc]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As Keras' own, with the gradients of all ranks. Raises as ``hvd.allreduce``."""
        given = self._trainable_variables if trainable_variables is None else trainable_variables  # type: ignore[attr-defined]
        gradients, variables = list(grads), list(given)
        if len(gradients) != len(variables):
            raise ValueError(
                f"a DistributedOptimizer was given {len(gradients)} gradients for {len(variables)} variables: give it one for "
                "each, in the same order, and None for a variable that has none"
            )
        self._apply_of_all(gradients, variables, False)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """``apply``. ``skip_gradients_aggregation``: gradients are those of all ranks already; also if the other is False."""
        gradients, variables = (list(each) for each in zip(*grads_and_vars, strict=True))
        self._apply_of_all(gradients, variables, skip_gradients_aggregation or not experimental_aggregate_gradients)
        return self.iterations  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_scale_factor":
            # Here, since Keras 3 alone has it.
            from shoal.keras.distributed import refuse_inside

            refuse_inside(self, name, value)
        super().__setattr__(name, value)

    def _apply_of_all(self, gradients: list[Any], variables: list[Any], is_combined: bool) -> None:
        apply = super().apply  # type: ignore[misc]
        self._shoal_apply(gradients, variables, is_combined, lambda combined: apply(combined, variables))


class _OfKeras2(_Distributed):
    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        """As Keras' own, with the gradients of all ranks. Raises as ``hvd.allreduce``.

        With ``skip_gradients_aggregation=True`` or, in older versions, ``experimental_aggregate_gradients=False`` they are
        those already.
        """
        gradients, variables = (list(each) for each in zip(*grads_and_vars, strict=True))
        apply = super().apply_gradients  # type: ignore[misc]
        is_combined = options.get("skip_gradients_aggregation", False) or not options.get(
            "experimental_aggregate_gradients", True
        )

        def apply_combined(combined: Sequence[Any]) -> Any:
            return apply(list(zip(combined, variables, strict=True)), *arguments, **options)

        return self._shoal_apply(gradients, variables, is_combined, apply_combined)


class _CallableList(list[Any]):
    def __call__(self) -> list[Any]:
        return self


def is_distributed(optimizer: Any) -> bool:
    """Whether it is one that ``wrap_keras_optimizer`` has made."""
    return isinstance(optimizer, _Distributed)


def wrap_keras_optimizer(optimizer: Any, gradients: StepGradients) -> Any:
    """The optimizer, which from now on applies combined gradients.

    Raises ValueError for Adasum, one that is wrapped already, and Keras on another backend; TypeError for what is no optimizer
    of Keras'.
    """
    own_class = type(optimizer)
    if not hasattr(own_class, "apply_gradients"):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of tf.keras.optimizers or tf.compat.v1.train, got {own_class.__name__}"
        )
    if is_distributed(optimizer):
        raise ValueError(f"this {own_class.__name__} is a DistributedOptimizer already")
    if gradients.how.op is ReduceOp.Adasum:
        raise ValueError("op=hvd.Adasum is for optimizers of tf.compat.v1.train: with Keras use op=hvd.Average")
    is_of_keras_3 = hasattr(own_class, "stateless_apply")
    if is_of_keras_3 and tf.keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on {tf.keras.backend.backend()} here: shoal.horovod.tensorflow is for Keras on TensorFlow"
        )
    names = {"__module__": own_class.__module__, "__qualname__": own_class.__qualname__, "__doc__": own_class.__doc__}
    mixed_in = _OfKeras3 if is_of_keras_3 else _OfKeras2
    optimizer.__class__ = new_class(own_class.__name__, (mixed_in, own_class), {}, lambda body: body.update(names))
    # Keras tracks what it holds in attributes; these are nothing that it should save.
    vars(optimizer).update(
        _shoal_gradients=gradients,
        _shoal_combined=CombinedGradients(),
        _shoal_has_begun=False,
        _shoal_has_warned=False,
    )
    return optimizer


def _pairs_of(loss: Any, variables: Any, grad_loss: Any, tape: Any) -> Pairs:
    """As optimizers of Keras 2 compute them."""
    if callable(loss):
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            loss = loss()
    elif tape is None:
        raise ValueError("a loss that is a tensor has gradients with the tape that has recorded it alone: pass tape")
    given = variables() if callable(variables) else variables
    return list(zip(tape.gradient(loss, given, grad_loss), given, strict=True))
