"""How the page is written; `test_assets` looks at it in a browser."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from oodbench.report.html import contents, embedded, render
from oodbench.results.read import joined
from tests.helpers.results.made import Made, flat, report
from tests.report.html.conftest import NASTY


def test_no_text_of_the_sweep_is_markup(made: Made) -> None:
    tree = contents(joined([made.results.path]))
    page = render(tree)
    assert "<script>alert" not in page and "<b>no" not in page
    assert page.count("<script") == 2 and page.count("</script>") == 2
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert json.loads(data)["datasets"][0]["name"] == NASTY
    assert json.loads(embedded({"title": "</script><!--&"})) == {"title": "</script><!--&"}
    title = render(tree | {"title": '</title><img src="x">'})
    assert "<img" not in title and "&lt;img" in title


def test_the_page_asks_for_nothing(made: Made) -> None:
    page = render(contents(joined([made.results.path])))
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)=\"(?!#|data:,)", page)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy and "default-src 'none'" in policy[1]
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
        checksum = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{checksum}'" in policy[1]


def test_an_at_sign_in_a_name_is_kept(tmp_path: Path) -> None:
    sweep = Made(tmp_path)
    sweep.add("@data@", "a@b", ("a",), 0, flat(0.5))
    page = render(contents(joined([sweep.results.path])))
    assert '"@data@"' in page and '"a@b"' in page


@pytest.mark.slow
def test_the_command_writes_one_file(made: Made, tmp_path: Path) -> None:
    code, text, _ = report("html", made.results.path)
    path = made.results.path / "report.html"
    assert code == 0 and text.startswith(f"{path}: ")
    assert path.read_text().startswith("<!doctype html>")
