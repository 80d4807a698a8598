"""Text as it is printed: that of others (names, failures, logs) without the characters that steer a
terminal, and prose wrapped at words.
"""

import re
import textwrap

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


def wrapped(text: str, width: int) -> str:
    """Each line of the text wrapped at words; a longer word, such as a path, stays whole.

    Further lines are indented as the first is, and under the words of an item (`- `).
    """
    lines = []
    for line in text.split("\n"):
        words = re.sub("^ *(- )?", "", line)
        start = line.removesuffix(words)
        lines += textwrap.wrap(
            words,
            width,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)
