"""Checks of labels: labels that are probably mistakes, and labels that train does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from finetune.data.examples import Examples
from finetune.data.findings import Finding, located, locations_of
from finetune.data.label_names import variants
from finetune.data.votes import voted_names
from finetune.types import abbreviated, did_you_mean, quantity

NO_LABEL = {"n/a", "#n/a", "na", "<na>", "null", "nil", "nan", "?"}
"""Names, in lower case, that probably mean *no label*."""
MIN_ROWS = 20
"""With at least this many rows, a different label in each row is an error."""


def label_problems(splits: Mapping[str, Examples]) -> Iterator[Finding]:
    """Report labels that leave nothing to learn, or that are probably mistakes."""
    found = {split: rows.gold_counts() for split, rows in splits.items()}
    counts = {split: counted for split, (counted, _) in found.items()}
    if "train" in splits:
        yield from _nothing_to_learn(splits["train"], *found["train"])
    texts = [rows for rows in splits.values() if not rows.are_words]
    if any(isinstance(label, float) for rows in texts for label in rows.column("label")):
        labels = (label for rows in texts for label in rows.column("label"))
        if all(label.is_integer() for label in labels if isinstance(label, float)):
            message = "all labels are whole numbers with a decimal point and are read as numbers"
            yield Finding("warning", "labels", f"{message}: write 1, not 1.0, for classes")
        return
    yield from _odd_names(counts)
    yield from _unseen(splits, counts)


def _nothing_to_learn(train: Examples, counts: Counter[str], without: int) -> Iterator[Finding]:
    number = len(train) - without
    are_texts, problem = not train.are_words, ""
    if not number:
        return
    if not are_texts and any(spans is not None for spans in train.column("spans")):
        problem = "" if counts else "no example has a span"
    else:
        different = _different(train) if are_texts else {*counts}
        only = different is not None and len(different) == 1
        if only:
            problem = (
                f"the only label of {quantity(number, 'example')} is {next(iter(counts), None)!r}"
            )
        elif are_texts and different and len(different) == number >= MIN_ROWS:
            if isinstance(next(iter(different)), str):
                problem = f"each of the {number:,} examples has a different label"
    if problem:
        role = "label" if are_texts else "tags"
        message = f"train: {problem}, so there is nothing to learn: name the column of the labels: "
        yield Finding("error", "labels", f"{message}--columns {role}=NAME")


def _different(train: Examples) -> set[Any] | None:
    """Return the different labels; None as soon as there are several, and two examples of one."""
    found: set[Any] = set()
    repeated = False
    for label, gold in zip(train.column("label"), train.golds(), strict=True):
        if gold is not None:
            repeated = repeated or label in found
            found.add(label)
            if repeated and len(found) > 1:
                return None
    return found


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
        advice = "if they mean one class, read them as one with --labels-case fold"
        yield Finding("warning", "labels", f"{message}: {advice}")


def _unseen(
    splits: Mapping[str, Examples], counts: Mapping[str, Counter[str]]
) -> Iterator[Finding]:
    """Report labels that occur in evaluation data but not in train, and the reverse."""
    if not counts.get("train"):
        return
    train = [*counts["train"], *sorted(voted_names([splits["train"]]) - {*counts["train"]})]
    for split, found in counts.items():
        missing = {name: count for name, count in found.items() if name not in train}
        golds = splits[split].golds() if missing else ()
        rows = locations_of(splits[split], (not missing.keys().isdisjoint(g or ()) for g in golds))
        listed = abbreviated(f"{name!r} ({count:,})" for name, count in missing.items())
        refused = not splits[split].are_words
        effect = "no model can predict them, and they count as missed"
        if refused:
            near = did_you_mean(next(iter(missing), ""), train)
            effect = f"correct them, or remove their rows; train has {abbreviated(train)}.{near}"
        message = f"{split}: labels that train does not have: {listed}: {effect}"
        yield from located("error" if refused else "warning", "labels", message, rows)
        if absent := [name for name in train if found and name not in found]:
            message = f"{split}: never has {abbreviated(absent)}, which train has"
            yield Finding("info", "labels", message)
