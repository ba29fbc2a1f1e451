"""`finetune similarity`: pairs, their cosines, and the correlation with gold judgments.

The pairs are of texts, of words in context, or of single words, which are read alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import open_rows, print_tables, show
from finetune.data import texts
from finetune.data.dataset import DataError
from finetune.data.files import UTF_8, ReadOptions
from finetune.data.labels import MISSING_NUMBER
from finetune.data.running_text import sample_lines, text_sources
from finetune.data.sources import open_splits
from finetune.data.tables import check_columns, open_text_table
from finetune.data.word_splitting import split_words
from finetune.embeddings.vectors import Array, Standardizer, unit_vectors
from finetune.embeddings.words_in_context import (
    TARGET_ROLES,
    Characters,
    best_threshold,
    label_name,
    word_locator,
)
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.predictions import to_row
from finetune.evaluation.significance import count_metric, estimate
from finetune.inference.embed import Embedder
from finetune.runtime.progress import Reporter
from finetune.types import TextExample, TextPrediction, UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Similarity

_ROLES = (*texts.ROLES, *TARGET_ROLES)
LEAST_PAIRS = 3
"""Pairs from which a correlation is computed."""
NUM_LINES = 1000
"""Lines of a corpus that vectors are standardized over."""


def read_similarity(
    spec: str,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    encoding: str = UTF_8,
) -> tuple[list[TextExample], list[str]]:
    """Read the pairs of one split of a data set, and notes; either all pairs have gold, or none.

    A pair has two texts, the gold similarity as its label, and as ``targets`` the characters of the
    compared word in each text, None to compare the texts.

    Args:
        spec: A file, a folder, ``test=FILE`` or a hub data set, as for training.
        split: The split; by default the only one, else test.
        columns: The columns by role, if they do not have the usual names.
        encoding: The encoding of text files.

    Raises:
        DataError: The data cannot be read; the message names file and line.
    """
    columns = check_columns(columns, _ROLES)
    options = ReadOptions(columns, texts.HEADER_NAMES)
    wanted = [split] if split else None
    dataset, tables = open_splits(
        spec, wanted, lambda file: open_text_table(file, options), encoding
    )
    chosen = next(iter(tables)) if len(tables) == 1 else "test"
    if (table := tables.get(chosen)) is None:
        raise DataError(f"--data {spec}: choose one split of {', '.join(tables)} with --split.")
    rows = table.peek(None)
    if not rows:
        raise DataError(f"{table.name}: there is no pair in it.")
    of_texts = {role: name for role, name in columns.items() if role in texts.ROLES}
    make = texts.TextReader(pair=True).choose(table, rows, of_texts, "read")
    locate = word_locator(table, columns)
    pairs, label_notes = _with_gold(
        [locate(row, make(index, row)) for index, row in enumerate(rows)]
    )
    return pairs, [*dataset.notes, *table.notes, *label_notes]


def _with_gold(pairs: list[TextExample]) -> tuple[list[TextExample], list[str]]:
    labeled = [pair for pair in pairs if pair.label is not None]
    numbers = [_number(pair.label) for pair in labeled]
    if all(number is None for number in numbers):
        return pairs, []
    if all(number == MISSING_NUMBER for number in numbers):  # as in the test sets of GLUE
        unlabeled = [replace(pair, label=None) for pair in pairs]
        return unlabeled, ["no pair has gold, as every label is -1: --split names another split"]
    for pair, number in zip(labeled, numbers, strict=True):
        if number is None:
            raise DataError(
                f"{pair.where}: the similarity {pair.label!r} is not a finite "
                "number: correct the row, or name the column: --columns label=NAME."
            )
    dropped = len(pairs) - len(labeled)
    notes = [f"{quantity(dropped, 'pair')} without gold left out"] if dropped else []
    return [replace(p, label=number) for p, number in zip(labeled, numbers, strict=True)], notes


def _number(label: Any) -> float | None:
    try:
        number = float(label)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def compare_pairs(
    embedder: Embedder,
    pairs: Sequence[TextExample],
    *,
    standardizer: Standardizer | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Array]:
    """Compute the cosines of all pairs, raw and, with a standardizer, standardized.

    Args:
        embedder: Its ``unit`` is ``"text"``, or ``"word"`` to compare the words that the pairs
            name; if they name none, all words of their texts. With ``combine="none"`` each layer
            has separate cosines.
        pairs: The pairs.
        standardizer: Fitted on a corpus with the same embedder settings.
        reporter: Shows the progress.

    Returns:
        The cosines [N] by the vectors they are of, as in ``layer 3, standardized``.
    """
    scales: list[Callable[[Array], Array]] = [np.asarray]
    if standardizer is not None:
        scales.append(standardizer)
    layers = [f"layer {n}, " for n in embedder.layers] if embedder.combine == "none" else [""]
    kinds = ("raw", "standardized")[: len(scales)]
    names = [layer + kind for kind in kinds for layer in layers]
    values = np.zeros((len(scales), len(layers), len(pairs)))
    vectors = _vectors(embedder, pairs)
    with reporter or Reporter(quiet=True) as progress:
        progress.start("similarity", len(pairs), unit="pair")
        for number, both in enumerate(zip(vectors, vectors, strict=True)):
            for index, scale in enumerate(scales):
                units = unit_vectors(scale(np.stack(both)))
                values[index, :, number] = (units[0] * units[1]).sum(axis=-1).clip(-1.0, 1.0)
            progress.update(number + 1)
    return dict(zip(names, values.reshape(-1, len(pairs)), strict=True))


def _vectors(embedder: Embedder, pairs: Sequence[TextExample]) -> Iterator[Array]:
    inputs, compared = list[str | tuple[str, ...]](), list[slice]()
    for pair in pairs:
        targets = pair.targets or (None, None)
        for text, target in zip(pair.texts(), targets, strict=True):
            words, offsets = split_words(text)
            is_text = embedder.unit == "text"
            inputs.append(text if is_text else tuple(words))
            compared.append(slice(1) if is_text else _location(pair.where, text, target, offsets))
    for embedding, location in zip(embedder.encode(inputs), compared, strict=True):
        yield embedding.vectors[location].mean(axis=0)


def _location(
    where: str, text: str, target: Characters | None, offsets: Sequence[Characters]
) -> slice:
    start, end = target or (0, len(text))
    inside = [n for n, (first, last) in enumerate(offsets) if first < end and start < last]
    if not inside:
        raise UserError(f"{where}: {text[start:end]!r:.60} holds no word to compare.")
    return slice(inside[0], inside[-1] + 1)


def estimates(
    command: Similarity, metrics: Sequence[str], gold: Sequence[Any], predicted: Sequence[Any]
) -> dict[str, Any]:
    """Compute metrics of labels or numbers with 95 % bootstrap intervals, for a row of a table."""
    pairs = [TYPES["label" if isinstance(gold[0], str) else "number"].of_values(gold, predicted)]
    row: dict[str, Any] = {}
    for name in metrics:
        counts = count_metric(name, pairs)
        score = estimate(counts, num_resamples=command.resamples, seed=command.seed)
        if command.format == "table":
            row[name] = f"{score.value:.4f} ({score.low:.4f} to {score.high:.4f})"
        else:
            row |= {name: score.value, f"{name} low": score.low, f"{name} high": score.high}
    return row


def _read_pairs(command: Similarity) -> tuple[list[TextExample], list[TextExample]]:
    # the pairs to score, and those of --threshold
    pairs = train = [TextExample(0, command.text or "", command.pair, where="--text")]
    if command.data is None:
        return pairs, train
    pairs, notes = read_similarity(command.data, split=command.split, **command.reading)
    if command.threshold:
        train, _ = read_similarity(command.data, split="train", **command.reading)
        if train[0].where == pairs[0].where:
            notes.append(
                "the threshold is chosen on the pairs that it is scored on, so the accuracy is "
                "too high: give other pairs, --data train=FILE,test=FILE"
            )
    for note in notes:
        show(note, error=True)
    return pairs, train


def run_similarity(command: Similarity) -> None:
    """Print the scores of the command, or the cosines of pairs without gold."""
    pairs, train = _read_pairs(command)
    unit: Any = command.unit
    if unit == "auto":
        unit = "text" if pairs[0].targets is None else "word"
    settings = {name: getattr(command, name) for name in ("layers", "combine", "pooling")}
    embedder = Embedder(command.model, unit=unit, **settings, **command.encoder.keywords())
    options: dict[str, Any] = {"reporter": Reporter(quiet=command.format != "table")}
    if command.standardize is not None:
        sources = text_sources(command.standardize, command.encoding)
        lines = (line for source in sources for line in source.lines())
        sample = sample_lines(lines, NUM_LINES, command.seed)
        standardizer = Standardizer.fit(read.vectors for read in embedder.encode(sample))
        words = quantity(standardizer.count, unit)
        show(f"standardized over {words} of {command.standardize}", error=True)
        options["standardizer"] = standardizer
    cosines = compare_pairs(embedder, pairs, **options)
    labels, gold = None, [pair.label for pair in pairs if isinstance(pair.label, float)]
    scores: list[dict[str, Any]] = []
    if command.threshold:
        labeled = [number for number, pair in enumerate(pairs) if pair.label is not None]
        names = [label_name(pairs[number]) for number in labeled]
        fitted = compare_pairs(embedder, train, **options)
        for name, values in cosines.items():
            threshold = best_threshold(fitted[name], train)
            labels = threshold.labels(values)
            row = {"vectors": name, "threshold": threshold.value}
            row["at or above"] = threshold.above
            if labeled:
                predicted = [labels[number] for number in labeled]
                row |= estimates(command, ["accuracy"], names, predicted)
            scores.append(row)
    elif LEAST_PAIRS <= len(gold) == len(pairs):
        scores = [
            {"vectors": name} | estimates(command, ("spearman", "pearson"), gold, values.tolist())
            for name, values in cosines.items()
        ]
    if command.out is not None:
        _write(command.out, pairs, [*cosines.values()][-1], labels)
    if scores:
        of_data = f"{quantity(len(pairs), 'pair')} of {command.data}"
        command.note(f"{of_data}, {command.resamples:,} resamples, seed {command.seed}")
        table = ("", list(scores[0]), [list(row.values()) for row in scores])
        return print_tables(command.format, table)
    columns = ["cosine"] if len(cosines) == 1 else [*cosines]
    rows = [
        (*(float(values[number]) for values in cosines.values()), *_compared(pair))
        for number, pair in enumerate(pairs)
    ]
    return print_tables(command.format, ("", (*columns, "first", "second"), rows))


def _compared(pair: TextExample) -> list[str]:
    if pair.targets is not None:
        return [text[slice(*t)] for text, t in zip(pair.texts(), pair.targets, strict=True)]
    return [text if len(text) <= 40 else text[:39] + "…" for text in pair.texts()]


def _write(
    path: str, pairs: Sequence[TextExample], cosines: Array, labels: Sequence[str] | None = None
) -> None:
    values: Sequence[Any] = cosines.tolist() if labels is None else labels
    measure = "cosine" if labels is None else None
    with open_rows(path) as write:
        for pair, cosine, value in zip(pairs, cosines.tolist(), values, strict=True):
            details: dict[str, Any] = {}
            gold = pair
            if pair.targets is not None:
                details["targets"] = [list(target) for target in pair.targets]
            if labels is not None:
                details["cosine"] = round(cosine, 6)
                gold = replace(pair, label=label_name(pair))
            elif not isinstance(pair.label, float):
                gold = replace(pair, label=None)
            write(to_row(TextPrediction(pair.id, value, similarity=measure), gold) | details)
    show(f"wrote {path}: {quantity(len(pairs), 'pair')}", error=True)
