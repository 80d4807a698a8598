"""A finding's picture, and figures for papers in every format and width."""

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.lines import AxLine

from oodbench.errors import UserError
from oodbench.report.figures import FIGURES, SUFFIXES, WIDTHS, plot, save
from oodbench.results.read import read_results
from oodbench.results.tables import Tables
from tests.helpers.results.made import Made, report, rising

NASTY = "$x_1 [b]\x1b"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("figures"))
    for dataset in ("D", NASTY):
        for i, label in enumerate(("ERM", "IRM", NASTY)):
            for trial in range(3):
                for draw_ in range(2):
                    curve = rising(0.5 + i / 10 + trial / 50 - draw_ / 10 + (i * trial) / 99)
                    made.add(dataset, label, ("a",), trial, curve, draw=draw_)
    return made


@pytest.fixture(scope="module")
def frames(made: Made) -> Tables:
    return read_results(made.results)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        pytest.param(
            *pair, marks=[pytest.mark.nightly] * ("gains" != pair[0] and pair[1] != ".svg")
        )
        for pair in product(FIGURES, SUFFIXES)
    ],
)
def test_every_figure_is_written(made: Made, tmp_path: Path, kind: str, suffix: str) -> None:
    out = tmp_path / f"f{suffix}"
    arguments = ("figure", kind, made.results.path, "--out", out)
    assert report(*arguments) == (0, f"{out}\n", "")
    before = out.read_bytes()
    if kind == "gains":
        report(*arguments)
        assert out.read_bytes() == before, "the same figure is the same file"
    if suffix == ".svg":
        root = ElementTree.fromstring(before)
        assert root.get("width") == f"{72 * WIDTHS[2]:g}pt"
        assert not list(root.iter("{http://www.w3.org/2000/svg}image")), "it is a vector"


@pytest.mark.skipif(shutil.which("pdffonts") is None, reason="needs poppler's pdffonts")
def test_fonts_are_embedded(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "f.pdf"
    report("figure", "scatter", made.results.path, "--out", out)
    fonts = subprocess.run(["pdffonts", out], capture_output=True, text=True, check=True).stdout
    rows = fonts.splitlines()[2:]
    assert rows and all("TrueType" in row and " yes " in row for row in rows)


def test_curves_are_means_with_their_errors(frames: Tables) -> None:
    axes = plot("curves", frames).axes[0]
    assert [np.size(line.get_xdata()) for line in axes.get_lines()] == [3, 3, 3]
    erm = axes.get_lines()[0]
    wanted = [100 * (0.5 + 0.02 + step / 1000 - 0.2) for step in (10, 20, 30)]
    assert erm.get_ydata() == pytest.approx(wanted)
    assert len([c for c in axes.collections if isinstance(c, PolyCollection)]) == 3


def test_a_scatter_shows_every_run_once_and_the_diagonal(frames: Tables) -> None:
    axes = plot("scatter", frames).axes[0]
    *points, diagonal = axes.get_lines()
    assert sum(np.size(line.get_xdata()) for line in points) == 3 * 3 * 2
    chosen = [line for line in points if line.get_markerfacecolor() == "none"]
    assert sum(np.size(line.get_xdata()) for line in chosen) == 3 * 3, "chosen runs are rings"
    assert isinstance(diagonal, AxLine) and axes.get_xlim() == axes.get_ylim()
    assert diagonal.get_slope() == 1
    low, high = axes.get_xlim()
    for line in points:
        for values in (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())):
            assert ((values > low + 2) & (values < high - 2)).all(), "the frame cuts no marker"


def test_differences_within_the_noise_look_small(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for label in ("ERM", "IRM"):
        for trial in range(3):
            made.add("D", label, ("a",), trial, rising(0.5 + trial / 1000))
    for kind in ("curves", "gains"):
        (axes,) = plot(kind, read_results(made.results)).axes
        low, high = axes.get_ylim() if kind == "curves" else axes.get_xlim()
        assert high - low >= 10


@pytest.mark.parametrize("datasets", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", sorted(FIGURES))
def test_long_names_leave_room_for_the_axes(tmp_path: Path, kind: str, datasets: int) -> None:
    made = Made(tmp_path / "made")
    names = ("Photographs", "Scans of seven hospitals, the machines of which differ")
    for dataset in names[:datasets]:
        for i in range(3):
            label = f"{i}: Invariant risk minimization with an annealed penalty, and much else"
            for trial in range(2):
                made.add(dataset, label, ("a",), trial, rising(0.5 + i / 9 + trial / 99))
    frames = read_results(made.results)
    baseline = str(frames.runs["label"].iloc[0])
    figure = plot(kind, frames, baseline=baseline)
    save(figure, tmp_path / "long.png")  # a warning, which is an error, where no room is left
    assert all(axes.get_position().width > 0.3 / datasets for axes in figure.axes)


def test_a_mistake_is_one_sentence(frames: Tables, made: Made, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown figure 'scater'; did you mean scatter"):
        plot("scater", frames)
    with pytest.raises(UserError, match="unknown baseline 'EMR'; did you mean ERM"):
        plot("gains", frames, baseline="EMR")
    code, _, error = report("figure", "gains", made.results.path, "--out", tmp_path / "f.jpg")
    assert code == 2 and "must end with one of .pdf, .svg, .png" in error
    assert not list(tmp_path.iterdir())
