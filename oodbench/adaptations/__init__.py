"""Adaptations by name: they change a trained predictor by the unlabelled inputs that it predicts."""

from oodbench.adaptations.base import Adaptation as Adaptation
from oodbench.adaptations.base import Stream as Stream
from oodbench.adaptations.base import adaptations as adaptations
from oodbench.adaptations.base import adapted as adapted
from oodbench.adaptations.base import register as register
