"""Our updates beside those of another implementation."""

import subprocess


def commit_of(checkout: str, *known: str) -> str:
    """The commit that a checkout is at, which must be one of those that are known."""
    head = ["git", "-C", checkout, "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    assert commit in known, f"{checkout} is at {commit}, not at {' or '.join(known)}"
    return commit
