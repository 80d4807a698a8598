"""DomainNet."""

from oodbench.data.pictures.folders import image_metadata
from oodbench.data.pictures.published import Place, Suite
from oodbench.datasets import register


@register(
    "DomainNet",
    image_metadata(
        paper="arXiv:1812.01754",
        licence="fair use, non-commercial research",
        shift="the style of the picture",
        folder="domain_net",
    ),
)
class DomainNet(Suite):
    """345 classes of objects in six styles, without duplicates (586,575 images).

    The numbers of images are the published ones of training and test together.
    """

    source = "https://ai.bu.edu/M3SDA/ (cleaned, less the files in DomainBed's list of duplicates)"
    num_classes = 345
    places = (
        Place("clip", "clipart", 48129),
        Place("info", "infograph", 51605),
        Place("paint", "painting", 72266),
        Place("quick", "quickdraw", 172500),
        Place("real", "real", 172947),
        Place("sketch", "sketch", 69128),
    )
