"""`finetune geometry`: anisotropy, rogue dimensions, self-similarity, and attention, by layer.

Ethayarajh 2019, "How contextual are contextualized word representations?"; Timkey & van Schijndel
2021, "All bark and no bite: rogue dimensions in transformer language models obscure
representational quality".

Shapes: U words of a text, L layers, H dimensions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import print_tables, show
from finetune.data.running_text import sample_lines, text_sources
from finetune.data.word_splitting import split_words
from finetune.embeddings.attention_norms import analyze_attention, unsupported_reason
from finetune.embeddings.commands import open_embedder, write_pages
from finetune.embeddings.vectors import Array, ExpectedCosine, Standardizer, unit_vectors
from finetune.inference.embed import Embedder
from finetune.preprocessing.batching import pack
from finetune.reporting.charts import Chart, Points, chart
from finetune.reporting.rendering import Table, inlined, render
from finetune.runtime.device import batch_to_device
from finetune.runtime.progress import Reporter
from finetune.types import Encoding, UserError

if TYPE_CHECKING:
    from finetune.embeddings.commands import Geometry as GeometryCommand

LEAST_USES = 5
"""Uses of a word from which its self-similarity is measured (Ethayarajh 2019)."""
MOST_WORDS = 200
"""Most words to measure the self-similarity of; a random sample if there are more."""
MOST_TOKENS = 64
"""Tokens of a sentence whose attention is shown."""
NUM_SENTENCES = 50
"""Sentences that the mixing ratio is averaged over."""
SHOWN_TOKENS = (8, 24)
"""Least and most tokens of the sentences to show."""
NUM_SHOWN = 2
TOP_DIMENSIONS = (1, 3, 5, 10)
"""Numbers of largest dimensions whose share of the expected cosine is reported."""
PACKAGE = "finetune.embeddings"
"""The package whose templates make the page."""
MOST_LISTED = 12
"""Number of words to list with the lowest, and with the highest, self-similarity."""


@dataclass(frozen=True)
class LayerGeometry:
    """The geometry of one layer, raw or standardized."""

    layer: int
    expected_cosine: float
    """Mean cosine of two words: the anisotropy."""
    shares: dict[int, float] | None
    """Share of the largest dimensions in the expected cosine, by their number; None if the expected
    cosine is not positive."""
    dimensions: list[tuple[int, float]]
    """The largest dimensions, each with its contribution to the expected cosine."""
    self_similarity: float | None
    """Mean cosine of two uses of a word, over words; None if no word is used often enough."""
    intra_sentence: float
    """Mean cosine of a word and the mean vector of its text."""
    norm: float
    """Mean length of a vector."""

    def share(self, number: int) -> float | None:
        """Return the share of the ``number`` largest dimensions; None if it is unknown."""
        return (self.shares or {}).get(number)

    @property
    def adjusted_self_similarity(self) -> float | None:
        """Self-similarity minus the expected cosine (Ethayarajh 2019)."""
        if self.self_similarity is None:
            return None
        return self.self_similarity - self.expected_cosine

    @property
    def adjusted_intra_sentence(self) -> float:
        """Similarity within a text minus the expected cosine."""
        return self.intra_sentence - self.expected_cosine


@dataclass
class GeometryMeasure:
    """Sums over a stream of texts, from which the geometry of each layer follows.

    Memory does not grow with the text: it holds sums, also for each of the ``words`` whose
    self-similarity is measured.
    """

    layers: Sequence[int]
    words: Collection[str]
    _expected: ExpectedCosine = field(default_factory=ExpectedCosine)
    _by_word: dict[str, ExpectedCosine] = field(default_factory=dict)
    _intra: Any = 0.0
    _num_texts: int = 0
    _norms: Any = 0.0

    def add(self, words: Sequence[str], vectors: Array) -> None:
        """Add the words of a text and their vectors [U, L, H]."""
        if not words:
            return
        units = unit_vectors(vectors)
        self._expected.add_units(units)
        self._norms = self._norms + np.linalg.norm(vectors, axis=-1).sum(axis=0)
        center = unit_vectors(vectors.mean(axis=0))
        self._intra = self._intra + (units * center).sum(axis=-1).mean(axis=0)
        self._num_texts += 1
        for place, word in enumerate(words):
            if word in self.words:
                self._by_word.setdefault(word, ExpectedCosine()).add_units(units[place][None])

    @property
    def num_words(self) -> int:
        """The number of words read."""
        return self._expected.count

    def self_similarity(self) -> list[WordUses]:
        """Return the mean cosine of two uses of each word, for words with two uses."""
        known = [(word, each) for word, each in self._by_word.items() if each.count > 1]
        return [WordUses(word, each.count, each.value.tolist()) for word, each in sorted(known)]

    def result(self) -> list[LayerGeometry]:
        """Return the geometry of each layer."""
        by_word = [each.self_similarity for each in self.self_similarity()]
        mean_of_words = np.mean(by_word, axis=0) if by_word else None
        contributions = self._expected.contributions
        found = []
        for place, layer in enumerate(self.layers):
            each = contributions[place]
            largest = np.argsort(-each, kind="stable")[: TOP_DIMENSIONS[-1]]
            total = float(each.sum())
            sums = np.cumsum(each[largest])
            numbers = TOP_DIMENSIONS if total > 0 else ()
            shares = {k: float(sums[min(k, len(sums)) - 1] / total) for k in numbers}
            found.append(
                LayerGeometry(
                    layer,
                    total,
                    shares or None,
                    [(int(index), float(each[index])) for index in largest],
                    None if mean_of_words is None else float(mean_of_words[place]),
                    float(self._intra[place] / self._num_texts),
                    float(self._norms[place] / self._expected.count),
                )
            )
        return found


@dataclass(frozen=True)
class WordUses:
    """A word, the number of its uses, and its self-similarity in each layer."""

    word: str
    uses: int
    self_similarity: list[float]


@dataclass(frozen=True)
class SentenceAttention:
    """Attention between the tokens of a sentence: tables [L, T, T], rows read columns."""

    text: str
    tokens: list[str]
    weights: list[list[list[float]]]
    """Attention weights, the mean over heads."""
    norms: list[list[list[float]]]
    """Norms of contributions with residual and normalization (Kobayashi et al. 2021)."""


@dataclass(frozen=True)
class Attention:
    """The analysis of attention: the mean mixing ratio of each layer, and chosen sentences.

    ``reason`` says why the analysis is missing. ``error`` is the largest difference between the
    output of a block and the sum of its contributions.
    """

    reason: str
    mixing: list[float]
    num_sentences: int
    error: float
    sentences: list[SentenceAttention]


@dataclass(frozen=True)
class Geometry:
    """The geometry of all layers: raw, and standardized on other text."""

    model: str
    num_texts: int
    num_words: int
    num_fitted: int
    """Words that the standardization is fitted to."""
    raw: list[LayerGeometry]
    standardized: list[LayerGeometry]
    words: list[WordUses]
    attention: Attention
    seed: int


def measure_geometry(
    embedder: Embedder,
    lines: Iterable[str],
    *,
    most: int = 1000,
    sentences: Sequence[str] = (),
    seed: int = 0,
    reporter: Reporter | None = None,
    name: str = "geometry",
) -> Geometry:
    """Measure the vectors of the words of a sample of lines.

    Every second line of the sample is used to fit a standardizer, and the others are measured, so
    that the standardized figures are on held-out text.

    Args:
        embedder: With ``unit="word"`` and ``combine="none"``.
        lines: Lines of a corpus; a random sample of at most ``most`` is read.
        most: The size of the sample.
        sentences: Texts whose attention is shown; by default two short ones of the sample.
        seed: Seed of all samples.
        reporter: Shows the progress.
        name: The name of the corpus in messages.

    Raises:
        UserError: There is too little text, or ``sentences`` are given and the family of the
            encoder has no analysis of attention.
    """
    sample = sample_lines(lines, most, seed)
    if len(sample) < 2:
        raise UserError(f"{name}: geometry needs two or more lines of text, not {len(sample)}.")
    fitted, measured = sample[::2], sample[1::2]
    with reporter or Reporter(quiet=True) as shown:
        shown.start("geometry", len(sample), unit="text")

        def vectors() -> Iterator[Array]:
            for number, each in enumerate(embedder.encode(fitted), 1):
                shown.update(number)
                yield each.vectors

        standardizer = Standardizer.fit(vectors())
        words = _frequent_words(measured, seed)
        raw, standardized = (GeometryMeasure(embedder.layers, words) for _ in range(2))
        for number, each in enumerate(embedder.encode(measured), len(fitted) + 1):
            lowered = [unit.lower() for unit in each.units]
            raw.add(lowered, each.vectors)
            standardized.add(lowered, standardizer(each.vectors))
            shown.update(number)
    if raw.num_words < 2:
        raise UserError("geometry needs two or more words of text.")
    return Geometry(
        model=embedder.tokenizer.name,
        num_texts=len(measured),
        num_words=raw.num_words,
        num_fitted=standardizer.count,
        raw=raw.result(),
        standardized=standardized.result(),
        words=raw.self_similarity(),
        attention=_attention(embedder, measured, sentences, seed),
        seed=seed,
    )


def _frequent_words(lines: Sequence[str], seed: int) -> set[str]:
    counts = Counter(word.lower() for line in lines for word in split_words(line)[0])
    frequent = sorted(
        word for word, count in counts.items() if count >= LEAST_USES and word[0].isalpha()
    )
    if len(frequent) > MOST_WORDS:
        frequent = Random(seed).sample(frequent, MOST_WORDS)
    return set(frequent)


def _attention(
    embedder: Embedder, lines: Sequence[str], sentences: Sequence[str], seed: int
) -> Attention:
    if reason := unsupported_reason(embedder.encoder):
        if sentences:
            raise UserError(f"--sentence: no analysis of attention: {reason}.")
        return Attention(reason, [], 0, 0.0, [])
    for text in sentences:
        if (size := len(_encoding(embedder, text).input_ids)) > MOST_TOKENS:
            raise UserError(
                f"--sentence {text!r:.40}: {size} tokens are too many to show: write a sentence of "
                f"at most {MOST_TOKENS}."
            )
    short = [text for text in lines if _is_short(embedder, text, 3, MOST_TOKENS)]
    short = Random(seed).sample(short, min(len(short), NUM_SENTENCES))
    fitting = [text for text in short if _is_short(embedder, text, *SHOWN_TOKENS)]
    shown = list(sentences) or fitting[:NUM_SHOWN]
    mixing: list[list[float]] = []
    found: list[SentenceAttention] = []
    error = 0.0
    for text in [*short, *shown]:
        encoding = _encoding(embedder, text)
        batch = batch_to_device(pack([encoding]), embedder.device)
        blocks = analyze_attention(embedder.encoder, batch)
        error = max(error, *(block.error for block in blocks))
        if len(mixing) < len(short):
            mixing.append([float(block.mixing.mean()) for block in blocks])
        else:
            decode = embedder.tokenizer.tokenizer.decode
            tokens = [decode([id]) for id in encoding.input_ids]
            weights = _listed(block.weights for block in blocks)
            norms = _listed(block.norms for block in blocks)
            found.append(SentenceAttention(text, tokens, weights, norms))
    means = np.mean(mixing, axis=0).tolist() if mixing else []
    return Attention("", means, len(short), error, found)


def _listed(tables: Iterable[Any]) -> list[list[list[float]]]:
    return [table.cpu().numpy().astype(float).round(5).tolist() for table in tables]


def _is_short(embedder: Embedder, text: str, least: int, most: int) -> bool:
    if len(text) > 10 * most:  # without reading the subwords of a long text
        return False
    return least <= len(_encoding(embedder, text).input_ids) <= most


def _encoding(embedder: Embedder, text: str) -> Encoding:
    return Encoding(0, *embedder.tokenizer.build(embedder.tokenizer.text_subwords([text])[0]))


def page(geometry: Geometry, model: str, data: str) -> str:
    """Return the geometry of an encoder as HTML."""
    return render(
        "geometry.html",
        PACKAGE,
        **inlined("geometry.js", "geometry.css", package=PACKAGE),
        model=model,
        source=data,
        geometry=geometry,
        charts=[chart for chart in _charts(geometry) if chart],
        layers=_layer_table(geometry),
        dimensions=_dimension_table(geometry.raw),
        words=_word_tables(geometry),
        mixing=_mixing_chart(geometry),
        sentences=[_sentence(each) for each in geometry.attention.sentences],
    )


def _charts(geometry: Geometry) -> list[Chart | None]:
    raw, z = geometry.raw, geometry.standardized
    both = {"raw": raw, "standardized": z}

    def of(get: Callable[[LayerGeometry], float | None]) -> dict[str, Points]:
        return {name: _points(layers, get) for name, layers in both.items()}

    similarity = {
        "self-similarity": _points(raw, lambda each: each.adjusted_self_similarity),
        "within a text": _points(raw, lambda each: each.adjusted_intra_sentence),
    }
    shares = {
        f"top {k}": _points(raw, lambda each, k=k: each.share(k))  # type: ignore[misc]
        for k in TOP_DIMENSIONS
    }
    return [
        _chart("Expected cosine of two words", of(lambda each: each.expected_cosine)),
        _chart("Share of the largest dimensions in the expected cosine", shares),
        _chart("Similarity minus the expected cosine", similarity),
    ]


def _points(
    layers: Sequence[LayerGeometry], get: Callable[[LayerGeometry], float | None]
) -> Points:
    return [(each.layer, value) for each in layers if (value := get(each)) is not None]


def _chart(caption: str, series: dict[str, Points]) -> Chart | None:
    known = [(name, points) for name, points in series.items() if points]
    return chart(caption, "layer", label=f"{caption} by layer", lines=known) if known else None


def _mixing_chart(geometry: Geometry) -> Chart | None:
    attention = geometry.attention
    points = list(enumerate(attention.mixing, 1))
    caption = f"Mixing ratio, mean over {attention.num_sentences} sentences"
    return _chart(caption, {"mixing ratio": points}) if points else None


def _layer_table(geometry: Geometry) -> Table:
    columns = [
        "layer",
        "expected cosine",
        "standardized",
        "mean length",
        *(f"top {k}" for k in TOP_DIMENSIONS),
        "self-similarity",
        "adjusted",
        "within a text",
        "adjusted",
    ]
    rows = [
        [
            raw.layer,
            raw.expected_cosine,
            z.expected_cosine,
            raw.norm,
            *map(raw.share, TOP_DIMENSIONS),
            raw.self_similarity,
            raw.adjusted_self_similarity,
            raw.intra_sentence,
            raw.adjusted_intra_sentence,
        ]
        for raw, z in zip(geometry.raw, geometry.standardized, strict=True)
    ]
    return Table("All figures by layer; raw unless a column says otherwise", columns, rows)


def _dimension_table(layers: Sequence[LayerGeometry]) -> Table:
    columns = ["layer", "1.", "2.", "3.", "4."]
    rows = [
        [each.layer, *(f"{index} ({value:+.4f})" for index, value in each.dimensions[:4])]
        for each in layers
    ]
    return Table("The largest dimensions, with their part of the expected cosine", columns, rows)


def _word_tables(geometry: Geometry) -> list[Table]:
    words = sorted(geometry.words, key=lambda each: (each.self_similarity[-1], each.word))
    if not words:
        return []
    half = min(MOST_LISTED, (len(words) + 1) // 2)
    places = 0, len(geometry.raw) // 2, -1
    columns = ["word", "uses", *(f"layer {geometry.raw[place].layer}" for place in places)]
    rows = [[each.word, each.uses, *(each.self_similarity[n] for n in places)] for each in words]
    least, most = rows[:half], rows[::-1][: len(rows) - half][:half]
    tables = [Table("Words whose vectors change most with the context", columns, least)]
    return [*tables, Table("Words whose vectors change least", columns, most)] if most else tables


def _sentence(sentence: SentenceAttention) -> dict[str, Any]:
    def percent(row: Sequence[float]) -> list[float]:
        total = sum(row) or 1.0
        return [round(100 * value / total, 1) for value in row]

    both = {"norms": sentence.norms, "weights": sentence.weights}
    tables = {name: [list(map(percent, rows)) for rows in each] for name, each in both.items()}
    return {"text": sentence.text, "tokens": sentence.tokens, "tables": tables}


def print_geometry(command: GeometryCommand) -> None:
    """Measure the encoder of the command, write its files, and print a table of the layers."""
    sources = text_sources(command.data, command.encoding)
    embedder = open_embedder(command, "all", unit="word", combine="none")
    geometry = measure_geometry(
        embedder,
        (line for source in sources for line in source.lines()),
        most=command.texts,
        sentences=command.sentence,
        seed=command.seed,
        reporter=Reporter(quiet=command.format != "table"),
        name=f"--data {command.data}",
    )
    figures = json.dumps(asdict(geometry), ensure_ascii=False)
    write_pages(command.out, lambda: page(geometry, command.model, command.data), figures)
    if command.format == "json":
        show(figures)
        return
    command.note(
        f"{geometry.num_words:,} words of {geometry.num_texts:,} texts, standardized over "
        f"{geometry.num_fitted:,} other words, seed {geometry.seed}"
    )
    columns = (
        *("layer", "expected cosine", "z expected cosine", "top dimension", "top 3", "top 10"),
        *("self-similarity", "within text"),
    )
    rows = [
        (
            raw.layer,
            raw.expected_cosine,
            z.expected_cosine,
            *map(raw.share, (1, 3, 10)),
            raw.adjusted_self_similarity,
            raw.adjusted_intra_sentence,
        )
        for raw, z in zip(geometry.raw, geometry.standardized, strict=True)
    ]
    print_tables(command.format, ("", columns, rows))
    attention = geometry.attention
    if attention.mixing:
        mixing = " ".join(f"{value:.3f}" for value in attention.mixing)
        command.note(f"attention, mixing ratio of layers 1 to {len(attention.mixing)}: {mixing}")
    elif attention.reason:
        show(f"no analysis of attention: {attention.reason}", error=True)
