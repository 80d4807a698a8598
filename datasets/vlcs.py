"""VLCS."""

from oodbench.data.pictures.folders import image_metadata
from oodbench.data.pictures.published import Place, Suite
from oodbench.datasets import register


@register(
    "VLCS",
    image_metadata(
        paper="Fang et al., Unbiased metric learning, ICCV 2013",
        licence="those of its four sources",
        shift="the collection that a photograph is from",
        folder="VLCS",
    ),
)
class VLCS(Suite):
    """Five classes of objects in photographs of four collections (10,729 images).

    The number of images of each class is from memory; the sum is the published one.
    """

    source = "https://github.com/facebookresearch/DomainBed (domainbed/scripts/download.py)"
    num_classes = 5
    places = (
        Place("C", "Caltech101", (237, 123, 118, 67, 870)),
        Place("L", "LabelMe", (80, 1209, 88, 42, 1237)),
        Place("S", "SUN09", (20, 932, 1036, 30, 1264)),
        Place("V", "VOC2007", (330, 699, 428, 420, 1499)),
    )
