"""A contact sheet of a dataset of images: some examples of each class in each environment."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from oodbench.data.preparation import class_names
from oodbench.data.streams import read
from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError
from oodbench.files import whole_file

SIDES = 32, 64
"""The smallest and largest side of an image on the sheet, in pixels."""
ROW = 24
"""The most images in a row, unless there are more classes."""
GAP, TEXT = 6, 13
"""The space between cells, and the height of the line of class names."""
MARGIN = 120
"""The width of the column of environment names."""


def write_sheet(dataset: Dataset, environments: Mapping[str, Environment], file: Path) -> None:
    """Write a PNG file with a row for each environment and a column for each class.

    Raises UserError for a dataset without images or classes, and for a file name that does not end in .png.
    """
    if not (dataset.task.has_classes and len(dataset.input_shape) == 3):
        raise UserError(f"{dataset.label} has no images of classes for a contact sheet")
    if file.suffix.lower() != ".png":
        raise UserError(f"a contact sheet is a .png file, not {file}")
    classes = class_names(dataset)
    examples = max(1, min(4, ROW // len(classes)))
    side = min(max(dataset.input_shape[-1], SIDES[0]), SIDES[1])
    cell = examples * side + GAP
    size = MARGIN + len(classes) * cell, TEXT + GAP + len(environments) * (side + GAP)
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT - 2)
    for column, name in enumerate(classes):
        pen.text((MARGIN + column * cell, 0), _fitting(pen, name, cell - GAP), "black", font)
    for row, (name, environment) in enumerate(environments.items()):
        top = TEXT + GAP + row * (side + GAP)
        pen.text((0, top), _fitting(pen, name, MARGIN - GAP), "black", font)
        for column in range(len(classes)):
            index = (environment.y.long() == column).nonzero().squeeze(1)[:examples]
            for i, image in enumerate(_images(dataset, environment, index)):
                picture = Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST)
                sheet.paste(picture, (MARGIN + column * cell + i * side, top))
    with whole_file(file) as stream:
        sheet.save(stream, format="PNG")


def _fitting(pen: ImageDraw.ImageDraw, text: str, width: int) -> str:
    while text and pen.textlength(text) > width:
        text = text[:-1]
    return text


def _images(dataset: Dataset, environment: Environment, index: Tensor) -> list[np.ndarray]:
    x = dataset.transform(read(environment.x, index), None).float()
    if (normalization := dataset.normalization) is not None:
        mean, std = normalization.on(x.device)
        x = x * std + mean
    channels = x.shape[1] if len(x) else 3
    if channels > 3:
        raise UserError(f"{dataset.label}: images of {channels} channels cannot be shown")
    if channels == 1:
        x = x.expand(-1, 3, -1, -1)
    missing = x.new_zeros(len(x), 3 - x.shape[1], *x.shape[2:])
    pixels = torch.cat([x, missing], 1).clamp(0, 1).mul(255).round().byte()
    return [*pixels.permute(0, 2, 3, 1).cpu().numpy()]
