"""Names of version 0.2.0: a method that defines or calls one is told in a sentence what to write."""

from typing import Any

import pytest
import torch

from oodbench.algorithms import HOOKS, RENAMED, Algorithm, Needs
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.errors import UserError
from oodbench.steps import CustomStep, outputs


def method(body: dict[str, Any], base: type[Algorithm] = Algorithm) -> type[Algorithm]:
    return type("Mine", (base,), body)


@pytest.mark.parametrize("name", RENAMED)
def test_an_old_name_is_told(name: str) -> None:
    with pytest.raises(UserError, match=rf"^the method Mine: `{name}` (is now|belongs) [^.]*`"):
        method({name: lambda self: None})
    algorithm = tiny_algorithm(method({}), tiny_problem(TASKS["binary"]))
    with pytest.raises(AttributeError, match=rf"^the method Mine: `{name}` (is now|belongs)"):
        getattr(algorithm, name)


@pytest.mark.parametrize("name", HOOKS)
def test_a_custom_step_may_have_each_hook(name: str) -> None:
    assert hasattr(method({name: getattr(CustomStep, name)}, CustomStep), name)


def test_the_old_needs_are_understood() -> None:
    assert method({"needs": frozenset({"index"})}).needs == Needs(index=True)
    assert method({"needs": frozenset({"attributes", "index"})}).needs.has_attributes({})


def test_an_old_name_of_what_a_method_is_given_is_told() -> None:
    batch = tiny_batch(TASKS["binary"])
    out = outputs(tiny_algorithm(method({}), tiny_problem(TASKS["binary"])), batch, 0)
    for data, old, new in ((batch, "draws", "noise"), (out, "made", "buffers")):
        with pytest.raises(AttributeError, match=f"^`.*` has no `{old}`: .*`{new}`"):
            getattr(data, old)
        with pytest.raises(AttributeError, match=r"has no `colour`$"):
            getattr(data, "colour")  # noqa: B009


def test_a_method_has_few_names_of_its_own() -> None:
    algorithm = tiny_algorithm(Algorithm, tiny_problem(TASKS["binary"]))
    module = {*dir(torch.nn.Module), *vars(torch.nn.Module())}
    names = {*vars(Algorithm), *Algorithm.__annotations__, *vars(algorithm), *algorithm._modules}
    assert len({name for name in names - module if not name.startswith("_")}) == 16
