"""Geometry of an encoder's vectors of words, by layer, and of its attention."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np

from finetune.data.running_text import sample_lines
from finetune.data.word_splitting import split_words
from finetune.embeddings.evaluation.geometry import GeometryMeasure, LayerGeometry
from finetune.embeddings.evaluation.standardization import Standardizer
from finetune.embeddings.models.attention_norms import analyze_attention, unsupported_reason
from finetune.inference.embed import Embedder
from finetune.preprocessing.batching import pack
from finetune.runtime.progress import Reporter
from finetune.runtime.transfer import batch_to_device
from finetune.types import Encoding, UserError

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
        texts = enumerate(embedder.encode(fitted), 1)
        vectors = (_shown(shown, number, each.vectors) for number, each in texts)
        standardizer = Standardizer.fit(vectors)
        words = _frequent_words(measured, seed)
        raw, standardized = (GeometryMeasure(embedder.layers, words) for _ in range(2))
        for number, each in enumerate(embedder.encode(measured), len(fitted) + 1):
            lowered = [unit.lower() for unit in each.units]
            raw.add(lowered, each.vectors)
            standardized.add(lowered, standardizer(each.vectors))
            shown.update(number)
    if raw.num_words < 2:
        raise UserError("geometry needs two or more words of text.")
    uses = raw.uses()
    return Geometry(
        model=embedder.tokenizer.name,
        num_texts=len(measured),
        num_words=raw.num_words,
        num_fitted=standardizer.count,
        raw=raw.result(),
        standardized=standardized.result(),
        words=[
            WordUses(word, uses[word], similarity.tolist())
            for word, similarity in raw.self_similarity().items()
        ],
        attention=_attention(embedder, measured, sentences, seed),
        seed=seed,
    )


def write_json(file: Any, geometry: Geometry) -> None:
    """Write all figures to a text file."""
    json.dump(record(geometry), file, ensure_ascii=False)
    file.write("\n")


def record(geometry: Geometry) -> dict[str, Any]:
    """Return all figures as JSON values."""
    return asdict(geometry)


def _shown(reporter: Reporter, number: int, value: Any) -> Any:
    reporter.update(number)
    return value


def _frequent_words(lines: Sequence[str], seed: int) -> set[str]:
    """Return words with a letter that occur often enough, in lower case; a sample of many."""
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
    """Analyze the attention over sentences of the sample, and over the sentences to show."""
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
    shown = (
        list(sentences)
        or [text for text in short if _is_short(embedder, text, *SHOWN_TOKENS)][:NUM_SHOWN]
    )
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
