"""OfficeHome."""

from oodbench.data.pictures.folders import image_metadata
from oodbench.data.pictures.published import Place, Suite
from oodbench.datasets import register


@register(
    "OfficeHome",
    image_metadata(
        paper="arXiv:1706.07522",
        licence="non-commercial research (not checked)",
        shift="the style of the picture",
        folder="office_home",
    ),
)
class OfficeHome(Suite):
    """65 kinds of things from offices and homes in pictures of four kinds (15,588 images).

    The number of images of each kind is from memory; the sum is the published one.
    """

    source = "https://www.hemanthdv.org/officeHomeDataset.html"
    num_classes = 65
    places = (
        Place("A", "Art", 2427),
        Place("C", "Clipart", 4365),
        Place("P", "Product", 4439),
        Place("R", "Real World", 4357),
    )
