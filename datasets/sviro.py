"""SVIRO."""

from oodbench.data.pictures.folders import image_metadata
from oodbench.data.pictures.published import Place, Suite
from oodbench.datasets import register


@register(
    "SVIRO",
    image_metadata(
        paper="arXiv:2001.03483",
        licence="CC BY-NC-SA 4.0 (not checked)",
        shift="the vehicle",
        folder="sviro",
    ),
)
class SVIRO(Suite):
    """Who or what is on the rear seats of ten vehicles, in rendered images; seven classes."""

    source = (
        "https://sviro.kl.dfki.de (grayscale, rectangles, classification: its DomainBed version)"
    )
    num_classes = 7
    places = tuple(
        Place(name, name)
        for name in (
            *("aclass", "escape", "hilux", "i3", "lexus"),
            *("tesla", "tiguan", "tucson", "x5", "zoe"),
        )
    )
