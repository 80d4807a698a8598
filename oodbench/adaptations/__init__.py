"""Adaptations by name: test-time changes of a trained network by unlabelled test inputs."""

from oodbench.adaptations.base import Adaptation as Adaptation
from oodbench.adaptations.base import Stream as Stream
from oodbench.adaptations.base import adaptations as adaptations
from oodbench.adaptations.base import adapted as adapted
from oodbench.adaptations.base import register as register
