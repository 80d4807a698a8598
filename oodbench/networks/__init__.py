"""Networks by name: a featurizer and a classifier, built for an input shape."""

from oodbench.networks.base import Network as Network
from oodbench.networks.base import build as build
from oodbench.networks.base import networks as networks
from oodbench.networks.base import register as register
