"""Checks of labels: labels that are probably mistakes, and labels that train does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from finetune.data.dataset import gold_labels
from finetune.data.findings import Finding, located
from finetune.data.label_names import variants
from finetune.types import Example, TextExample, TokenExample, abbreviated, did_you_mean, quantity

NO_LABEL = {"n/a", "#n/a", "na", "<na>", "null", "nil", "nan", "?"}
"""Names, in lower case, that probably mean *no label*."""
MIN_ROWS = 20
"""With at least this many rows, a different label in each row is an error."""


def label_problems(splits: Mapping[str, Sequence[Example]]) -> Iterator[Finding]:
    """Report labels that leave nothing to learn, or that are probably mistakes."""
    counts = {
        split: Counter(name for row in rows for name in gold_labels(row) or ())
        for split, rows in splits.items()
    }
    train = [row for row in splits.get("train", ()) if gold_labels(row) is not None]
    yield from _nothing_to_learn(train, counts.get("train", Counter()))
    numbers = {
        row.label
        for rows in splits.values()
        for row in rows
        if isinstance(row, TextExample) and isinstance(row.label, float)
    }
    if numbers:
        if all(number.is_integer() for number in numbers):
            message = "all labels are whole numbers with a decimal point and are read as numbers"
            yield Finding("warning", "labels", f"{message}: write 1, not 1.0, for classes")
        return
    yield from _odd_names(counts)
    yield from _unseen(splits, counts)


def _nothing_to_learn(train: Sequence[Example], counts: Counter[str]) -> Iterator[Finding]:
    texts = [row.label for row in train if isinstance(row, TextExample)]
    problem = ""
    if any(isinstance(row, TokenExample) and row.spans is not None for row in train):
        problem = "" if counts else "no example has a span"
    elif len(set(texts or counts)) == 1:
        problem = (
            f"the only label of {quantity(len(train), 'example')} is {next(iter(counts), None)!r}"
        )
    elif len(set(texts)) == len(texts) >= MIN_ROWS and isinstance(texts[0], str):
        problem = f"each of the {len(train):,} examples has a different label"
    if problem:
        role = "label" if texts else "tags"
        message = f"train: {problem}, so there is nothing to learn: name the column of the labels: "
        yield Finding("error", "labels", f"{message}--columns {role}=NAME")


def _odd_names(counts: Mapping[str, Counter[str]]) -> Iterator[Finding]:
    """Report names that mean no label, and names that differ only in case or invisibly."""
    total = sum(counts.values(), Counter[str]())
    for name, count in total.items():
        if name.strip().lower() in NO_LABEL:
            message = (
                f"label {name!r} ({quantity(count, 'time')}) is read as a class: leave it empty "
                "where "
            )
            yield Finding("warning", "labels", f"{message}there is no label")
    if groups := variants(total):
        listed = "; ".join(
            ", ".join(f"{name!a} ({total[name]:,})" for name in names) for names in groups
        )
        message = f"labels that differ only in case, blanks or invisible characters: {listed}"
        advice = "if they mean one class, read them as one with --labels-case fold, or name them in"
        yield Finding("warning", "labels", f"{message}: {advice} a file, --label-map FILE")


def _unseen(
    splits: Mapping[str, Sequence[Example]], counts: Mapping[str, Counter[str]]
) -> Iterator[Finding]:
    """Report labels that occur in evaluation data but not in train, and the reverse."""
    train = counts.get("train")
    if not train:
        return
    for split, found in counts.items():
        missing = {name: count for name, count in found.items() if name not in train}
        rows = [row for row in splits[split] if missing.keys() & {*(gold_labels(row) or ())}]
        listed = abbreviated(f"{name!r} ({count:,})" for name, count in missing.items())
        refused = isinstance(splits[split][0], TextExample)
        effect = "no model can predict them, and they count as missed"
        if refused:
            near = did_you_mean(next(iter(missing), ""), train)
            effect = f"correct them, or remove their rows; train has {abbreviated(train)}.{near}"
        message = f"{split}: labels that train does not have: {listed}: {effect}"
        yield from located(
            "error" if refused else "warning", "labels", message, [row.where for row in rows]
        )
        if absent := [name for name in train if found and name not in found]:
            message = f"{split}: never has {abbreviated(absent)}, which train has"
            yield Finding("info", "labels", message)
