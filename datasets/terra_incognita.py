"""TerraIncognita."""

from oodbench.data.pictures.folders import image_metadata
from oodbench.data.pictures.published import Place, Suite
from oodbench.datasets import register


@register(
    "TerraIncognita",
    image_metadata(
        paper="arXiv:1807.04975",
        licence="CDLA-Permissive 1.0 (not checked)",
        shift="the place of the camera",
        folder="terra_incognita",
    ),
)
class TerraIncognita(Suite):
    """Ten kinds of animals, or none, seen by four camera traps.

    24,788 images are published; their number at each location depends on the version of the annotations
    and is not checked.
    """

    source = "https://lila.science/datasets/caltech-camera-traps (sorted by DomainBed's script)"
    num_classes = 10
    total = 24788
    places = (
        Place("L100", "location_100"),
        Place("L38", "location_38"),
        Place("L43", "location_43"),
        Place("L46", "location_46"),
    )
