"""Adaptations over forward passes of what they adapt to, as medians of rounds in turn."""

from pathlib import Path

import torch

from oodbench.adaptations import Stream, adaptations, adapted, in_batches
from oodbench.networks.base import build
from tests.bench import Row, paired
from tests.bench.steps import SLACK, products

INPUTS, SHAPE, CLASSES, BATCH = 256, (3, 16, 16), 10, 64


def adaptation_rows(folder: Path, rounds: int = 5) -> list[Row]:
    """The CPU time of each adaptation at its defaults, over that of a forward pass of the inputs."""
    network = build("ConvNet", {"width": 16, "depth": 2}, SHAPE, CLASSES, 0).eval()
    x = torch.randn(INPUTS, *SHAPE, generator=torch.Generator().manual_seed(0))
    batches = in_batches(torch.arange(INPUTS), BATCH)
    stream = Stream(batches, lambda places: (x[each] for each in places))

    @torch.no_grad()
    def forward() -> object:
        return [network(x[each]) for each in batches]

    works = {name: lambda name=name: adapted(name, {}, network, stream, 0) for name in adaptations}
    alone, *times = paired([forward, *works.values()], 1, rounds=rounds)
    rows = []
    for (name, work), seconds in zip(works.items(), times, strict=True):
        most = SLACK * products(work) / products(forward)
        what = f"{name} / a forward pass, ConvNet at {INPUTS} inputs in batches of {BATCH}"
        rows.append(Row(what, f"<= {most:.2f}", f"{seconds / alone:.2f}"))
    return rows
