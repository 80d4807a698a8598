"""Each adaptation against its equation, written out by loops in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oodbench
from oodbench.adaptations import Stream, in_batches

COUNT, CLASSES, SIZE = 53, 4, 11


@pytest.fixture
def x() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(COUNT, 2, 6, 6, generator=generator, dtype=torch.float64) + 0.7


@pytest.fixture
def network() -> Any:
    """Two convolutions with batch normalisation that have seen other data, and a linear head."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        layers: list[Any] = [nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 6, 3)]
        layers += [nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, CLASSES)]
        made: Any = nn.Sequential(*layers).double()
        for layer in made:
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.uniform_(layer.weight, 0.5, 1.5)
                nn.init.normal_(layer.bias, 0, 0.3)
        for _ in range(9):
            made(torch.randn(30, 2, 6, 6, dtype=torch.float64))
        made[-1].weight.data *= 4
    return made.eval()


def batches() -> list[Tensor]:
    return [*torch.tensor_split(torch.arange(COUNT), math.ceil(COUNT / SIZE))]


def adapted(network: Any, x: Tensor, name: str, **hparams: Any) -> Tensor:
    return oodbench.adapt(network, x, {"name": name, "batch_size": SIZE, **hparams})


def close(found: Tensor, wanted: Tensor, before: Tensor) -> None:
    """Equal to 1e-8, and not what the network predicts without adaptation."""
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-8, atol=1e-8)
    assert (wanted - before).abs().max() > 1e-3


@pytest.mark.parametrize("prior", [0, 16])
def test_batch_norm_mixes_the_statistics_of_training_and_batch(
    prior: int, network: Any, x: Tensor
) -> None:
    parts = []
    for rows in batches():
        z = x[rows]
        for layer in network:
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None and layer.running_var is not None
                columns = []
                for c in range(z.shape[1]):
                    values = z[:, c]
                    n = len(rows)
                    mean = (prior * layer.running_mean[c] + n * values.mean()) / (prior + n)
                    spread = ((values - values.mean()) ** 2).mean()
                    var = (prior * layer.running_var[c] + n * spread) / (prior + n)
                    scaled = (values - mean) / (var + layer.eps).sqrt()
                    columns.append(layer.weight[c] * scaled + layer.bias[c])
                z = torch.stack(columns, 1)
            else:
                z = layer(z)
        parts.append(z)
    close(adapted(network, x, "BatchNorm", prior=prior), torch.cat(parts), network(x))


def entropy(logits: Tensor) -> Tensor:
    shares = (logits - logits.max()).exp() / (logits - logits.max()).exp().sum()
    return -(shares * shares.log()).sum()


@torch.no_grad()
@pytest.mark.parametrize("most", [1, 5, 0])
def test_t3a_predicts_by_templates_of_the_surest_features(
    most: int, network: Any, x: Tensor
) -> None:
    head = network[-1]
    sets: list[list[tuple[float, Tensor]]] = [[] for _ in range(CLASSES)]

    def join(z: Tensor) -> None:
        scores = head.weight @ z + head.bias
        sets[int(scores.argmax())].append((float(entropy(scores)), z / z.norm()))

    for weight in head.weight:
        join(weight)
    logits = []
    for rows in batches():
        features = network[:-1](x[rows])
        for z in features:
            join(z)
        templates = []
        for k in range(CLASSES):
            sets[k].sort(key=lambda pair: pair[0])
            del sets[k][most or COUNT + CLASSES :]
            total = sum((z for _, z in sets[k]), torch.zeros(24, dtype=torch.float64))
            templates.append(total / max(total.norm().item(), 1e-12))
        logits += [torch.stack([z @ template for template in templates]) for z in features]
    close(adapted(network, x, "T3A", supports=most), torch.stack(logits), network(x))


@pytest.mark.parametrize("steps", [1, 3])
def test_tent_steps_on_the_entropy_by_scales_and_shifts_alone(
    steps: int, network: Any, x: Tensor
) -> None:
    values = [p.detach().clone() for i in (1, 4) for p in (network[i].weight, network[i].bias)]
    first = [torch.zeros_like(v) for v in values]
    second = [torch.zeros_like(v) for v in values]
    count, parts = 0, []
    for rows in batches():
        for _ in range(steps):
            leaves = [v.clone().requires_grad_() for v in values]
            z = x[rows]
            for i, layer in enumerate(network):
                if i in (1, 4):
                    mean = z.mean((0, 2, 3), keepdim=True)
                    var = ((z - mean) ** 2).mean((0, 2, 3), keepdim=True)
                    scale, shift = leaves[:2] if i == 1 else leaves[2:]
                    z = (z - mean) / (var + layer.eps).sqrt()
                    z = z * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
                else:
                    z = layer(z)
            loss = torch.stack([entropy(logits) for logits in z]).mean()
            gradients = torch.autograd.grad(loss, leaves)
            count += 1
            for v, m, s, g in zip(values, first, second, gradients, strict=True):
                m += 0.1 * (g - m)
                s += 0.001 * (g**2 - s)
                step = m / (1 - 0.9**count) / ((s / (1 - 0.999**count)).sqrt() + 1e-8)
                v -= 0.01 * step
        parts.append(z)
    close(adapted(network, x, "TENT", lr=0.01, steps=steps), torch.cat(parts), network(x))


@pytest.mark.parametrize(("affinity", "k"), [("knn", 1), ("knn", 5), ("rbf", 3), ("linear", 1)])
def test_lame_updates_until_the_objective_of_its_authors_is_at_rest(
    affinity: str, k: int, network: Any, x: Tensor
) -> None:
    parts = []
    for rows in batches():
        features = network[:-1](x[rows]).detach()
        z = features / features.norm(dim=1, keepdim=True)
        p = network(x[rows]).detach().softmax(1) + 1e-10
        n = len(rows)
        far = torch.tensor([[float((a - b).norm()) for b in z] for a in z], dtype=torch.float64)
        w = torch.zeros(n, n, dtype=torch.float64)
        kth = sum(sorted(row)[k - 1] for row in far.tolist()) / n
        for i in range(n):
            near = sorted(range(n), key=lambda j: (j != i, far[i, j].item()))[1 : k + 1]
            for j in range(n):
                if affinity == "rbf":
                    w[i, j] = math.exp(-(float(far[i, j]) ** 2) / (2 * kth**2))
                elif affinity == "linear":
                    w[i, j] = z[i] @ z[j]
                else:
                    w[i, j] = float(j in near)
        y, energies = p / p.sum(1, keepdim=True), list[float]()
        while len(energies) < 3 or abs(energies[-1] - energies[-2]) > 1e-8 * abs(energies[-2]):
            pairs = w @ y
            y = (p.log() + pairs).softmax(1)
            energies.append(float((y * (y.log() - p.log() - pairs)).sum()))
            if len(energies) == 100:
                break
        parts.append(y)
    found = adapted(network, x, "LAME", affinity=affinity, neighbours=k).exp()
    torch.testing.assert_close(found, torch.cat(parts), rtol=1e-8, atol=1e-8)
    assert (found - network(x).softmax(1)).abs().max() > 0.05


@pytest.mark.parametrize("predicted_only", [True, False])
def test_shot_trains_the_features_towards_the_labels_of_centroids(
    predicted_only: bool, network: Any, x: Tensor
) -> None:
    network[-1].bias.data[2] -= 6  # no input is predicted as class 2
    before = network(x).detach()
    assert 2 not in before.argmax(1)
    found = adapted(network, x, "SHOT", epochs=2, lr=0.05, predicted_only=predicted_only)
    stream = Stream(in_batches(torch.arange(COUNT), SIZE), lambda places: (x[p] for p in places))
    generator = torch.Generator().manual_seed(0)
    trained = [p for layer in network[:-1] for p in layer.parameters()]
    velocity = [torch.zeros_like(p) for p in trained]
    total, step = 2 * len(stream.batches), 0
    for _ in range(2):
        network.eval()
        phi = network[:-1](x).detach()
        phi = torch.cat([phi, torch.ones(COUNT, 1, dtype=torch.float64)], 1)
        phi = phi / phi.norm(dim=1, keepdim=True)
        weights = network(x).detach().softmax(1)
        labels = weights.argmax(1)
        there = {*labels.tolist()} if predicted_only else {*range(CLASSES)}
        for _ in range(2):
            means = {k: (weights[:, k : k + 1] * phi).sum(0) for k in there}
            cosines = [{k: float(v @ c / c.norm()) for k, c in means.items()} for v in phi]
            labels = torch.tensor([max(row, key=row.__getitem__) for row in cosines])
            there = {*labels.tolist()}
            weights = torch.eye(CLASSES, dtype=torch.float64)[labels]
        network.train()
        for places, inputs in stream.shuffled(generator):
            step += 1
            logits = network(inputs)
            p = logits.softmax(1)
            mean = p.mean(0)
            loss = -(p * (p + 1e-5).log()).sum() / len(p) + (mean * (mean + 1e-5).log()).sum()
            right = p.log()[torch.arange(len(p)), labels[places]]
            gradients = torch.autograd.grad(loss - 0.3 * right.mean(), trained)
            rate = 0.05 * (1 + 10 * step / total) ** -0.75
            with torch.no_grad():
                for w, v, g in zip(trained, velocity, gradients, strict=True):
                    g = g + 1e-3 * w
                    v.mul_(0.9).add_(g)
                    w.sub_(rate * (g + 0.9 * v))
    network.eval()
    close(found, network(x), before)


@pytest.mark.parametrize("name", ["T3A", "TENT", "SHOT", "LAME", "BatchNorm"])
def test_one_logit_of_two_classes_is_as_two_of_them(name: str, network: Any, x: Tensor) -> None:
    one = nn.Linear(24, 1).double()
    two = nn.Linear(24, 2).double()
    two.weight.data = torch.cat([-one.weight / 2, one.weight / 2]).detach()
    two.bias.data = torch.cat([-one.bias / 2, one.bias / 2]).detach()
    found, wanted = (adapted(nn.Sequential(*network[:-1], head), x, name) for head in (one, two))
    assert found.shape == (COUNT, 1)
    torch.testing.assert_close(found, wanted[:, 1:] - wanted[:, :1])


@pytest.mark.parametrize("name", ["T3A", "TENT", "SHOT", "LAME", "BatchNorm"])
def test_the_module_stays_as_it_is(name: str, network: Any, x: Tensor) -> None:
    before = {key: value.clone() for key, value in network.state_dict().items()}
    network.train()
    adapted(network, x, name)
    assert network.training and all(p.grad is None for p in network.parameters())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(module._forward_pre_hooks for module in network.modules())
