import os
import time
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.yaml_values import LARGEST_FILE, assignments, parse_yaml, read_yaml

NAMES = "NO no on Off y 1e3 10_3 1_000.5 2020-01-31 1:30 01 0x1F".split()
"""Texts here, and values of other types in YAML 1.1."""
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
TOO_MANY = "over 100,000 values"
REFUSED = {
    "an alias bomb": (BOMB, TOO_MANY),
    "a long text many times": (f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 10)}]", TOO_MANY),
    "100,001 values": (f"[{'1,' * 100_000}]", TOO_MANY),
    "an alias in itself": ("a: &a [1, *a]", "line 1: a value contains itself"),
    "a mapping in itself": ("a: &a {<<: *a}", "line 1: a value contains itself"),
    "nesting of 100": ("[" * 100 + "]" * 100, "line 1: nested too deeply"),
    "nesting of 10,000": ("[" * 10_000 + "]" * 10_000, "nested too deeply|depth"),
    "nested mappings": ("{a: " * 10_000 + "}" * 10_000, "nested too deeply|depth"),
    "no integer": ("a: 1\nb: !!int x\n", "line 2: 'x' is not a valid int"),
    "beyond 64 bits": ("trials: 9223372036854775808", "64 bits"),
    "below 64 bits": ("trials: -9223372036854775809", "64 bits"),
    "an object": ("a: !!python/object/apply:os.system [ls]", "line 1"),
    "a list as a key": ("? [a]\n: b", "line 1"),
    "an unknown anchor": ("a: *nothing", "line 1"),
    "a control character": ("a: \x00", "is not YAML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_text_is_refused_in_one_short_sentence(case: str) -> None:
    text, reason = REFUSED[case]
    start = time.process_time()
    with pytest.raises(UserError, match=reason) as refused:
        parse_yaml(text, "file.yaml")
    message = str(refused.value)
    assert message.startswith("file.yaml is not YAML: ") and "\n" not in message
    assert len(message) <= 300
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "text",
    ["a: 1\nb: 2\na: 3\n", "x:\n  a: 1\n  b: 2\n  a: 1\n", "{a: 1, a: 2}", "? a\n: 1\n? a\n: 2"],
)
def test_a_key_is_given_once(text: str) -> None:
    with pytest.raises(UserError, match=r"line \d: the key '[\w.]+' is also in line \d"):
        parse_yaml(text, "file.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1:30:00", {"a": "1:30:00"}),
        ("a: 010", {"a": "010"}),
        ("a: -3", {"a": -3}),
        ("a: 9223372036854775807", {"a": 2**63 - 1}),
        ("a: [1, 2.5, yes, true, null]", {"a": [1, 2.5, "yes", True, None]}),
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
        ("a: &a {x: &x {k: 1}}\nb: {<<: *x, k: 2}", {"a": {"x": {"k": 1}}, "b": {"k": 2}}),
        ("a: k\nb: a\nc: [a, {a: a}]", {"a": "k", "b": "a", "c": ["a", {"a": "a"}]}),
        (f"[{'1,' * 99_999}]", [1] * 99_999),
        ("", None),
        ("[1.0e3, 1.e-3, -.5E+2]", [1000.0, 0.001, -50.0]),
        (f"[{', '.join(NAMES)}]", NAMES),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_yaml(text, "file.yaml") == value


def test_only_regular_files_of_text_and_a_sane_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("#" * (LARGEST_FILE + 1))
    (tmp_path / "no text").write_bytes(b"a: \xff\xfe")
    for name in ("pipe", "/dev/zero", "."):
        with pytest.raises(UserError, match="not a regular file"):
            read_yaml(tmp_path / name)
    for name, reason in (("large", "bytes; more than"), ("no text", "not UTF-8 text")):
        with pytest.raises(UserError, match=reason):
            read_yaml(tmp_path / name)


def test_assignments_are_keys_and_values() -> None:
    assert assignments("--set", ["a=1", "b=[x, y]", "c="]) == {"a": 1, "b": ["x", "y"], "c": None}
    with pytest.raises(UserError, match="--set takes key=value, not 'a'"):
        assignments("--set", ["a"])
