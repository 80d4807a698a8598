"""Which names a method may have."""

import pytest
import torch

from oodbench.algorithms import HOOKS, Algorithm
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_problem
from oodbench.errors import UserError
from oodbench.steps import CustomStep


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_of_custom_steps_is_for_methods_that_derive_from_it(name: str) -> None:
    body = {name: getattr(CustomStep, name)}
    with pytest.raises(UserError, match=f"^the method Mine: `{name}` belongs to .*CustomStep`"):
        type("Mine", (Algorithm,), body)
    assert hasattr(type("Mine", (CustomStep,), body), name)


def test_a_method_has_few_names_of_its_own() -> None:
    algorithm = tiny_algorithm(Algorithm, tiny_problem(TASKS["binary"]))
    module = {*dir(torch.nn.Module), *vars(torch.nn.Module())}
    names = {*vars(Algorithm), *Algorithm.__annotations__, *vars(algorithm), *algorithm._modules}
    assert len({name for name in names - module if not name.startswith("_")}) == 16
