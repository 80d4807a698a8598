"""PACS."""

from oodbench.data.pictures.folders import image_metadata
from oodbench.data.pictures.published import Place, Suite
from oodbench.datasets import register


@register(
    "PACS",
    image_metadata(
        paper="arXiv:1710.03077",
        licence="unstated (research)",
        shift="the style of the picture",
        folder="PACS",
    ),
)
class PACS(Suite):
    """Seven classes of objects in art paintings, cartoons, photographs and sketches (9,991 images).

    The numbers of images are those of arXiv:2003.06054; the data come without a licence.
    """

    source = "https://dali-dl.github.io/project_iccv2017.html"
    num_classes = 7
    places = (
        Place("A", "art_painting", 2048),
        Place("C", "cartoon", 2344),
        Place("P", "photo", 1670),
        Place("S", "sketch", 3929),
    )
