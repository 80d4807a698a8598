from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.data.encodings import ROW, molecule
from oodbench.errors import UserError
from oodbench.networks.base import build


def graph(atoms: int, seed: int) -> SimpleNamespace:
    """A ring, every bond in both directions, each of a kind of its own."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.stack([torch.arange(atoms), (torch.arange(atoms) + 1) % atoms])
    kinds = torch.randint(2, (2 * atoms, 3), generator=generator)
    x = torch.randint(2, (atoms, 9), generator=generator)
    edges = torch.cat([ends, ends.flip(0)], 1)
    return SimpleNamespace(x=x, edge_index=edges, edge_attr=kinds)


def network(**values: object) -> Any:
    """In float64 and evaluation, with statistics of batch normalisation that are not the initial."""
    values = {"width": 6, "depth": 3} | values
    found: Any = build("GIN", values, (8, ROW), 2, seed=0).double()
    for module in found.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    torch.nn.init.normal_(found.featurizer.virtual)
    torch.nn.init.normal_(found.featurizer.eps)
    return found.eval()


def by_hand(net: Any, g: SimpleNamespace) -> Tensor:
    """The features of one molecule, atom by atom and bond by bond."""
    body = net.featurizer
    h = [sum(t(row[k]) for k, t in enumerate(body.atoms.tables)) for row in g.x]
    virtual = body.virtual
    for layer, update in enumerate(body.updates):
        h = [v + virtual for v in h]
        new = [(1 + body.eps[layer]) * v for v in h]
        for (i, j), kind in zip(g.edge_index.T.tolist(), g.edge_attr, strict=True):
            bond = sum(t(kind[k]) for k, t in enumerate(body.bonds[layer].tables))
            new[j] = new[j] + (h[i] + bond).relu()
        if layer < len(body.updates) - 1:
            virtual = body.virtual_updates[layer]((virtual + sum(h)).unsqueeze(0))[0]
        h = [update(v.unsqueeze(0))[0] for v in new]
        if layer < len(body.updates) - 1:
            h = [v.relu() for v in h]
    found: Tensor = sum(h) / len(h)
    return found


def test_features_are_those_of_the_formula() -> None:
    net, graphs = network(), [graph(3, 0), graph(8, 1), graph(5, 2)]
    rows = torch.stack([molecule(g, 8) for g in graphs])
    assert rows.dtype == torch.int16
    features = net.featurizer(rows)
    for found, g in zip(features, graphs, strict=True):
        torch.testing.assert_close(found, by_hand(net, g))
    assert net(molecule(graph(4, 3), 8)[None]).shape == (1, 2)


def test_a_molecule_of_too_many_atoms_is_told() -> None:
    with pytest.raises(UserError, match="a molecule of 9 atoms needs the option size=9"):
        molecule(graph(9, 0), 8)
