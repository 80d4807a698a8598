"""Audits of a dataset: leaks, identifiers and too few examples, which change what a run's numbers mean."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from oodbench.data.pictures.folders import Images
from oodbench.data.pictures.pixels import TINY
from oodbench.data.preparation import Contents, class_names, group_names, hashes_of
from oodbench.data.streams import Stored
from oodbench.data.tables.audit import (
    FEW,
    FEW_EXAMPLES,
    MEANINGLESS,
    ROUNDING,
    Array,
    are_coarse,
    names_of,
    of_columns,
    rows_of,
)
from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError, counted, some
from oodbench.notes import Finding

DARKER = 5
"""Environments whose brightest pictures differ by this factor may differ in the scale of values."""
CLOSE = 0.15
"""Pictures that look alike differ by at most this share of their contrast."""
LARGE = 2**28
"""A user's data are loaded twice and compared, unless they have more bytes than this."""
UNSEEN = 0.2
"""Categories that training environments lack matter if they have this share of a test environment."""
RARE = 0.1
"""Copies of so few examples may be chance if inputs are also equal within environments."""
LUMINANCE = np.array([[0.299], [0.587], [0.114]])
"""The shares of red, green and blue in grey."""
Environments = Mapping[str, Environment]
Hashes = Mapping[str, Sequence[bytes | None]]


def audit_of(dataset: Dataset, every: Sequence[Contents]) -> list[Finding]:
    """Findings on the result of `inspect`, for the default test environments and for each one alone."""
    environments = {c.name: c.examples for c in every}
    held_out = [dataset.test_environments, *((name,) for name in environments)]
    roles = [(tests, dataset.trainable(tests)) for tests in held_out]
    return audit(dataset, environments, roles, {c.name: c.hashes for c in every})


def _unseeded(dataset: Dataset, environments: Environments, trial: int) -> list[Finding]:
    """A finding if a user's dataset gives different examples when it is loaded again."""
    known = {name: e.x for name, e in environments.items() if isinstance(e.x, torch.Tensor)}
    is_ours = type(dataset).__module__.startswith("oodbench.")
    if not known or is_ours or sum(x.nbytes for x in known.values()) > LARGE:
        return []
    again: Any = type(dataset)(dataset.options, dataset.data_dir).load(trial)
    odd = [name for name, x in known.items() if not torch.equal(x, again[name].x)]
    listed = some([*map(repr, odd)], 3)
    text = f"{listed} differ each time that they are loaded: draw from `self.generator(trial)`"
    return [Finding("unseeded data", tuple(odd), {}, "", text)] if odd else []


def audit(
    dataset: Dataset,
    environments: Environments,
    roles: Sequence[tuple[Sequence[str], Sequence[str]]],
    hashes: Hashes | None = None,
    outs: Mapping[str, Mapping[int, torch.Tensor]] | None = None,
    trial: int = 0,
) -> list[Finding]:
    """Findings on a dataset; `roles` lists pairs of test and training environments, which are compared.

    `hashes` of inputs are computed by default, unless that takes reading files. `outs` holds the indices of
    `out` splits by environment and trial. Columns are judged on the first pair's training environments.
    """
    found = _unseeded(dataset, environments, trial)
    with suppress(UserError, OSError):  # examples that cannot be read stop the runs that need them
        training = roles[0][1] if roles else ()
        rows = rows_of(dataset.columns, environments, training)
        of_table = [*of_columns(rows, dataset.task)] if rows else []
        ignored = {name for each in of_table if each.kind in MEANINGLESS for name in each.counts}
        inputs = {} if dataset.repeats else _numbered(dataset, environments, hashes, ignored)
        looks = {}
        if isinstance(dataset, Images) and inputs:
            looks = _alike(dataset, inputs)
            found += _several_classes(dataset, environments, inputs)
            found += [*_of_forms(dataset, environments), *_of_scales(dataset)]
        units = {n: e.clusters.numpy() for n, e in environments.items() if e.clusters is not None}
        of = {"looks": looks, "inputs": inputs, "groups": units}
        coarse = rows is not None and bool(inputs) and are_coarse(rows, ignored)
        tallies = _tallies(dataset, environments, ignored)
        for test, training in ((test, training) for tests, training in roles for test in tests):
            for what, numbers in of.items():
                both = {n: numbers[n] for n in (test, *training) if n in numbers}
                used = {n: each[_used(environments[n], n == test)] for n, each in both.items()}
                if test in used and len(used) > 1:
                    by_chance = what == "looks" or (what == "inputs" and coarse)
                    found += _shared(dataset, test, used.pop(test), used, what, by_chance)
            found += _unseen_categories(dataset, test, tallies, training)
            found += _groups_of_one_side(dataset, test, tallies, training)
        found += of_table
    for name in dict.fromkeys(name for tests, _ in roles for name in tests):
        found += _few(dataset, name, environments[name])
    for name, of_trials in (outs or {}).items():
        if any(name in training for _, training in roles):
            found += _lacking(dataset, name, environments[name].y, of_trials)
            found += _cut(name, environments[name], of_trials)
    once: dict[Any, Finding] = {}
    for each in found:
        once.setdefault((each.kind, each.environments[0], each.example), each)
    return [*once.values()]


def _used(environment: Environment, is_held_out: bool) -> Array:
    unseen, all_ = environment.unseen, torch.ones(len(environment.y), dtype=torch.bool)
    return (all_ if unseen is None else unseen == is_held_out).numpy()


def _numbered(
    dataset: Dataset, environments: Environments, hashes: Hashes | None, ignored: Collection[str]
) -> dict[str, Array]:
    """Integers (N,) by environment, equal for equal inputs; empty if files would have to be read.

    The columns `ignored`, such as identifiers, differ between copies.
    """
    are_stored = any(isinstance(e.x, Stored) for e in environments.values())
    if dataset.columns is not None and not are_stored:
        # keep 16 bits of 24, so that rounding by other programs makes no difference
        width = next(iter(environments.values())).x.shape[1]
        names = names_of(dataset.columns, width)
        kept = [i for i, name in enumerate(names) if name not in ignored] or [*range(width)]
        rounded = {
            n: (e.x[:, kept].float().view(torch.int32) + 64) >> 7 for n, e in environments.items()
        }
        hashes = {n: hashes_of(replace(environments[n], x=x))[0] for n, x in rounded.items()}
    elif hashes is None and isinstance(dataset, Images):
        looks = dataset.survey.items()
        hashes = {name: [bytes.fromhex(look.digest) for look in each] for name, each in looks}
    elif hashes is None and not are_stored:
        hashes = {name: hashes_of(e)[0] for name, e in environments.items()}
    known = hashes or {}
    every = [h or f"{n} {i}".encode() for n, each in known.items() for i, h in enumerate(each)]
    ends = np.cumsum([len(each) for each in known.values()])[:-1]
    numbers = np.split(np.unique(every, return_inverse=True)[1], ends)
    return dict(zip(known, numbers, strict=bool(known)))


def _several_classes(
    dataset: Images, environments: Environments, numbers: Mapping[str, Array]
) -> Iterator[Finding]:
    if not dataset.task.has_classes:
        return
    whole = np.concatenate([*numbers.values()])
    y = torch.cat([environments[name].y for name in numbers]).numpy()
    classes = Counter(number for number, _ in {*zip(whole.tolist(), y.tolist(), strict=True)})
    several = [number for number, count in classes.items() if count > 1]
    sizes = {name: int(np.isin(each, several).sum()) for name, each in numbers.items()}
    if several:
        text = some([f"{counted(n, 'picture')} of '{name}'" for name, n in sizes.items() if n], 3)
        text += " have other classes in equal copies: at most one class of each is right"
        where = tuple(name for name, n in sizes.items() if n)
        yield Finding("several classes", where, {"pictures": len(several)}, "", text)


def _of_forms(dataset: Images, environments: Environments) -> Iterator[Finding]:
    """A finding if each class has its own formats and sizes of files."""
    if not dataset.task.has_classes:
        return
    y = [int(target) for name in dataset.survey for target in environments[name].y]
    forms = [each.form for looks in dataset.survey.values() for each in looks]
    (_, rarest), known = Counter(forms).most_common()[-1], {*zip(forms, y, strict=True)}
    if len({*forms}) == len(known) > 1 and len({*y}) > 1 and rarest >= FEW:
        names = class_names(dataset)
        said = some([f"{form} ({names[target]})" for form, target in sorted(known)], 3)
        text = f"each class has its own formats and sizes of files: {said}"
        yield Finding("a telling form", tuple(environments), {}, sorted(known)[0][0], text)


def _of_scales(dataset: Images) -> Iterator[Finding]:
    """A finding if the pictures of some environment are all much darker than those of others."""
    tiny = {
        name: [look.tiny for look in looks if look.tiny] for name, looks in dataset.survey.items()
    }
    most = {n: max(bytes.fromhex("".join(each))) for n, each in tiny.items() if len(each) >= FEW}
    low, high = (pick(most, key=lambda name: most[name], default="") for pick in (min, max))
    if most and DARKER * most[low] <= most[high]:
        text = (
            f"no part of a picture of '{low}' is brighter than {most[low]} of 255 on average, and"
        )
        text += f" parts of '{high}' reach {most[high]}: their values may be of another scale"
        yield Finding("another scale", (low, high), most, "", text)


def _alike(dataset: Images, numbers: Mapping[str, Array]) -> dict[str, Array]:
    """The `numbers`, made equal for pictures that look alike; empty if no pictures do.

    A picture looks like its copies that were saved again as JPEG, mirrored, turned, made grey or inverted.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    whole = np.concatenate([*numbers.values()])
    seen = [look.tiny for name in numbers for look in dataset.survey[name]]
    _, first = np.unique(whole, return_index=True)
    at = np.array([i for i in first if seen[i]], dtype=int)
    of = np.repeat(np.arange(len(numbers)), [len(each) for each in numbers.values()])[at]
    tiny = bytes.fromhex("".join(seen[i] for i in at))
    pixels = np.frombuffer(tiny, np.uint8).reshape(len(at), TINY, TINY, 3).astype(float)
    is_grey = np.ptp(pixels, 3).max((1, 2), initial=0) < 1
    if is_grey.any() and not is_grey.all():
        pixels = pixels @ LUMINANCE
    pixels -= pixels.mean((1, 2, 3), keepdims=True)
    pixels /= np.sqrt((pixels**2).sum((1, 2, 3), keepdims=True))
    cubes = (pixels**3).sum((1, 2, 3), keepdims=True)
    # a negative has the opposite skew, and a picture with symmetric values has none
    signs = np.where(np.abs(cubes) < ROUNDING, 1, np.sign(cubes))
    pairs = np.concatenate([_close(pixels, of), _close(pixels * signs, of)])
    if not len(pairs):
        return {}
    links = coo_array((np.ones(len(pairs)), at[pairs].T), shape=2 * (len(whole),))
    ends = np.cumsum([len(each) for each in numbers.values()])[:-1]
    same = connected_components(links)[1][first][whole]
    return dict(zip(numbers, np.split(same, ends), strict=True))


def _close(pixels: Array, of: Array) -> Array:
    """The pairs (P, 2) of pictures that are much closer than neighbours in an environment usually are."""
    parts = [p.reshape(len(p), -1) for i in {*of.tolist()} if len(p := pixels[of == i]) > FEW]
    cosines = [np.partition(p[:: 1 + len(p) // 200] @ p.T, -2)[:, -2] for p in parts]
    apart = [np.sqrt(np.maximum(2 - 2 * each, 0)) for each in cosines]  # from the nearest other
    radius = min([CLOSE, *(float(np.quantile(each, 0.05)) / 3 for each in apart)])
    return neighbours(pixels, radius) if parts else np.empty((0, 2), int)


def neighbours(pixels: Array, radius: float) -> Array:
    """The pairs (P, 2) of pictures (N, side, side, C) at most `radius` apart if turned or mirrored."""
    from scipy.spatial import cKDTree

    both = pixels, pixels.transpose(0, 2, 1, 3)
    ways = np.stack(
        [each[:, ::up, ::across] for each in both for up in (1, -1) for across in (1, -1)]
    )
    # after sorting the pixels that turns exchange, all ways are equal, and distances are no larger
    half = pixels.shape[1] // 2
    x = np.moveaxis(np.sort(ways[:, :, :half, :half], 0), 0, 1).reshape(len(pixels), -1) / 2**0.5
    x -= x.mean(0)
    # trees are fast in few dimensions; close rows are also close in the directions of largest variance
    vectors, some = np.linalg.eigh(x.T @ x).eigenvectors, x[:: 1 + len(x) // 1000]
    for dimensions in (8, 16, 32, x.shape[1]):
        main = vectors[:, -dimensions:]
        found = cKDTree(some @ main).query_pairs(radius, output_type="ndarray")
        if len(found) * len(x) <= 10 * len(some) ** 2:  # few enough to compare all
            break
    pairs = cKDTree(x @ main).query_pairs(radius, output_type="ndarray")
    second = pixels[pairs[:, 1]]
    apart = [((way[pairs[:, 0]] - second) ** 2).sum((1, 2, 3)) for way in ways]
    near: Array = pairs[np.min(apart, 0) <= radius**2]
    return near


def _shared(
    dataset: Dataset,
    test: str,
    tested: Array,
    trained: Mapping[str, Array],
    of: str,
    may_be_chance: bool,
) -> Iterator[Finding]:
    whole = np.concatenate([*trained.values()])
    units, count = np.intersect1d(tested, whole), int(np.isin(tested, whole).sum())
    is_rare = count < RARE * len(tested) and of == "inputs"
    is_chance = (may_be_chance or is_rare) and _is_chance(tested, whole, int(may_be_chance))
    if not count or (of == "looks" and is_chance):
        return
    where = [name for name, there in trained.items() if np.isin(tested, there).any()]
    listed = some([*map(repr, where)], 3)
    text, example = f"{count} of the {counted(len(tested), 'example')} of '{test}'", ""
    counts = {"examples": count, "of": len(tested)}
    if of != "groups":
        kind = "equal inputs" if is_chance else "copies"
        why = "chance, as often as within each" if is_chance else "copies of training examples"
        text += f" {'look like' if of == 'looks' else 'share the inputs of'} examples of {listed}: {why}"
    else:
        kind = "separated groups" if dataset.separates_clusters else "shared groups"
        example = str(dataset.cluster_names[units[0]]) if dataset.cluster_names else ""
        left = int((~np.isin(whole, tested)).sum())
        counts |= {"groups": len(units), "training examples": len(whole) - left}
        text += f" are of {counted(len(units), 'group')}{f' (such as {example!r})' * bool(example)}"
        text += f" that are also in {listed}"
        if dataset.separates_clusters:
            text += f": {left} of {len(whole)} examples are left to train on"
        elif hasattr(dataset.options, "group_across"):
            text += ": `group_across: drop` leaves them out of training"
    yield Finding(kind, (test, *where), counts, example, text)


def _is_chance(tested: Array, trained: Array, least: int) -> bool:
    """Whether equal pairs between two sets are about as frequent as within each set, plus `least`."""
    size = 1 + max(tested.max(), trained.max())
    a, b = (np.bincount(numbers, minlength=size) for numbers in (tested, trained))
    within = [least + int((n * (n - 1)).sum()) // 2 for n in (a, b)]
    return bool(int((a * b).sum()) <= 3 * (within[0] * within[1]) ** 0.5)


def _tallies(
    dataset: Dataset, environments: Environments, ignored: Collection[str]
) -> dict[str, dict[str, Array]]:
    """The numbers of examples of each category, by environment and column, and of each group by ""."""
    columns, tallies = dataset.columns, dict[str, dict[str, Array]]()
    for name, e in environments.items():
        of = tallies[name] = {}
        if columns is not None and not isinstance(e.x, Stored) and len(e.y):
            for i, column in enumerate(names_of(columns, e.x.shape[1])):
                if column not in ignored and (known := columns.categories.get(column)):
                    of[column] = np.bincount(e.x[:, i].long().numpy(), minlength=len(known))
        if e.attributes is not None and dataset.task.has_classes:
            groups = dataset.task.groups(e.y.long(), e.attributes, len(dataset.attributes))
            of[""] = np.bincount(groups.numpy(), minlength=len(group_names(dataset)))
    return tallies


def _sides(
    tallies: Mapping[str, Mapping[str, Array]], column: str, test: str, training: Sequence[str]
) -> tuple[Array, Array]:
    """The tallies of a test environment and of its training ones; the former twice if these have none."""
    others = [of[column] for n in training if column in (of := tallies.get(n, {}))]
    return tallies[test][column], np.sum(others, 0) if others else tallies[test][column]


def _unseen_categories(
    dataset: Dataset, test: str, tallies: Mapping[str, Mapping[str, Array]], training: Sequence[str]
) -> Iterator[Finding]:
    known = {} if dataset.columns is None else dataset.columns.categories
    for column in [column for column in known if column in tallies[test]]:
        here, there = _sides(tallies, column, test, training)
        new = np.flatnonzero((here > 0) & (there == 0))
        if (count := int(here[new].sum())) >= max(FEW, UNSEEN * here.sum()):
            listed, size = some([repr(known[column][i]) for i in new], 3), int(here.sum())
            text = f"no training environment has {listed} of '{column}', which {count} of the "
            text += f"{counted(size, 'example')} of '{test}' have: runs do not see them"
            yield Finding("unseen categories", (test,), {"examples": count}, column, text)


def _groups_of_one_side(
    dataset: Dataset, test: str, tallies: Mapping[str, Mapping[str, Array]], training: Sequence[str]
) -> Iterator[Finding]:
    if "" not in tallies[test]:
        return
    (here, there), names = _sides(tallies, "", test, training), group_names(dataset)
    new, lost = (here > 0) & (there == 0), (here == 0) & (there >= FEW)
    if (count := int(here[new].sum())) >= FEW:
        listed = some([repr(names[i]) for i in np.flatnonzero(new)], 3)
        text = f"no training environment has the group {listed}, to which {count} of the "
        text += f"{counted(int(here.sum()), 'example')} of '{test}' belong"
        yield Finding("unseen group", (test,), {"examples": count}, "", text)
    if lost.any():
        listed = some([repr(names[i]) for i in np.flatnonzero(lost)], 3)
        text = (
            f"'{test}' has no example of the group {listed}: its worst group is the worst of others"
        )
        yield Finding("absent group", (test,), {"groups": int(lost.sum())}, "", text)


def _few(dataset: Dataset, name: str, environment: Environment) -> Iterator[Finding]:
    task, attributes = dataset.task, environment.attributes
    used = task.known(environment.y) & torch.from_numpy(_used(environment, True))
    if 0 < (size := int(used.sum())) < FEW_EXAMPLES:
        text = f"environment '{name}' has {counted(size, 'example')}: its values are coarse"
        yield Finding("small environment", (name,), {"examples": size}, "", text)
    if not task.has_classes or (attributes is None and size < FEW_EXAMPLES):
        return
    what, numbers = "class", environment.y.long()
    if attributes is not None:
        what, numbers = "group", task.groups(numbers, attributes, len(dataset.attributes))
    names = group_names(dataset) or class_names(dataset)
    sizes = zip(names, torch.bincount(numbers[used], minlength=len(names)).tolist(), strict=True)
    if small := {group: n for group, n in sizes if 0 < n < FEW}:
        listed = some([f"'{group}' has {counted(n, 'example')}" for group, n in small.items()], 3)
        text = f"'{name}', {what} {listed}: values of the worst {what} are coarse"
        yield Finding(f"small {what}", (name,), small, next(iter(small)), text)


def _cut(
    name: str, environment: Environment, outs: Mapping[int, torch.Tensor]
) -> Iterator[Finding]:
    """A finding if groups are in the `in` and the `out` split of an environment, as a file may ask."""
    out = next(iter(outs.values()), torch.empty(0))
    if environment.clusters is not None and len(out):
        is_out = torch.zeros(len(environment.y), dtype=torch.bool).index_fill(0, out.cpu(), True)
        both = np.intersect1d(environment.clusters[is_out], environment.clusters[~is_out])
        if len(both):
            text = f"{counted(len(both), 'group')} of '{name}' are in its in and its out split: the split "
            text += "of the file and `group` disagree, so selection sees what runs train on"
            yield Finding("divided groups", (name,), {"groups": len(both)}, "", text)


def _lacking(
    dataset: Dataset, name: str, y: torch.Tensor, outs: Mapping[int, torch.Tensor]
) -> Iterator[Finding]:
    if not dataset.task.has_classes:
        return
    names = class_names(dataset)
    splits = [{*y[out].long().tolist()} for out in outs.values() if len(out)]
    lost = {n: sum(n not in split for split in splits) for n in torch.unique(y).long().tolist()}
    if lacking := {names[n]: trials for n, trials in lost.items() if trials}:
        said = some([f"'{each}' in {trials}" for each, trials in lacking.items()], 3)
        text = f"out splits of '{name}' lack {said} of {counted(len(splits), 'trial')}"
        what = f"{text}: selection does not see them"
        yield Finding("lacking class", (name,), lacking, next(iter(lacking)), what)
