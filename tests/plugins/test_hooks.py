"""Which names a method may have."""

import pytest

from oodbench.algorithms import HOOKS, Algorithm
from oodbench.errors import UserError
from oodbench.steps import CustomStep


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_of_custom_steps_is_for_methods_that_derive_from_it(name: str) -> None:
    body = {name: getattr(CustomStep, name)}
    with pytest.raises(UserError, match=f"^the method Mine: `{name}` belongs to .*CustomStep`"):
        type("Mine", (Algorithm,), body)
    assert hasattr(type("Mine", (CustomStep,), body), name)
