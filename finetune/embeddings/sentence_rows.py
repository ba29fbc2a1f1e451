"""The rows of sentence encoders: the texts and pairs that each objective learns from.

Other splits are scored: pairs with numbers or labels, pairs to rank, or texts with half of their
words.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from finetune.config.tasks import column_map
from finetune.data import DataError, Dataset, read_text
from finetune.data.nli_labels import NLI_LABELS, with_standard_names
from finetune.embeddings.settings import SentenceConfig
from finetune.evaluation.pairs import named_positive
from finetune.models.heads.sentence_encoder import starting_pooling
from finetune.tasks.base import Task
from finetune.types import LabelSet, TextExample, UserError, abbreviated, quantity

FROM_TEXTS = ("mirror", "simcse", "prompt")
"""The objectives that learn from texts without labels."""
MASKED = ("mirror", "prompt", "cmlm")
"""The objectives that need a mask token."""
FROM_LABELS = ("softmax", "cosine")
"""The objectives that learn from pairs with labels or numbers."""


def _training_rows(objective: str, rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the examples of train that an objective learns from."""
    if objective in FROM_TEXTS:
        yield from _distinct_texts(rows)
    elif objective == "ranking":
        yield from _positive_pairs(rows)
    elif objective == "cmlm":
        yield from _adjacent_texts(rows)
    elif objective == "softmax":
        pairs = [row for row in rows if row.pair is not None and isinstance(row.label, str)]
        if len({row.label for row in pairs}) > 1:
            yield from pairs
    else:
        pairs = [row for row in rows if row.pair is not None and isinstance(row.label, float)]
        yield from _scaled(pairs)


def _scored_rows(objective: str, rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the examples of another split: with numbers, with labels, to rank, or without gold."""
    pairs = [row for row in rows if row.pair is not None]
    numbers = [row for row in pairs if isinstance(row.label, float)]
    names = [row for row in pairs if isinstance(row.label, str)]
    if numbers or (names and objective == "softmax"):
        yield from numbers or names
    elif pairs and objective in FROM_LABELS:
        yield from (replace(row, label=None) for row in pairs)
    elif positive := list(_positive_pairs(rows)):
        yield from (replace(pair, negative=None) for pair in positive)
    else:
        yield from _distinct_texts(rows)


def _distinct_texts(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield each text once that is not blank."""
    seen = set()
    for row in rows:
        for text in (row.text, row.pair):
            if text is not None and text.strip() and text not in seen:
                seen.add(text)
                yield TextExample(row.id, text, where=row.where)


def _adjacent_texts(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the pairs as they are, or each line with the next one of its text.

    Texts end at blank lines; a row of several lines is a text.
    """
    if any(row.pair is not None for row in rows):
        yield from (replace(row, label=None) for row in rows if row.pair is not None)
        return
    before = ""
    for row in rows:
        lines = row.text.split("\n")
        for line in ["", *lines, ""] if len(lines) > 1 else lines:
            if before.strip() and line.strip():
                yield TextExample(row.id, before, line, where=row.where)
            before = line


def _positive_pairs(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the pairs that belong together, perhaps with a hard negative, without their label.

    Pairs with labels belong together if they are entailment (or have the positive one of two
    labels); a negative contradicts the same first text (or has the other label; Gao et al., 2021).
    Pairs of the same first text take its negatives in turn.
    """
    pairs = [row for row in rows if row.pair is not None]
    names = {str(row.label) for row in pairs if row.label is not None}
    if any(isinstance(row.label, float) for row in pairs):
        return
    if not names:
        yield from pairs
        return
    positive = "entailment" if "entailment" in names else None
    if positive is None and len(names) == 2:
        positive = named_positive(names)
    opposite = "contradiction" if "contradiction" in names else None
    if opposite is None and len(names) == 2:
        opposite = next(name for name in names if name != positive)
    negatives: dict[str, list[str]] = {}
    for row in pairs:
        if row.label == opposite and row.pair is not None:
            negatives.setdefault(row.text, []).append(row.pair)
    used: Counter[str] = Counter()
    for row in pairs:
        if positive is not None and row.label == positive:
            own = negatives.get(row.text)
            negative = own[used[row.text] % len(own)] if own else row.negative
            used[row.text] += 1
            yield replace(row, label=None, negative=negative)


def _scaled(pairs: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield pairs with their numbers scaled to 0..1, which the cosines learn."""
    numbers = [row.label for row in pairs if isinstance(row.label, float)]
    if numbers:
        lowest, highest = min(numbers), max(numbers)
        for row, number in zip(pairs, numbers, strict=True):
            yield replace(row, label=(number - lowest) / max(highest - lowest, 1e-12))


def _nothing_to_use(objective: str, split: str, rows: Sequence[TextExample]) -> DataError:
    """Return the error for a split without any row that is of use."""
    first = rows[0]
    needed = {
        "ranking": "pairs of texts that belong together: without labels, or with the labels "
        "entailment and contradiction or with two such as duplicate and not_duplicate",
        "softmax": "pairs of texts with two labels or more",
        "cosine": "pairs of texts with a number",
        "cmlm": "running text with a sentence in each line, or pairs of adjacent texts",
    }.get(objective, "texts")
    kind = "texts" if first.pair is None else "pairs"
    labels = {str(row.label) for row in rows if row.label is not None}
    found = "without labels"
    if labels:
        numbers = isinstance(next(r.label for r in rows if r.label is not None), float)
        found = "with numbers" if numbers else f"labeled {abbreviated(sorted(labels), 4)}"
    return DataError(
        f"{first.where}: --objective {objective} needs {needed}; {split} has {kind} {found}: "
        "choose another objective, or name the columns with --columns."
    )


def _with_half(example: TextExample) -> TextExample:
    """Return a text paired with half of its words (or characters, of one word), in their order.

    The words follow from the text alone, so that the score of all runs is on the same pairs.
    """
    if example.pair is not None:
        return example
    words = example.text.split()
    units, between = (words, " ") if len(words) > 1 else (list(example.text), "")
    generator = random.Random(example.text)
    kept = sorted(generator.sample(range(len(units)), max(1, len(units) // 2)))
    return replace(example, pair=between.join(units[index] for index in kept))


def read_pairs(config: SentenceConfig, source: Any) -> Dataset:
    """Read texts or pairs; the splits may have different kinds of labels."""
    return read_text(
        source, columns=column_map(config.columns), encoding=config.encoding, mixed_labels=True
    )


def prepare_pairs(config: SentenceConfig, data: Dataset) -> Dataset:
    """Select the texts or pairs that the objective and the scores need, with notes."""
    data = with_standard_names(data)
    notes = list(data.notes)
    splits = {}
    for split, rows in data.splits.items():
        training = split == "train"
        select = _training_rows if training else _scored_rows
        chosen = list(select(config.objective, rows))
        unlabeled = split.startswith("validation") and config.objective in FROM_LABELS
        if not chosen or (unlabeled and chosen[0].label is None):
            raise _nothing_to_use(config.objective, split, rows)
        if len(chosen) != len(rows) or chosen[0].pair != rows[0].pair:
            unit = "text" if chosen[0].pair is None else "pair"
            notes.append(f"{split}: {quantity(len(chosen), unit)} of {len(rows):,} rows")
        splits[split] = [replace(example, id=index) for index, example in enumerate(chosen)]
    labels = {example.label for example in splits.get("train", ())}
    if config.objective in FROM_LABELS and len(labels) == 1:
        notes.append(
            f"warning: all pairs of train have the label {labels.pop()!r}: nothing tells them "
            "apart, so there is nothing to learn"
        )
    return replace(data.with_splits(splits), notes=notes)


def derive_vectors(config: SentenceConfig, data: Dataset) -> dict[str, Any]:
    """Return labels, pooling and the kind of validation gold."""
    train = data.splits["train"]
    names = {example.label for example in train} if config.objective == "softmax" else ()
    standard = [name for name in NLI_LABELS if name in names]
    labels = LabelSet(standard if len(standard) == len(names) else sorted(map(str, names)))
    validation = [split for split in sorted(data.splits) if split.startswith("validation")]
    gold = data.splits[validation[0] if validation else "train"][0].label
    measure = "label" if len(labels) else "ranking"
    pooling, normalize = starting_pooling(config)
    chosen = config.pooling if config.pooling != "auto" else pooling or "mean"
    return {
        "labels": labels,
        "pooling": "mask" if config.objective == "prompt" else chosen,
        "normalize": config.normalize or normalize,
        "measure": "number" if isinstance(gold, float) else measure,
        "pairs": None,
    }


def complete_pairs(task: Task, data: Dataset) -> Dataset:
    """Pair held-out texts without a pair with half of their words."""
    config: Any = task.record.config
    if config.objective in MASKED and task.tokenizer.tokenizer.mask_token_id is None:
        raise UserError(
            f"--objective {config.objective}: no mask token in the tokenizer "
            f"of {task.tokenizer.name}: choose simcse, or another model."
        )
    splits = {
        split: rows if split == "train" else [_with_half(example) for example in rows]
        for split, rows in data.splits.items()
    }
    return replace(data, splits=splits)
