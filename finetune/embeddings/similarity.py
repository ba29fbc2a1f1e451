"""`finetune similarity`: cosines of pairs, and their correlation with gold judgments.

It compares texts, words in context, and single words, which are read alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import open_records, print_tables, show
from finetune.data.running_text import sample_lines, text_sources
from finetune.data.texts import Characters
from finetune.data.word_splitting import split_words
from finetune.embeddings.commands import open_embedder
from finetune.embeddings.pairs import SimilarityData, read_similarity
from finetune.embeddings.vectors import Array, ExpectedCosine, Standardizer, cosine
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.predictions import to_row
from finetune.evaluation.significance import Counts, Estimate, estimate
from finetune.inference.embed import Embedder
from finetune.runtime.progress import Reporter
from finetune.types import TextExample, TextPrediction, UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Similarity

LEAST_PAIRS = 3
"""Pairs from which a correlation is computed."""
NUM_LINES = 1000
"""Lines of a corpus that vectors are standardized over."""
Words = tuple[str, ...]


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
        kind = "standardized" if self.standardized else "raw"
        return kind if self.layer is None else f"layer {self.layer}, {kind}"


def compare_pairs(
    embedder: Embedder,
    pairs: Sequence[TextExample],
    *,
    standardizer: Standardizer | None = None,
    window: int | None = None,
    reporter: Reporter | None = None,
) -> list[Cosines]:
    """Compute the cosines of all pairs, raw and, with a standardizer, standardized.

    Args:
        embedder: Its ``unit`` is ``"text"``, or ``"word"`` to compare the words that the pairs
            name; if they name none, all words of their texts. With ``combine="none"`` each layer
            has separate cosines.
        pairs: The pairs.
        standardizer: Fitted on a corpus with the same embedder settings.
        window: The number of words to read on each side of a word in context; None reads all.
        reporter: Shows the progress.
    """
    if standardizer is not None:
        standardizer.check(embedder.settings)
    vectors = _vectors(embedder, pairs, window)
    kinds: list[Callable[[Array], Array]] = [np.asarray]
    if standardizer is not None:
        kinds.append(standardizer)
    means = [ExpectedCosine() for _ in kinds]
    values: list[list[Array]] = [[] for _ in kinds]
    with reporter or Reporter(quiet=True) as shown:
        shown.start("similarity", len(pairs), unit="pair")
        for number, both in enumerate(zip(vectors, vectors, strict=True), 1):
            for kind, scale in enumerate(kinds):
                sides = scale(np.stack(both))
                means[kind].add(sides)
                values[kind].append(cosine(sides[0], sides[1]))
            shown.update(number)
    layers = embedder.layers if embedder.combine == "none" else [None]
    return [
        Cosines(layer, kind > 0, by_layer, float(expected))
        for kind in range(len(kinds))
        for layer, by_layer, expected in zip(
            layers,
            np.array(values[kind]).reshape(-1, len(layers)).T,
            np.atleast_1d(means[kind].value),
            strict=True,
        )
    ]


def fit_standardizer(
    embedder: Embedder, corpus: Iterable[str], *, most: int, seed: int = 0
) -> Standardizer:
    """Fit to the vectors of a sample of at most ``most`` lines of a corpus."""
    lines = sample_lines(corpus, most, seed)
    return Standardizer.fit((e.vectors for e in embedder.encode(lines)), embedder.settings)


def _texts(pair: TextExample) -> tuple[str, str]:
    return pair.text, pair.pair or ""


def _vectors(
    embedder: Embedder, pairs: Sequence[TextExample], window: int | None
) -> Iterator[Array]:
    sides = (
        (pair.where, text, target)
        for pair in pairs
        for text, target in zip(_texts(pair), pair.targets or (None, None), strict=True)
    )
    if embedder.unit == "text":
        for embedding in embedder.encode(text for _, text, _ in sides):
            yield embedding.vectors[0]
        return
    chosen: deque[slice] = deque()

    def inputs() -> Iterator[Words]:
        for where, text, target in sides:
            words, place = _with_context(where, text, target, window)
            chosen.append(place)
            yield words

    for embedding in embedder.encode(inputs()):
        yield embedding.vectors[chosen.popleft()].mean(axis=0)


def _with_context(
    where: str, text: str, target: Characters | None, window: int | None
) -> tuple[Words, slice]:
    words, offsets = split_words(text)
    start, end = target or (0, len(text))
    inside = [n for n, (first, last) in enumerate(offsets) if first < end and start < last]
    if not inside:
        raise UserError(f"{where}: {text[start:end]!r:.60} holds no word to compare.")
    left = 0 if window is None else max(0, inside[0] - window)
    right = len(words) if window is None else inside[-1] + 1 + window
    return tuple(words[left:right]), slice(inside[0] - left, inside[-1] + 1 - left)


def correlations(
    gold: Sequence[float], predicted: Sequence[float], *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Compute Spearman's and Pearson's correlation with gold, with 95 % bootstrap intervals."""
    pairs, scores = TYPES["number"].of_values(gold, predicted), {}
    for name in ("spearman", "pearson"):
        metric, ranks = TYPES["number"].metrics[name], name == "spearman"
        rows = np.array([gold, predicted], dtype=np.float64).T if ranks else metric.counts(pairs)
        counts = Counts(rows.astype(np.float64), metric.value, ranks)
        scores[name] = estimate([counts], num_resamples=num_resamples, seed=seed)
    return scores


def compare(command: Similarity) -> None:
    """Print the scores of the command, or the cosines of pairs without gold."""
    data = _read(command)
    in_context = data.pairs[0].targets is not None
    unit: Any = command.unit
    if unit == "auto":
        unit = "word" if in_context else "text"
    if command.window is not None and (command.window < 0 or not in_context or unit == "text"):
        raise UserError("--window must be 0 or more, and needs data that name words in texts.")
    embedder = open_embedder(command, command.layers, unit=unit, combine=command.combine)
    cosines = compare_pairs(
        embedder,
        data.pairs,
        standardizer=_standardizer(command, embedder),
        window=command.window,
        reporter=Reporter(quiet=command.format != "table"),
    )
    if number := embedder.num_windowed:
        limit = f"{number:,} over {embedder.max_length} tokens"
        show(f"inputs read in several windows: {limit}", error=True)
    if command.out is not None:
        _write(command.out, data, cosines[-1])
    if data.gold is not None and len(data.gold) >= LEAST_PAIRS:
        return _print_scores(command, data, cosines, data.gold)
    names = ["cosine"] if len(cosines) == 1 else [measured.name for measured in cosines]
    rows = [
        (*(float(measured.values[n]) for measured in cosines), _shown(pair, 0), _shown(pair, 1))
        for n, pair in enumerate(data.pairs)
    ]
    print_tables(command.format, ("", (*names, "first", "second"), rows))


def _read(command: Similarity) -> SimilarityData:
    if command.data is None:
        example = TextExample(0, command.text or "", command.pair, where="--text")
        return SimilarityData("", [example])
    data = read_similarity(command.data, split=command.split, **command.reading)
    for note in data.notes:
        show(note, error=True)
    return data


def _standardizer(command: Similarity, embedder: Embedder) -> Standardizer | None:
    if command.standardize is None:
        return None
    sources = text_sources(command.standardize, command.encoding)
    lines = (line for source in sources for line in source.lines())
    fitted = fit_standardizer(embedder, lines, most=NUM_LINES, seed=command.seed)
    show(
        f"standardized over {quantity(fitted.count, embedder.unit)} of {command.standardize}"
        + (f"; constant dimensions: {fitted.num_constant}" if fitted.num_constant else ""),
        error=True,
    )
    return fitted


def _write(path: str, data: SimilarityData, cosines: Cosines) -> None:
    with open_records(path) as write:
        for pair, cosine in zip(data.pairs, cosines.values.tolist(), strict=True):
            details: dict[str, Any] = {}
            if pair.targets is not None:
                details["targets"] = [list(target) for target in pair.targets]
            if isinstance(pair.label, str):
                details["name"] = pair.label
            gold = pair if isinstance(pair.label, float) else replace(pair, label=None)
            write(to_row(TextPrediction(pair.id, cosine), gold) | details)
    show(f"wrote {path}: {quantity(len(data.pairs), 'pair')}", error=True)


def _print_scores(
    command: Similarity, data: SimilarityData, cosines: Sequence[Cosines], gold: Sequence[float]
) -> None:
    split = f" ({data.split})" if data.split else ""
    command.note(
        f"{quantity(len(data.pairs), 'pair')} of {command.data}{split}, "
        f"{command.resamples:,} resamples, seed {command.seed}"
    )
    rows: list[dict[str, Any]] = []
    for measured in cosines:
        resampling = {"num_resamples": command.resamples, "seed": command.seed}
        row: dict[str, Any] = {"vectors": measured.name}
        for name, score in correlations(gold, measured.values.tolist(), **resampling).items():
            if command.format == "table":
                row[name] = f"{score.value:.4f} ({score.low:.4f} to {score.high:.4f})"
            else:
                row |= {name: score.value, f"{name} low": score.low, f"{name} high": score.high}
        rows.append(row | {"expected cosine": measured.expected})
    print_tables(command.format, ("", list(rows[0]), [list(row.values()) for row in rows]))


def _shown(pair: TextExample, side: int) -> str:
    text = _texts(pair)[side]
    if pair.targets is not None:
        start, end = pair.targets[side]
        return text[start:end]
    return text if len(text) <= 40 else text[:39] + "…"
