from dataclasses import replace

from oodbench.results.run_spec import RunSpec

SPEC = RunSpec(
    dataset="D",
    options={"n": 3},
    algorithm="A",
    hparams={"lr": 0.1},
    label="A",
    network="MLP",
    network_hparams={"width": 2},
    test_environments=("t",),
    draw=0,
    trial=1,
    steps=10,
    evaluate_every=5,
)


def changed(**values: object) -> RunSpec:
    return replace(SPEC, **values)  # type: ignore[arg-type]


CHANGES: dict[str, object] = {
    **{"dataset": "E", "options": {"n": 4}, "hparams": {"lr": 0.2}, "network_hparams": {}},
    **{"test_environments": ("t", "u"), "validation_environments": ("v",), "draw": 1, "trial": 2},
    **{"steps": 11, "holdout": 0.1},
}


def test_every_value_is_part_of_the_identity() -> None:
    assert len({SPEC.id, *(changed(**{k: v}).id for k, v in CHANGES.items())}) == 1 + len(CHANGES)


def test_the_identity_is_frozen_and_is_of_no_row() -> None:
    """A change of this hash makes every old results directory start anew."""
    of_rows = changed(label="B", dataset_label="E", ceiling=True, transductive=True)
    assert of_rows.id == SPEC.id
    assert SPEC.id == "6eecd8c5ff6d0d19"


def test_runs_of_a_bundle_differ_in_test_environments_trial_draw_and_numbers_to_try_alone() -> None:
    alike = {
        "test_environments": ("z",),
        "trial": 2,
        "draw": 1,
        "hparams": {"lr": 0.2},
        "label": "B",
    }
    for name, value in alike.items():
        assert changed(**{name: value}).bundle_key == SPEC.bundle_key, name
    # what a method switches at a share of the steps is the same step for the whole bundle
    for unlike in ({"steps": 11}, {"hparams": {"lr": "0.1"}}, {"average": {"name": "ema"}}):
        assert changed(**unlike).bundle_key != SPEC.bundle_key
