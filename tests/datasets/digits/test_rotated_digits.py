"""RotatedDigits: real scans, dealt out once and turned."""

import torch

from oodbench.datasets import make

ANGLES = ["0", "15", "30", "45", "60", "75"]


def test_environments_share_no_scan_and_have_all() -> None:
    found = make("RotatedDigits", {}).load(0)
    assert list(found) == ANGLES
    assert sum(len(e.y) for e in found.values()) == 1797
    counts = torch.bincount(torch.cat([e.y for e in found.values()]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_only_the_angle_differs_from_the_ceilings_data() -> None:
    plain, turned = (make("RotatedDigits", {"as_test": v}).load(3) for v in (False, True))
    for angle in ANGLES:
        assert torch.equal(plain[angle].y, turned[angle].y)
        assert torch.equal(plain[angle].x, turned[angle].x) == (angle == "75")


def test_turned_scans_keep_their_ink() -> None:
    dataset = make("RotatedDigits", {})
    found = dataset.load(0)
    first, moved = found["0"].x, found["75"].x
    assert first.shape[1:] == dataset.input_shape
    assert (first * 16 == (first * 16).round()).all()  # not turned
    assert moved.min() >= 0 and moved.max() <= 1
    # a turn about the centre keeps the ink within the inner circle, about
    inner = (torch.arange(8) - 3.5).square()
    inside = inner[:, None] + inner < 9
    ratio = [found[a].x[:, 0, inside].mean() for a in ANGLES]
    assert max(ratio) - min(ratio) < 0.05
