"""A network for molecules as rows of an atom and three bonds each; see `data.encodings.molecule`."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oodbench.data.encodings import ATOM, BOND, ROW
from oodbench.data.wilds import package
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.networks.base import Network, register


class _Embedding(nn.Module):
    """Rows of categories (M, K) to the sums of their vectors (M, F)."""

    def __init__(self, sizes: list[int], width: int) -> None:
        super().__init__()
        tables = [nn.Embedding(size, width) for size in sizes]
        for table in tables:
            nn.init.xavier_uniform_(table.weight)
        self.tables = nn.ModuleList(tables)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([t(rows[:, k]) for k, t in enumerate(self.tables)]).sum(0)


def _two_layers(width: int) -> list[nn.Module]:
    return [nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU()]


class _GIN(nn.Module):
    """Molecules (N, size, ROW) to the means of their atoms' features (N, F)."""

    def __init__(self, width: int, depth: int, dropout: float) -> None:
        from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims

        super().__init__()
        self.atoms = _Embedding(get_atom_feature_dims(), width)
        self.bonds = nn.ModuleList(_Embedding(get_bond_feature_dims(), width) for _ in range(depth))
        self.eps = nn.Parameter(torch.zeros(depth))
        self.updates = nn.ModuleList(
            nn.Sequential(*_two_layers(width), nn.Linear(2 * width, width), nn.BatchNorm1d(width))
            for _ in range(depth)
        )
        self.virtual = nn.Parameter(torch.zeros(width))
        self.virtual_updates = nn.ModuleList(
            nn.Sequential(
                *_two_layers(width), nn.Linear(2 * width, width), nn.BatchNorm1d(width), nn.ReLU()
            )
            for _ in range(depth - 1)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, molecules: Tensor) -> Tensor:
        rows = molecules.long()
        atoms, bonds = rows[..., :ATOM], rows[..., ATOM:].reshape(len(rows), -1, BOND)
        is_atom, is_bond = atoms[..., 0] >= 0, bonds[..., 0] >= 0
        molecule = is_atom.nonzero()[:, 0]
        number = is_atom.flatten().cumsum(0).view(is_atom.shape) - 1  # among all atoms
        source, target = (number.gather(1, bonds[..., k].clamp(min=0))[is_bond] for k in (0, 1))
        h, kinds = self.atoms(atoms[is_atom]), bonds[is_bond][:, 2:]
        virtual = self.virtual.expand(len(rows), -1)
        for layer, update in enumerate(self.updates):
            h = h + virtual[molecule]
            messages = (h[source] + self.bonds[layer](kinds)).relu()
            new = update(((1 + self.eps[layer]) * h).index_add(0, target, messages))
            if layer < len(self.virtual_updates):
                total = virtual.index_add(0, molecule, h)
                virtual = self.dropout(self.virtual_updates[layer](total))
                new = new.relu()
            h = self.dropout(new)
        sums: Tensor = h.new_zeros(len(rows), h.shape[1]).index_add(0, molecule, h)
        return sums / is_atom.sum(1, keepdim=True)


@register("GIN")
class GIN(Network):
    """Graph isomorphism network with a virtual node, averaged over atoms (arXiv:1810.00826, 2005.00687).

    h_i <- MLP((1 + eps) h_i + sum over bonds j-i of relu(h_j + bond)); the virtual node is added to
    every atom before each layer and learns from their sum, as in the Open Graph Benchmark's code.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The defaults are those of the Open Graph Benchmark's example for ogbg-molpcba."""

        width: int = hparam(300, low=1)
        depth: int = hparam(5, low=1)
        dropout: float = hparam(0.5, low=0.0, high=0.99)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__()
        if len(input_shape) != 2 or input_shape[1] != ROW:
            raise UserError(
                f"the network GIN takes molecules, not inputs of the shape {input_shape}"
            )
        package()  # whose import of ogb asks nobody for newer versions
        self.hparams = hparams
        self.num_features = hparams.width
        self.featurizer = _GIN(hparams.width, hparams.depth, hparams.dropout)
        self.classifier = nn.Linear(hparams.width, num_outputs)
