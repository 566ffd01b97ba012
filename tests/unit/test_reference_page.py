"""docs/reference.md against the code: every public name is on the page, with its arguments, and no name that does not exist.
So are the options of ``shoal run``."""

import inspect
import re
from operator import attrgetter
from pathlib import Path

import shoal
import shoal.horovod.torch as hvd
import shoal.torch
from shoal.cli.run import run
from shoal.ops.arrays import DTYPES
from shoal.ops.operations import OPERATORS

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()

# What is a default by its name.
NAMED_DEFAULTS = {id(hvd.global_process_set): "global_process_set", id(hvd.Compression.none): "Compression.none"}

# Frameworks that have an environment of their own: tests/doors looks at these.
ELSEWHERE = {"keras", "tensorflow"}

# Of the attributes without an underscore, those that are for Shoal's own modules.
OF_THE_PACKAGE = {"Group.number", "Group.session"}


def named(prefix: str) -> set[str]:
    """The names that the page writes behind ``prefix``."""
    return set(re.findall(rf"(?<![\w.]){re.escape(prefix)}\.(\w+)", PAGE))


def signature(name: str) -> str:
    """What the page should write of a function, a method or a class: without annotations, ``self`` and private arguments."""
    called = attrgetter(name.removeprefix("shoal."))(shoal)
    shown = []
    for parameter in inspect.signature(called).parameters.values():
        if parameter.name == "self" or parameter.name.startswith("_"):
            continue
        default = parameter.default
        text = f'"{default}"' if isinstance(default, str) else NAMED_DEFAULTS.get(id(default), repr(default))
        shown.append(parameter.name if default is inspect.Parameter.empty else f"{parameter.name}={text}")
    return f"{name}({', '.join(shown)})"


def test_every_public_name_is_on_the_page_and_no_other() -> None:
    assert named("shoal") == {*shoal.__all__, "horovod", "torch", *ELSEWHERE}
    assert named("shoal.torch") == set(shoal.torch.__all__)
    assert named("shoal.horovod") == {"torch", *ELSEWHERE}
    assert named("shoal.horovod.torch") == set(hvd.__all__)
    assert set(shoal.horovod.__all__) <= set(hvd.__all__)


def test_every_call_on_the_page_has_the_arguments_that_the_code_has() -> None:
    calls = re.findall(r"^    ((shoal\.[\w.]+)\(.*\))$", PAGE, re.MULTILINE)
    assert len(calls) > 25
    here = [(call, name) for call, name in calls if not {*name.split(".")[1:3]} & ELSEWHERE]
    assert [call for call, _ in here] == [signature(name) for _, name in here]


def test_all_forms_of_an_operation_take_the_arguments_that_the_page_gives_for_one() -> None:
    for name in shoal.__all__:
        plain = re.sub(r"(_async)?_?$", "", name)
        if plain != name:
            assert (
                inspect.signature(getattr(shoal, name)).parameters
                == inspect.signature(getattr(shoal, plain)).parameters
            )


def test_groups_and_handles_have_the_attributes_that_the_page_lists() -> None:
    group, handle = (
        {f"{kind.__name__}.{name}" for name in dir(kind) if not name.startswith("_")}
        for kind in (shoal.Group, shoal.Handle)
    )
    # The seconds are an attribute of each group, not of the class.
    group.add("Group.timeout")
    listed = set(re.findall(r"\b((?:Group|Handle)\.\w+)", PAGE))
    assert listed == (group | handle) - OF_THE_PACKAGE


def test_process_sets_have_the_attributes_that_the_page_lists() -> None:
    public = {name for name in dir(hvd.ProcessSet) if not name.startswith("_")}
    # There is no MPI, and two are for Shoal's own modules.
    assert set(re.findall(r"\bProcessSet\.(\w+)", PAGE)) == public - {"mpi_comm", "group", "registered_ranks"}


def test_the_methods_of_the_wrapper_on_the_page_are_those_that_it_does_not_inherit() -> None:
    own = {
        name
        for name, value in vars(shoal.torch.DistributedDataParallel).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert named("shoal.torch.DistributedDataParallel") == own - {"forward"}


def test_dtypes_and_operators_are_those_of_the_code() -> None:
    dtypes = next(line for line in PAGE.splitlines() if line.startswith("**dtypes**"))
    assert set(re.findall(r"\b(?:b?float|u?int)\d+\b|\bbool\b", dtypes)) == set(DTYPES)
    operators = next(line for line in PAGE.splitlines() if line.startswith("**op**"))
    assert set(re.findall(r'`"(\w+)"`', operators)) == set(OPERATORS)


def test_the_options_of_shoal_run_are_those_of_the_code() -> None:
    section = PAGE[PAGE.index("## shoal run") :]
    rows = [
        set(re.findall(r"`(-[\w-]+)`", row.split("|")[1])) for row in section.splitlines() if row.startswith("| `-")
    ]
    assert rows == [set(option.opts) for option in run.params if option.param_type_name == "option"]
