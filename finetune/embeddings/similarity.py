"""`finetune similarity`: pairs, their cosines, and the correlation with gold judgments.

The pairs are of texts, of words in context, or of single words, which are read alone. Do two uses
of a word have the same sense (Pilehvar & Camacho-Collados 2019, "WiC: the Word-in-Context dataset
for evaluating context-sensitive meaning representations")? A threshold on their cosine is chosen on
training pairs; cosines of other models, layers or normalizations do not compare with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import print_tables, show
from finetune.config.values import finite_number
from finetune.data import texts
from finetune.data.files import UTF_8, ReadOptions, Row
from finetune.data.labels import MISSING_NUMBER
from finetune.data.running_text import sample_lines, text_sources
from finetune.data.sources import open_splits
from finetune.data.tables import check_columns, open_text_table, whole_number
from finetune.data.word_splitting import split_words
from finetune.embeddings.vectors import Array, Standardizer, unit_vectors
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.predictions import to_row
from finetune.evaluation.significance import count_metric, estimate
from finetune.inference.embed import Embedder
from finetune.runtime.progress import Reporter
from finetune.runtime.row_files import write_rows
from finetune.types import DataError, TextExample, TextPrediction, UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Similarity

TARGET_ROLES = ("index", "index_pair")
"""Columns that name the compared word in each text: its number among the words between white space,
from 0."""
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
    columns = check_columns(columns, (*texts.ROLES, *TARGET_ROLES))
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
    pairs = [make(index, row) for index, row in enumerate(rows)]
    first, second = (table.find(role, columns, [role]) for role in TARGET_ROLES)
    if first is not None and second is not None:
        for number, (row, pair) in enumerate(zip(rows, pairs, strict=True)):
            columns_of_texts = zip(pair.texts(), (first, second), strict=True)
            targets: Any = tuple(_characters(text, row, name) for text, name in columns_of_texts)
            pairs[number] = replace(pair, targets=targets)
    elif columns.keys() & {*TARGET_ROLES}:
        missing = TARGET_ROLES[first is not None]
        raise DataError(
            f"{table.name}: words in context need the columns index and index_pair, and "
            f"{missing!r} is missing: name it, --columns {missing}=NAME."
        )
    pairs, label_notes = _with_gold(pairs)
    return pairs, [*dataset.notes, *table.notes, *label_notes]


def _characters(text: str, row: Row, column: str) -> tuple[int, int]:
    number = whole_number(row.values.get(column))
    if number is None or number < 0:
        raise DataError(
            f"{row.where}: {column} must be a whole number from 0, not "
            f"{row.values.get(column)!r:.40}."
        )
    words = list(re.finditer(r"\S+", text))
    if number >= len(words):
        raise DataError(
            f"{row.where}: there is no word {number} among {quantity(len(words), 'word')} between "
            "white space (the first is 0)."
        )
    return words[number].span()


def _with_gold(pairs: list[TextExample]) -> tuple[list[TextExample], list[str]]:
    labeled = [pair for pair in pairs if pair.label is not None]
    numbers = [finite_number(pair.label) for pair in labeled]
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
    scales: dict[str, Callable[[Array], Array]] = {"raw": np.asarray}
    if standardizer is not None:
        scales["standardized"] = standardizer
    layers = [f"layer {n}, " for n in embedder.layers] if embedder.combine == "none" else [""]
    names = [layer + name for name in scales for layer in layers]
    values = np.zeros((len(names), len(pairs)))
    vectors = _vectors(embedder, pairs)
    with reporter or Reporter(quiet=True) as progress:
        progress.start("similarity", len(pairs), unit="pair")
        for number, both in enumerate(zip(vectors, vectors, strict=True)):
            units = (unit_vectors(scale(np.stack(both))) for scale in scales.values())
            cosines = [(u * v).sum(axis=-1).clip(-1.0, 1.0) for u, v in units]
            values[:, number] = np.ravel(cosines)
            progress.update(number + 1)
    return dict(zip(names, values, strict=True))


def _vectors(embedder: Embedder, pairs: Sequence[TextExample]) -> Iterator[Array]:
    inputs, compared = list[str | tuple[str, ...]](), list[slice]()
    for pair in pairs:
        targets = pair.targets or (None, None)
        for text, target in zip(pair.texts(), targets, strict=True):
            if embedder.unit == "text":
                inputs.append(text)
                compared.append(slice(1))
                continue
            words, offsets = split_words(text)
            start, end = target or (0, len(text))
            inside = [n for n, (first, last) in enumerate(offsets) if first < end and start < last]
            if not inside:
                raise UserError(f"{pair.where}: {text[start:end]!r:.60} holds no word to compare.")
            inputs.append(tuple(words))
            compared.append(slice(inside[0], inside[-1] + 1))
    for embedding, location in zip(embedder.encode(inputs), compared, strict=True):
        yield embedding.vectors[location].mean(axis=0)


def best_threshold(cosines: Array, pairs: Sequence[TextExample]) -> tuple[float, str, str]:
    """Choose the threshold with the highest accuracy on the pairs that have a label, of two.

    Thresholds lie midway between two cosines; if several are equally good, the lowest one is
    chosen.

    Returns:
        The threshold; the label of pairs with at least this cosine, which is the one with the
        higher mean; and the label of the others.

    Raises:
        UserError: There are not exactly two labels.
    """
    labeled = [number for number, pair in enumerate(pairs) if pair.label is not None]
    cosines, labels = cosines[labeled], [str(pairs[number].label) for number in labeled]
    names = sorted({*labels})
    if len(names) != 2:
        listed = f": {abbreviated(names)}" if names else ""
        raise UserError(
            "a threshold separates two labels, and the training pairs have "
            f"{quantity(len(names), 'label')}{listed}."
        )
    is_second = np.array([label == names[1] for label in labels])
    if cosines[is_second].mean() < cosines[~is_second].mean():
        names, is_second = names[::-1], ~is_second
    values = np.unique(cosines)
    cuts = np.concatenate(
        [values[:1], (values[:-1] + values[1:]) / 2, np.nextafter(values[-1:], np.inf)]
    )
    below, above = np.sort(cosines[~is_second]), np.sort(cosines[is_second])
    num_right = np.searchsorted(below, cuts) + len(above) - np.searchsorted(above, cuts)
    return float(cuts[np.argmax(num_right)]), names[1], names[0]


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
        for rows in (pairs, train):  # any two labels can be separated
            for number, pair in enumerate(rows):
                if isinstance(pair.label, float):
                    rows[number] = replace(pair, label=f"{pair.label:g}")
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
        lines = chain.from_iterable(source.lines() for source in sources)
        sample = sample_lines(lines, NUM_LINES, command.seed)
        standardizer = Standardizer.fit(read.vectors for read in embedder.encode(sample))
        words = quantity(standardizer.count, unit)
        show(f"standardized over {words} of {command.standardize}", error=True)
        options["standardizer"] = standardizer
    cosines = compare_pairs(embedder, pairs, **options)
    labels: list[str] | None = None
    gold = [pair.label for pair in pairs if pair.label is not None]
    scores: list[dict[str, Any]] = []
    if command.threshold:
        fitted = compare_pairs(embedder, train, **options)
        for name, values in cosines.items():
            threshold, above, below = best_threshold(fitted[name], train)
            labels = [above if value >= threshold else below for value in values]
            scores.append({"vectors": name, "threshold": threshold, "at or above": above})
            if gold:
                pairs_with_gold = zip(labels, pairs, strict=True)
                predicted = [label for label, pair in pairs_with_gold if pair.label is not None]
                scores[-1] |= estimates(command, ["accuracy"], gold, predicted)
    elif LEAST_PAIRS <= len(gold) == len(pairs) and isinstance(gold[0], float):
        scores = [
            {"vectors": name} | estimates(command, ("spearman", "pearson"), gold, values.tolist())
            for name, values in cosines.items()
        ]
    if command.out is not None:
        write_rows(command.out, _rows(pairs, [*cosines.values()][-1], labels))
        show(f"wrote {command.out}: {quantity(len(pairs), 'pair')}", error=True)
    if scores:
        of_data = f"{quantity(len(pairs), 'pair')} of {command.data}"
        command.note(f"{of_data}, {command.resamples:,} resamples, seed {command.seed}")
        table = ("", list(scores[0]), [list(row.values()) for row in scores])
        return print_tables(command.format, table)
    columns = ["cosine"] if len(cosines) == 1 else [*cosines]
    rows = []
    for number, pair in enumerate(pairs):
        compared = [text if len(text) <= 40 else text[:39] + "…" for text in pair.texts()]
        if pair.targets is not None:
            marked = zip(pair.texts(), pair.targets, strict=True)
            compared = [text[slice(*characters)] for text, characters in marked]
        rows.append([*(float(values[number]) for values in cosines.values()), *compared])
    return print_tables(command.format, ("", (*columns, "first", "second"), rows))


def _rows(
    pairs: Sequence[TextExample], cosines: Array, labels: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    values: Sequence[Any] = cosines.tolist() if labels is None else labels
    measure = "cosine" if labels is None else None
    for pair, cosine, value in zip(pairs, cosines.tolist(), values, strict=True):
        details: dict[str, Any] = {}
        if pair.targets is not None:
            details["targets"] = [list(target) for target in pair.targets]
        if labels is not None:
            details["cosine"] = round(cosine, 6)
        elif not isinstance(pair.label, float):
            pair = replace(pair, label=None)
        yield to_row(TextPrediction(pair.id, value, similarity=measure), pair) | details
