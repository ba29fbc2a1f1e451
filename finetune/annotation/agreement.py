"""Agreement between annotators: kappa and alpha of labels, F1 of spans.

Cohen's kappa (1960) of two annotators, Fleiss' kappa (1971) of more who all labeled a text, and
Krippendorff's alpha (2011, nominal), which also takes texts that only some of them labeled. For
spans, F1 of one annotator against another is the limit of kappa, because the number of negatives is
unbounded (Hripcsak & Rothschild 2005).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.metrics import cohen_kappa_score

from finetune.annotation.annotations import Annotations, read_annotations
from finetune.cli.output import print_tables, show
from finetune.evaluation.kinds import KINDS
from finetune.evaluation.metrics import class_counts, f1, total
from finetune.evaluation.significance import Counts, estimate
from finetune.evaluation.span_matching import match_spans
from finetune.types import UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.annotation.commands import Agreement as AgreementCommand

Golds = Mapping[str, Mapping[Any, Any]]
"""The annotation of each text, by annotator and by the id of the text."""
TableOf = tuple[str, Sequence[str], Sequence[Sequence[Any]]]


class Agreement(NamedTuple):
    """Tables (title, columns, rows) of the agreement, and notes."""

    tables: list[TableOf]
    notes: list[str]


def measure_agreement(
    files: Mapping[str, Annotations], *, num_resamples: int = 10_000, seed: int = 0
) -> Agreement:
    """Return the agreement of annotators: those that one file names, or one of each file.

    Rows are of one text if they have the same id, or the same text if ids do not match any.

    Raises:
        UserError: There are fewer than two annotators, or no text that two have labeled.
    """
    rows = _rows_by_annotator(files)
    kinds = {row.kind for each in rows.values() for row in each} - {None}
    if "number" in kinds:
        raise UserError("agreement is of names and spans, and these labels are numbers.")
    if kinds == {"label", "labels"}:
        # a file in which each list has one label is read as one label for each text
        rows = {name: [_with_list(row) for row in each] for name, each in rows.items()}
        kinds = {"labels"}
    if len(kinds) > 1:
        found = " and ".join(sorted(map(str, kinds)))
        raise UserError(f"the annotators have different kinds of labels: {found}.")
    kind = str(next(iter(kinds), None))
    golds, notes = _aligned(rows, kind)
    notes = [note for each in files.values() for note in each.notes] + notes
    sides = {
        both: [
            (golds[both[0]][id], golds[both[1]][id])
            for id in golds[both[0]]
            if id in golds[both[1]]
        ]
        for both in combinations(golds, 2)
    }
    sides = {both: pairs for both, pairs in sides.items() if pairs}
    if kind == "tags":
        return Agreement(_of_labels(*_of_words(golds, sides)), notes)
    if kind == "label":
        return Agreement(_of_labels(golds, sides), notes)
    return Agreement(_of_sets(kind, sides, num_resamples, seed), notes)


def _with_list(row: Any) -> Any:
    if row.kind != "label":
        return row
    return replace(row, example=replace(row.example, label=(row.gold,)))


def _rows_by_annotator(files: Mapping[str, Annotations]) -> dict[str, list[Any]]:
    rows: defaultdict[str, list[Any]] = defaultdict(list)
    for name, file in files.items():
        named = {str(row.annotator) for row in file.rows if row.annotator is not None}
        if len(files) > 1 and len(named) > 1:
            raise UserError(
                f"{name} has {quantity(len(named), 'annotator')}, such as {min(named)}: "
                "give it alone, or one file for each annotator."
            )
        for row in file.rows:
            if len(files) > 1 or row.annotator is not None:
                rows[name if len(files) > 1 else str(row.annotator)].append(row.as_text())
    if len(rows) < 2:
        raise UserError(
            f"{next(iter(files))}: no rows of two annotators: give one file for each, a file with "
            "the column _annotator_id or annotator, or --columns label=A+B with one for each."
        )
    return dict(sorted(rows.items()) if len(files) == 1 else rows)


def _aligned(
    rows: Mapping[str, Sequence[Any]], kind: str
) -> tuple[dict[str, dict[Any, Any]], list[str]]:
    for by_id in (True, False):
        golds: dict[str, dict[Any, Any]] = {}
        texts: dict[Any, tuple[Any, Any]] = {}
        num_rows, repeated = 0, []
        for name, each in rows.items():
            golds[name] = {}
            for row in each:
                example = row.example
                text = tuple(row.words if kind == "tags" else row.texts.values())
                id = example.key if by_id else text
                if id is None or row.kind is None:
                    continue
                known, first = texts.setdefault(id, (text, row))
                if known != text:
                    raise UserError(
                        f"id {id!r} has different texts in {first.example.where} and "
                        f"{example.where}: the annotators did not read the same data."
                    )
                num_rows += 1
                repeated += [row.name] if id in golds[name] else []
                golds[name][id] = row.gold
        counts = Counter(id for each in golds.values() for id in each)
        if any(count > 1 for count in counts.values()):
            break
    else:
        raise UserError("no text has labels of two annotators: neither ids nor texts are equal.")
    notes = []
    if repeated:
        few = abbreviated(repeated, 6)
        notes.append(f"{quantity(len(repeated), 'row')} repeat a text: the last one counts ({few})")
    if alone := sum(count == 1 for count in counts.values()):
        notes.append(f"{quantity(alone, 'text')} of one annotator only, not used")
    shared = {id for id, count in counts.items() if count > 1}
    return {
        n: {id: v for id, v in each.items() if id in shared} for n, each in golds.items()
    }, notes


def _of_words(golds: Golds, sides: Mapping[Any, Any]) -> tuple[Golds, Mapping[Any, Any]]:
    words = {
        name: {(id, index): tag for id, tags in each.items() for index, tag in enumerate(tags)}
        for name, each in golds.items()
    }
    tags = {
        both: [(a, b) for one, other in pairs for a, b in zip(one, other, strict=True)]
        for both, pairs in sides.items()
    }
    return words, tags


def _of_labels(golds: Golds, sides: Mapping[tuple[str, str], Sequence[Any]]) -> list[TableOf]:
    pairs = [
        [
            *both,
            len(labels),
            float(np.mean([a == b for a, b in labels])),
            cohens_kappa(*zip(*labels, strict=True)),
        ]
        for both, labels in sides.items()
    ]
    ids = list(dict.fromkeys(id for each in golds.values() for id in each))
    names = sorted({label for each in golds.values() for label in each.values()})
    counts = np.zeros((len(ids), len(names)), dtype=int)
    positions = {id: index for index, id in enumerate(ids)}
    for each in golds.values():
        for id, label in each.items():
            counts[positions[id], names.index(label)] += 1
    tables: list[TableOf] = [
        ("pairs", ("first", "second", "number", "agreement", "cohens_kappa"), pairs)
    ]
    if len(golds) > 2:
        complete = counts[counts.sum(1) == len(golds)]
        fleiss = fleiss_kappa(complete) if len(complete) else None
        columns = ("annotators", "labeled_by_all", "fleiss_kappa", "number", "krippendorffs_alpha")
        row = [len(golds), len(complete), fleiss, len(counts), krippendorffs_alpha(counts)]
        tables.append(("all", columns, [row]))
    labels = [
        [
            name,
            int(counts[:, index].sum()),
            _mean(
                cohens_kappa([str(a == name) for a, _ in both], [str(b == name) for _, b in both])
                for both in sides.values()
            ),
        ]
        for index, name in enumerate(names)
    ]
    tables.append(("labels", ("label", "given", "cohens_kappa"), labels))
    confusions = Counter(
        tuple(sorted(both)) for labels in sides.values() for both in labels if both[0] != both[1]
    )
    return [*tables, _confusions(confusions)]


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _confusions(counts: Mapping[tuple[str, str], int]) -> TableOf:
    most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:20]
    return "confusions", ("one", "other", "number"), [[*both, number] for both, number in most]


def _of_sets(
    kind: str, sides: Mapping[tuple[str, str], Sequence[Any]], num_resamples: int, seed: int
) -> list[TableOf]:
    metric = KINDS[kind].metrics["span_f1_strict" if kind == "spans" else "micro_f1"]
    pairs, by_name = [], defaultdict(list)
    confusions: Counter[tuple[str, str]] = Counter()
    given: Counter[str] = Counter()
    for both, golds in sides.items():
        first, second = (list(side) for side in zip(*golds, strict=True))
        scored = KINDS[kind].pair(first, second)
        own = [Counts(metric.counts(scored), metric.value)]
        found = estimate(own, num_resamples=num_resamples, seed=seed, limits=(0.0, 1.0))
        sizes = [sum(map(len, side)) for side in (first, second)]
        pairs.append([*both, len(golds), *sizes, *found])
        for name, counts in zip(scored.names, total(class_counts, scored, True), strict=True):
            by_name[name].append(f1(counts))
            given[name] += int(counts[1:].sum())
        for one, other in golds:
            confusions.update(_differences(kind, one, other))
    columns = ("first", "second", "texts", "of_first", "of_second", "f1", "low", "high")
    labels = [[name, given[name], _mean(by_name[name])] for name in sorted(by_name)]
    return [
        ("pairs", columns, pairs),
        ("labels", ("label", "given", "f1"), labels),
        _confusions(confusions),
    ]


def _differences(kind: str, one: Any, other: Any) -> list[tuple[str, str]]:
    if kind == "labels":
        return [("nothing", name) for name in {*one} ^ {*other}]
    found = []
    for match in match_spans(one, other):
        if match.kind == "boundary" and match.gold is not None:
            found.append((match.gold.label, f"{match.gold.label} with other boundaries"))
        elif match.kind != "correct":
            sides = (side.label if side else "nothing" for side in match)
            first, second = sorted(sides, key=lambda name: (name != "nothing", name))
            found.append((first, second))
    return found


def cohens_kappa(one: Sequence[str], other: Sequence[str]) -> float:
    """Return Cohen's kappa (1960) of the labels of two annotators; 1 if all labels are equal."""
    if list(one) == list(other):
        return 1.0  # it is undefined where all texts have one label
    return float(cohen_kappa_score(one, other))


def fleiss_kappa(counts: np.ndarray) -> float:
    """Return Fleiss' kappa of n annotators, from the number of each label for each text [N, C].

    Kappa compares the mean over texts of the fraction of equal pairs of labels,
    (Σ n_ij² - n) / (n(n-1)), with the fraction by chance, Σ p_j².
    """
    number = counts[0].sum()
    observed = float(((counts**2).sum(1) - number).mean() / (number * (number - 1)))
    expected = float(((counts.sum(0) / counts.sum()) ** 2).sum())
    return 1.0 if expected == 1 else (observed - expected) / (1 - expected)


def krippendorffs_alpha(counts: np.ndarray) -> float:
    """Return Krippendorff's nominal alpha, from the number of each label for each text [N, C].

    Texts may have any number of labels; texts with a single label do not count.
    """
    counts = counts[counts.sum(1) > 1]
    number = counts.sum(1)
    total, by_label = counts.sum(), counts.sum(0)
    unequal = (number**2 - (counts**2).sum(1)) / (number - 1)
    expected = (total**2 - (by_label**2).sum()) / (total - 1)
    return 1.0 if expected == 0 else 1 - float(unequal.sum()) / float(expected)


def print_agreement(command: AgreementCommand) -> None:
    """Print the tables of the agreement; notes go to standard error."""
    stems = [Path(file).stem for file in command.files]
    names = stems if len({*stems}) == len(stems) else command.files
    columns = command.column_map
    sources = {name: (file, columns) for name, file in zip(names, command.files, strict=True)}
    annotators = columns.get("label", "").split("+")
    if len(sources) == 1 and len(annotators) > 1:  # a column of each
        file = command.files[0]
        sources = {name: (file, {**columns, "label": name}) for name in annotators}
    files = {
        name: read_annotations(file, columns=own, encoding=command.encoding)
        for name, (file, own) in sources.items()
    }
    found = measure_agreement(files, num_resamples=command.resamples, seed=command.seed)
    for note in found.notes:
        show(f"note: {note}", error=True)
    print_tables(command.format, *(table for table in found.tables if table[2]))
