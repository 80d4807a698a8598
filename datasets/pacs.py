"""PACS."""

from oodbench.data.images import Place, Suite
from oodbench.datasets import Metadata, register


@register(
    "PACS",
    Metadata(
        paper="arXiv:1710.03077",
        licence="unstated (research)",
        family="images",
        shift="the style of the picture",
        network="ResNet50",
        steps=5001,
        folder="PACS",
    ),
)
class PACS(Suite):
    """Seven classes of objects in art paintings, cartoons, photographs and sketches (9,991 images).

    The numbers of images are those of arXiv:2003.06054; what comes with the data says no licence.
    """

    source = "https://dali-dl.github.io/project_iccv2017.html"
    num_classes = 7
    places = (
        Place("A", "art_painting", 2048),
        Place("C", "cartoon", 2344),
        Place("P", "photo", 1670),
        Place("S", "sketch", 3929),
    )
