"""Audits of a dataset: leaks, identifiers and too few examples, which change what a run's numbers mean."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from oodbench.columns import EMPTY
from oodbench.data.pictures.folders import Images
from oodbench.data.pictures.pixels import TINY
from oodbench.data.preparation import Contents, class_names, group_names, hashes_of
from oodbench.data.streams import Stored
from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError, counted, some
from oodbench.notes import Finding

CLOSE = 0.15
"""Pictures that look alike differ by at most this share of their contrast."""
LARGE = 2**28
"""A user's data are loaded twice and compared, unless they have more bytes than this."""
FEW_EXAMPLES, FEW = 30, 10
"""Metrics are coarse for an environment, or for a group or class, with fewer examples."""
MULTIPLE = 8
"""Environments whose means differ by this factor may use different units."""
SAMPLE = 20_000
"""Columns are judged by at most about this many rows."""
MANY = 20
"""The least number of different values of an identifier."""
COUNTED = re.compile(r"(.*\D)\d{3,}")
"""A text that may be the number of a person or a thing, such as P0012."""
UNIT = r"patient|subject|participant|person|customer|client|user|case|sample"
NAMED = re.compile(
    rf"({UNIT})([\W_]?(id|no|nr|number))?|(.*[\W_])?(uu?id|mrn)|.*[\W_]id", re.IGNORECASE
)
"""The name of a column that may hold identifiers."""
LUMINANCE = np.array([[0.299], [0.587], [0.114]])
"""The shares of red, green and blue in grey."""
ROUNDING = 1e-9
"""Smaller skews are rounding errors."""
Array = npt.NDArray[Any]
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
        inputs = {} if dataset.repeats else _numbered(dataset, environments, hashes)
        looks = {}
        if isinstance(dataset, Images) and inputs:
            looks = _alike(dataset, inputs)
            found += _several_classes(dataset, environments, inputs)
            found += _of_forms(dataset, environments)
        units = {n: e.clusters.numpy() for n, e in environments.items() if e.clusters is not None}
        of = {"looks": looks, "inputs": inputs, "groups": units}
        for test, training in ((test, training) for tests, training in roles for test in tests):
            for what, numbers in of.items():
                both = {n: numbers[n] for n in (test, *training) if n in numbers}
                used = {n: each[_used(environments[n], n == test)] for n, each in both.items()}
                if test in used and len(used) > 1:
                    found += _shared(dataset, test, used.pop(test), used, what)
        found += _of_columns(dataset, environments, roles[0][1] if roles else ())
    for name in dict.fromkeys(name for tests, _ in roles for name in tests):
        found += _few(dataset, name, environments[name])
    for name, of_trials in (outs or {}).items():
        if any(name in training for _, training in roles):
            found += _lacking(dataset, name, environments[name].y, of_trials)
    once: dict[Any, Finding] = {}
    for each in found:
        once.setdefault((each.kind, each.environments[0], each.example), each)
    return [*once.values()]


def _used(environment: Environment, is_held_out: bool) -> Array:
    unseen, all_ = environment.unseen, torch.ones(len(environment.y), dtype=torch.bool)
    return (all_ if unseen is None else unseen == is_held_out).numpy()


def _numbered(
    dataset: Dataset, environments: Environments, hashes: Hashes | None
) -> dict[str, Array]:
    """Integers (N,) by environment, equal for equal inputs; empty if files would have to be read."""
    are_stored = any(isinstance(e.x, Stored) for e in environments.values())
    if dataset.columns is not None and not are_stored:
        # keep 16 bits of 24, so that rounding by other programs makes no difference
        rounded = {n: (e.x.float().view(torch.int32) + 64) >> 7 for n, e in environments.items()}
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
    dataset: Dataset, test: str, tested: Array, trained: Mapping[str, Array], of: str
) -> Iterator[Finding]:
    whole = np.concatenate([*trained.values()])
    units, count = np.intersect1d(tested, whole), int(np.isin(tested, whole).sum())
    is_chance = (of == "looks" or dataset.columns is not None) and _is_chance(tested, whole)
    if not count or (of == "looks" and is_chance):
        return
    where = [name for name, there in trained.items() if np.isin(tested, there).any()]
    listed = some([*map(repr, where)], 3)
    text, example = f"{count} of the {counted(len(tested), 'example')} of '{test}'", ""
    counts = {"examples": count, "of": len(tested)}
    if of != "groups":
        kind = "equal inputs" if is_chance else "copies"
        why = "chance, as columns are coarse" if is_chance else "copies of training examples"
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


def _is_chance(tested: Array, trained: Array) -> bool:
    """Whether equal pairs between two sets are about as frequent as within each set."""
    size = 1 + max(tested.max(), trained.max())
    a, b = (np.bincount(numbers, minlength=size) for numbers in (tested, trained))
    within = [1 + int((n * (n - 1)).sum()) // 2 for n in (a, b)]
    return bool(int((a * b).sum()) <= 3 * (within[0] * within[1]) ** 0.5)


def _of_columns(
    dataset: Dataset, environments: Environments, training: Sequence[str]
) -> Iterator[Finding]:
    columns, parts = dataset.columns, {n: e for n, e in environments.items() if len(e.y)}
    if columns is None or any(isinstance(e.x, Stored) for e in parts.values()):
        return
    step = -(-sum(len(e.y) for e in parts.values()) // SAMPLE)
    x = torch.cat([e.x[::step] for e in parts.values()]).double().numpy()
    y = torch.cat([e.y[::step].reshape(len(e.y[::step]), -1) for e in parts.values()]).numpy()
    environment = np.repeat(np.arange(len(parts)), [len(e.y[::step]) for e in parts.values()])
    trained = np.isin(environment, [i for i, name in enumerate(parts) if name in training])
    said = f", by {len(x):,} rows" if step > 1 else ""
    names = (*columns.numbers, *(f"{name} {EMPTY}" for name in columns.gaps), *columns.categories)
    if len(names) != x.shape[1]:  # categories are one-hot already
        names = columns.inputs
    marks: dict[int, str] = {}
    for i, name in enumerate(names):
        known = np.full(len(x), True)
        if name in columns.gaps:
            known = x[:, names.index(f"{name} {EMPTY}")] == 0
            filled = np.unique(environment[known])
            for empty in (n for k, n in enumerate(parts) if k not in filled):
                text = f"'{name}' is empty in every row of '{empty}'{said}: the "
                text += f"{columns.imputation} of others fills it there"
                yield Finding("an empty column", (empty,), {}, name, text)
        values, of, categories = x[known, i], environment[known], columns.categories.get(name)
        yield from _meaningless(name, values, of, [*parts], categories, said)
        if name in columns.numbers:
            yield from _units(name, values, of, [*parts])
        rows, is_class = trained & known, dataset.task.has_classes
        if dataset.task.kind == "multiclass" and (mark := _marked(x[rows, i], y[rows, 0])) >= 0:
            marks.setdefault(mark, name)
        if y.shape[1] == 1 and (score := _score(x[rows, i], y[rows, 0], is_class)):
            share = f"{100 * score:.4g} % of {'the classes' if is_class else 'its variance'}{said}"
            text = f"'{name}' alone tells the target ({share}): `features` leaves out what is made from it"
            counts = {"rows": int(rows.sum()), "score": score}
            yield Finding("a telling column", tuple(training), counts, name, text)
    if y.shape[1] == 1 and not dataset.task.has_classes:
        yield from _units("target", y[:, 0], environment, [*parts])
    if len(marks) > 1 and len(marks) >= len(np.unique(y[trained])) - 1:
        listed = some([*map(repr, marks.values())], 3)
        text = f"{listed} tell the target together (each marks a class{said}): `features` leaves them out"
        yield Finding("a telling column", tuple(training), {}, next(iter(marks.values())), text)


def _meaningless(
    name: str,
    values: Array,
    environment: Array,
    names: Sequence[str],
    categories: Sequence[str] | None,
    said: str,
) -> Iterator[Finding]:
    """Findings on a column that identifies rows or the environments, whose names are `names`."""
    if why := _identifier(name, values, environment, categories):
        text = f"'{name}' looks like an identifier ({why}{said}): `features` leaves it out"
        if 2 * len(np.unique(values)) <= len(values):
            text += ", and `group` keeps its equal values on one side of a split"
        yield Finding("an identifier", tuple(names), {"rows": len(values)}, name, text)
    there, first, sizes = np.unique(environment, return_index=True, return_counts=True)
    own, is_own = values[first], 1 < len(names) == len(there)
    if is_own and len(np.unique(own)) == len(own) and (values == np.repeat(own, sizes)).all():
        text = f"'{name}' repeats the environment: each has one value of its own{said}"
        text += "; `features` leaves it out"
        yield Finding("an environment column", tuple(names), {"rows": len(values)}, name, text)


def _units(name: str, values: Array, environment: Array, names: Sequence[str]) -> Iterator[Finding]:
    """A finding if mean and spread in one environment are the same large multiple of those in another."""
    numbers, starts = np.unique(environment, return_index=True)
    parts = zip(numbers, np.split(values, starts[1:]), strict=True)
    moments = {i: (v.mean(), v.std()) for i, v in parts if len(v) >= FEW_EXAMPLES}
    if not moments or any(mean < 4 * spread for mean, spread in moments.values()):
        return
    low, high = min(moments, key=moments.__getitem__), max(moments, key=moments.__getitem__)
    times, wider = (b / a if a else 0 for a, b in zip(moments[low], moments[high], strict=True))
    if times >= MULTIPLE and times / 2 < wider < 2 * times:
        text = (
            f"'{name}' is about {times:,.0f} times as large in '{names[high]}' as in '{names[low]}'"
        )
        text += ": its unit may be another one there"
        yield Finding("another unit", (names[high], names[low]), {"times": times}, name, text)


def _marked(values: Array, target: Array) -> int:
    """The class whose rows are those of one of the column's two values, up to 1 % of them; -1 for none."""
    is_high = values == values.max(initial=0)
    if len(np.unique(values)) == 2:
        for marked in (is_high, ~is_high):
            mark = int(np.bincount(target[marked].astype(int)).argmax())
            if 100 * (marked != (target == mark)).sum() <= min(marked.sum(), (~marked).sum()):
                return mark
    return -1


def _score(values: Array, target: Array, is_class: bool) -> float:
    """The accuracy or R² of the best prediction from a column; 0 below 0.99, or if a constant is as good.

    The estimate compares the targets of neighbours in the order of the column, or those of equal values if
    there are few values.
    """
    if len(values) < MANY or np.ptp(values) == 0 or np.ptp(target) == 0:
        return 0.0
    order = np.lexsort((np.random.default_rng(0).permutation(len(values)), values))
    steps, ties = np.diff(target[order]), np.diff(values[order]) == 0
    if FEW * (len(ties) - ties.sum()) < len(values):
        steps = steps[ties]
    if not is_class:
        # neighbours differ if rows are few; a line or the ranks may still predict the target
        ranks = np.argsort(np.argsort(target[order]))
        line = 1 - np.corrcoef(values, target)[0, 1] ** 2
        curve = 1 - np.corrcoef(np.arange(len(ranks)), ranks)[0, 1] ** 2
        error, least = min(line, curve, (steps**2).mean() / 2 / target.var()), 0.01
    else:
        others = len(target) - np.bincount(target.astype(int)).max()
        error, least = (steps != 0).mean() / 2, min(0.01, others / len(target) / 10)
        least *= others >= FEW
    return float(1 - error) if error <= least else 0.0


def _identifier(
    name: str, values: Array, environment: Array, categories: Sequence[str] | None
) -> str:
    """The reason why a column of numbers or `categories` looks like an identifier, or an empty text.

    Numbers that are not whole are measurements. Whole numbers are suspect if they repeat less often than by
    chance, or if the ranges of environments hardly overlap.
    """
    distinct, size = len(np.unique(values)), len(values)
    if categories is not None:
        if distinct > max(FEW, 0.95 * size):
            return "nearly every row has a different one"
        if distinct >= MANY and NAMED.fullmatch(name):
            return f"by its name and its {distinct} categories"
        numbered = [COUNTED.fullmatch(each) for each in categories if each != EMPTY]
        are_alike = len({match and match[1] for match in numbered}) == 1 and all(numbered)
        return "its categories are numbered" * (distinct >= MANY and are_alike)
    if distinct < MANY or (values != np.round(values)).any():
        return ""
    repeated, by_chance = size - distinct, size * (size - 1) / 2 / (1 + np.ptp(values))
    if repeated < size / FEW and by_chance > FEW * (1 + repeated):
        return "its whole numbers repeat less often than by chance"
    if NAMED.fullmatch(name):
        return "by its name and its whole numbers"
    parts = [values[environment == i] for i in np.unique(environment)]
    are_many = all(len(np.unique(v)) > max(MANY, len(v) / 5) for v in parts)
    has_ranges = are_many and _score(values, environment, True)
    return "its ranges hardly overlap between environments" if has_ranges else ""


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
