"""Text of others (names, failures, logs) without the characters that steer a terminal."""

import re

CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, delete and C1: escape sequences start with one of them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, order of writing
    "\ufeff\ud800-\udfff]"  # the byte order mark, and half characters that UTF-8 cannot encode
)


def printable(text: str, keep: str = "") -> str:
    r"""The text with every control character but those in `keep` as an escape such as `\x1b`."""

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode()

    return CONTROLS.sub(escaped, text)


def printable_json(text: str) -> str:
    """JSON text with the control characters that JSON allows in strings as escapes of its own."""
    return re.sub(CONTROLS, lambda m: m[0] if m[0] == "\n" else f"\\u{ord(m[0]):04x}", text)
