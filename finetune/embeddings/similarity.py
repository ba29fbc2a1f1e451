"""`finetune similarity`: pairs, their cosines, and the correlation with gold judgments.

The pairs are of texts, of words in context, or of single words, which are read alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
from finetune.embeddings.commands import open_embedder
from finetune.embeddings.vectors import Array, ExpectedCosine, Standardizer, unit_vectors
from finetune.embeddings.words_in_context import (
    TARGET_ROLES,
    Characters,
    Threshold,
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


class SimilarityData(NamedTuple):
    """The pairs of one split; either all have gold, or none.

    A pair has two texts, the gold similarity as its label, and as ``targets`` the characters of the
    compared word in each text, None to compare the texts.
    """

    pairs: Sequence[TextExample]
    notes: Sequence[str] = ()


def read_similarity(
    spec: str,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    encoding: str = UTF_8,
) -> SimilarityData:
    """Read one split of a data set of pairs.

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
    located = [locate(row, make(index, row)) for index, row in enumerate(rows)]
    pairs, label_notes = _with_gold(located)
    return SimilarityData(pairs, (*dataset.notes, *table.notes, *label_notes))


def _with_gold(pairs: Sequence[TextExample]) -> tuple[list[TextExample], list[str]]:
    labeled = [pair for pair in pairs if pair.label is not None]
    numbers = [_number(pair.label) for pair in labeled]
    if all(number is None for number in numbers):
        return list(pairs), []
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


@dataclass(frozen=True)
class Cosines:
    """The cosine of each pair [N], and the expected cosine of any two of the compared units.

    ``layer`` is None if the layers are combined.
    """

    layer: int | None
    standardized: bool
    values: Array
    expected: float

    @property
    def name(self) -> str:
        """The name of these vectors in tables."""
        vectors = "standardized" if self.standardized else "raw"
        return vectors if self.layer is None else f"layer {self.layer}, {vectors}"


def compare_pairs(
    embedder: Embedder,
    pairs: Sequence[TextExample],
    *,
    standardizer: Standardizer | None = None,
    reporter: Reporter | None = None,
) -> list[Cosines]:
    """Compute the cosines of all pairs, raw and, with a standardizer, standardized.

    Args:
        embedder: Its ``unit`` is ``"text"``, or ``"word"`` to compare the words that the pairs
            name; if they name none, all words of their texts. With ``combine="none"`` each layer
            has separate cosines.
        pairs: The pairs.
        standardizer: Fitted on a corpus with the same embedder settings.
        reporter: Shows the progress.
    """
    scales: list[Callable[[Array], Array]] = [np.asarray]
    if standardizer is not None:
        scales.append(standardizer)
    layers = embedder.layers if embedder.combine == "none" else [None]
    expected = [ExpectedCosine() for _ in scales]
    values = np.zeros((len(scales), len(layers), len(pairs)))
    vectors = _vectors(embedder, pairs)
    with reporter or Reporter(quiet=True) as progress:
        progress.start("similarity", len(pairs), unit="pair")
        for number, both in enumerate(zip(vectors, vectors, strict=True)):
            for index, scale in enumerate(scales):
                units = unit_vectors(scale(np.stack(both)))
                expected[index].add(units)
                values[index, :, number] = (units[0] * units[1]).sum(axis=-1).clip(-1.0, 1.0)
            progress.update(number + 1)
    return [
        Cosines(layer, index > 0, by_layer, float(mean))
        for index in range(len(scales))
        for layer, by_layer, mean in zip(
            layers,
            values[index],
            np.atleast_1d(expected[index].contributions.sum(axis=-1)),
            strict=True,
        )
    ]


def fit_standardizer(
    embedder: Embedder, corpus: Iterable[str], *, most: int, seed: int = 0
) -> Standardizer:
    """Fit to the vectors of a sample of at most ``most`` lines of a corpus."""
    lines = sample_lines(corpus, most, seed)
    return Standardizer.fit(embedding.vectors for embedding in embedder.encode(lines))


def _vectors(embedder: Embedder, pairs: Sequence[TextExample]) -> Iterator[Array]:
    compared: deque[slice] = deque()  # the words to compare, of inputs that are read ahead

    def inputs() -> Iterator[str | tuple[str, ...]]:
        for pair in pairs:
            targets = pair.targets or (None, None)
            for text, target in zip(pair.texts(), targets, strict=True):
                if embedder.unit == "text":
                    compared.append(slice(1))
                    yield text
                else:
                    words, offsets = split_words(text)
                    compared.append(_location(pair.where, text, target, offsets))
                    yield tuple(words)

    for embedding in embedder.encode(inputs()):
        yield embedding.vectors[compared.popleft()].mean(axis=0)


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


def run_similarity(command: Similarity) -> None:
    """Print the scores of the command, or the cosines of pairs without gold."""
    if command.data is None:
        data = SimilarityData([TextExample(0, command.text or "", command.pair, where="--text")])
    else:
        data = read_similarity(command.data, split=command.split, **command.reading)
    train: Sequence[TextExample] = ()
    if command.threshold and command.data is not None:
        train = read_similarity(command.data, split="train", **command.reading).pairs
    for note in data.notes:
        show(note, error=True)
    in_context = data.pairs[0].targets is not None
    unit: Any = command.unit
    if unit == "auto":
        unit = "word" if in_context else "text"
    embedder = open_embedder(command, command.layers, unit=unit, combine=command.combine)
    standardizer = None
    if command.standardize is not None:
        sources = text_sources(command.standardize, command.encoding)
        lines = (line for source in sources for line in source.lines())
        standardizer = fit_standardizer(embedder, lines, most=NUM_LINES, seed=command.seed)
        words = quantity(standardizer.count, unit)
        show(f"standardized over {words} of {command.standardize}", error=True)
    options: dict[str, Any] = {
        "standardizer": standardizer,
        "reporter": Reporter(quiet=command.format != "table"),
    }
    cosines = compare_pairs(embedder, data.pairs, **options)
    if command.threshold:
        fitted = compare_pairs(embedder, train, **options)
        thresholds = [best_threshold(of_train.values, train) for of_train in fitted]
        return _print_thresholds(command, data, cosines, thresholds)
    if command.out is not None:
        _write(command.out, data.pairs, cosines[-1].values)
    gold = [pair.label for pair in data.pairs if isinstance(pair.label, float)]
    if LEAST_PAIRS <= len(gold) == len(data.pairs):
        scores = [
            {"vectors": measured.name}
            | estimates(command, ("spearman", "pearson"), gold, measured.values.tolist())
            | {"expected cosine": measured.expected}
            for measured in cosines
        ]
        return _print_scores(command, data, scores)
    names = ["cosine"] if len(cosines) == 1 else [measured.name for measured in cosines]
    rows = [
        (*(float(measured.values[number]) for measured in cosines), *_compared(pair))
        for number, pair in enumerate(data.pairs)
    ]
    return print_tables(command.format, ("", (*names, "first", "second"), rows))


def _print_thresholds(
    command: Similarity,
    data: SimilarityData,
    cosines: Sequence[Cosines],
    thresholds: Sequence[Threshold],
) -> None:
    labeled = [number for number, pair in enumerate(data.pairs) if pair.label is not None]
    gold = [label_name(data.pairs[number]) for number in labeled]
    rows = []
    for measured, threshold in zip(cosines, thresholds, strict=True):
        row: dict[str, Any] = {"vectors": measured.name}
        row |= {"threshold": threshold.value, "at or above": threshold.above}
        if labeled:
            row |= estimates(
                command, ["accuracy"], gold, threshold.labels(measured.values[labeled])
            )
        rows.append(row)
    if command.out is not None:
        values = cosines[-1].values
        _write(command.out, data.pairs, values, thresholds[-1].labels(values))
    _print_scores(command, data, rows)


def _compared(pair: TextExample) -> list[str]:
    if pair.targets is not None:
        return [text[slice(*t)] for text, t in zip(pair.texts(), pair.targets, strict=True)]
    return [text if len(text) <= 40 else text[:39] + "…" for text in pair.texts()]


def _write(
    path: str, pairs: Sequence[TextExample], cosines: Array, labels: Sequence[str] | None = None
) -> None:
    values: Sequence[Any] = cosines.tolist() if labels is None else labels
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
            write(to_row(TextPrediction(pair.id, value), gold) | details)
    show(f"wrote {path}: {quantity(len(pairs), 'pair')}", error=True)


def _print_scores(
    command: Similarity, data: SimilarityData, rows: Sequence[dict[str, Any]]
) -> None:
    command.note(
        f"{quantity(len(data.pairs), 'pair')} of {command.data}, {command.resamples:,} resamples, "
        f"seed {command.seed}"
    )
    print_tables(command.format, ("", list(rows[0]), [list(row.values()) for row in rows]))
