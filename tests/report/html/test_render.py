"""How the page is written; `test_page` looks at it in a browser."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from oodbench.report.html import ASSETS, contents, embedded, render
from oodbench.results.read import joined
from tests.helpers.results.made import Made
from tests.report.html.conftest import NASTY, PERCENT


def test_no_text_of_the_sweep_is_markup_and_nothing_is_loaded(made: Made) -> None:
    tree = contents(joined([made.results.path]))
    page = render(tree)
    assert "<script>alert" not in page and "<b>no" not in page
    assert page.count("<script") == 2 and page.count("</script>") == 2
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert [each["name"] for each in json.loads(data)["datasets"]] == [NASTY, PERCENT]
    assert json.loads(embedded({"title": "</script><!--&"})) == {"title": "</script><!--&"}
    title = render(tree | {"title": '</title><img src="x">'})
    assert "<img" not in title and "&lt;img" in title
    # it asks for nothing
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)=\"(?!#|data:,)", page)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy and "default-src 'none'" in policy[1]
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
        checksum = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{checksum}'" in policy[1]


LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
"""From linear RGB to what Oklab takes the cube roots of, in which `color-mix` is linear."""


def linear(colour: str) -> "np.ndarray":
    """The linear RGB of #rgb or #rrggbb."""
    digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    v = np.array(list(bytes.fromhex(digits))) / 255
    return np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)


def contrast(text: "np.ndarray", ground: "np.ndarray") -> float:
    """WCAG's contrast of two colours in linear RGB."""
    one, other = sorted(float(LUMINANCE @ colour) + 0.05 for colour in (text, ground))
    return other / one


@pytest.mark.parametrize("theme", ["light", "dark by the system", "dark"])
def test_text_is_readable_on_every_ground(theme: str) -> None:
    css, script = ((ASSETS / name).read_text() for name in ("page.css", "page.js"))
    themes = re.findall(r":root[^{]*\{([^}]*--page[^}]*)\}", css)
    body = dict(zip(("light", "dark by the system", "dark"), themes, strict=True))[theme]
    colours = {name: linear(v) for name, v in re.findall(r"--(\w+): #(\w+)", body)}
    for text in ("ink", "soft", "link"):
        for ground in ("page", "card", "fill"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    (strongest,) = re.findall(r"Math\.round\((\d+) \* Math\.abs\(colour\)", script)
    share = int(strongest) / 100
    for cell in ("up", "down"):
        roots = [np.cbrt(CONES @ colours[name]) for name in (cell, "fill")]
        mixed = np.linalg.solve(CONES, (share * roots[0] + (1 - share) * roots[1]) ** 3)
        assert contrast(colours["ink"], mixed) >= 4.5, cell
