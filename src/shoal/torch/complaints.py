"""What is said of backward passes that cannot be averaged. ``here``: this rank, as messages name it."""

from collections.abc import Sequence

# How many parameters an error names before it only counts them.
NAMED_IN_ERRORS = 10


def did_not_come(here: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_IN_ERRORS} more" if len(names) > NAMED_IN_ERRORS else ""
    return (
        f"{here}: this backward pass gave no gradient for {', '.join(names[:NAMED_IN_ERRORS])}{more}. "
        "If parameters may be without a gradient in a step, pass find_unused_parameters=True to "
        "DistributedDataParallel; if these never get one, set requires_grad to False on every rank"
    )


def is_sparse(here: str, name: str) -> str:
    return (
        f"{here}: the gradient of {name} is sparse, and only dense ones are averaged: make the layer with sparse=False"
    )


def has_a_graph(here: str, name: str) -> str:
    return (
        f"{here}: the gradient of {name} has a graph of its own (create_graph=True), which ends where gradients are "
        "averaged: take such gradients by torch.autograd.grad, and let backward() do without create_graph"
    )


def was_changed(here: str, name: str) -> str:
    return (
        f"{here}: the gradient of {name} was written to while it was being averaged, by a hook that runs after "
        "averaging has begun (one on the parameter's gradient accumulator, or on another parameter): use "
        "register_post_accumulate_grad_hook of the parameter itself, or change gradients after backward()"
    )


def came_too_late(here: str, name: str) -> str:
    return (
        f"{here}: a gradient of {name} came after the parameter's gradient had been sent. It was reached "
        "by two nested backward passes (use torch.utils.checkpoint with use_reentrant=False) or not seen as used "
        "(return tensors from forward in tuples, lists, dictionaries or dataclasses only). If every step is the same, "
        "static_graph=True allows both"
    )
