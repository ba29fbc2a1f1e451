"""Cosines of pairs: of texts, of words in context, and of words out of context.

A word out of context is read alone, between the special tokens, or is the mean over contexts from a
corpus (Bommasani, Davis & Cardie 2020, "Interpreting pretrained contextualized representations via
reductions to static embeddings").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from finetune.data.running_text import sample_lines
from finetune.data.texts import Characters
from finetune.data.word_splitting import split_words
from finetune.embeddings.data.similarity_pairs import SimilarityPair
from finetune.embeddings.evaluation.similarity import ExpectedCosine, cosine
from finetune.embeddings.evaluation.standardization import Array, Standardizer
from finetune.inference.embed import Embedder
from finetune.runtime.progress import Reporter
from finetune.types import UserError

CONTEXT_WINDOW = 10
"""Words on each side of a word in a context from a corpus."""

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


class Use(NamedTuple):
    """A word, or phrase, in a context: the words to read, and the position of its first one."""

    words: Words
    position: int


Contexts = Mapping[Words, Sequence[Use]]
"""Uses of words in a corpus, by the word in lower case."""


def compare_pairs(
    embedder: Embedder,
    pairs: Sequence[SimilarityPair],
    *,
    standardizer: Standardizer | None = None,
    window: int | None = None,
    contexts: Contexts | None = None,
    reporter: Reporter | None = None,
) -> list[Cosines]:
    """Return the cosines of all pairs, raw and, with a standardizer, standardized.

    Args:
        embedder: Its ``unit`` is ``"text"``, or ``"word"`` to compare the words that the pairs
            name; if they name none, all words of their texts. With ``combine="none"`` each layer
            has separate cosines.
        pairs: The pairs.
        standardizer: Fitted on a corpus with the same embedder settings.
        window: The number of words to read on each side of a word in context; None reads all.
        contexts: Contexts from ``find_contexts`` for words that are compared out of context. Words
            without contexts are read alone.
        reporter: Shows the progress.
    """
    if standardizer is not None:
        standardizer.check(embedder.settings)
    if contexts:
        vectors = _static_vectors(embedder, pairs, contexts)
    else:
        vectors = _vectors(embedder, pairs, window)
    kinds = [False] if standardizer is None else [False, True]
    means = [ExpectedCosine() for _ in kinds]
    values: list[list[Array]] = [[] for _ in kinds]
    with reporter or Reporter(quiet=True) as shown:
        shown.start("similarity", len(pairs), unit="pair")
        for number, both in enumerate(zip(vectors, vectors, strict=True), 1):
            for kind, is_standardized in enumerate(kinds):
                sides = np.stack(both)
                if is_standardized and standardizer is not None:
                    sides = standardizer(sides)
                means[kind].add(sides)
                values[kind].append(cosine(sides[0], sides[1]))
            shown.update(number)
    layers = embedder.layers if embedder.combine == "none" else [None]
    return [
        Cosines(layer, is_standardized, by_layer, float(expected))
        for kind, is_standardized in enumerate(kinds)
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


def compared_words(pair: SimilarityPair) -> tuple[Words, Words]:
    """Return the compared words of both sides; UserError if a side has none."""
    targets = pair.targets or tuple((0, len(text)) for text in pair.texts)
    first, second = (
        tuple(split_words(text[start:end])[0])
        for text, (start, end) in zip(pair.texts, targets, strict=True)
    )
    if not (first and second):
        raise UserError(f"{pair.example.where}: {pair.texts[bool(first)]!r:.60} holds no word.")
    return first, second


def words_key(words: Words) -> Words:
    """Return words as they are looked for in a corpus."""
    return tuple(word.lower() for word in words)


def find_contexts(
    corpus: Iterable[str], words: Iterable[Words], most: int, window: int = CONTEXT_WINDOW
) -> Contexts:
    """Find the first ``most`` uses of words in a corpus, in any case.

    A compared word may be a phrase of several words. ``window`` is the number of words of the
    corpus on each side.
    """
    by_first: dict[str, set[Words]] = {}
    for phrase in words:
        if phrase:
            by_first.setdefault(phrase[0], set()).add(phrase)
    found: dict[Words, list[Use]] = {}
    for line in corpus:
        tokens = split_words(line)[0]
        in_lower_case = words_key(tuple(tokens))
        for start, token in enumerate(in_lower_case):
            for phrase in by_first.get(token, ()):
                end = start + len(phrase)
                if in_lower_case[start:end] != phrase:
                    continue
                uses = found.setdefault(phrase, [])
                if len(uses) < most:
                    left = max(0, start - window)
                    uses.append(Use(tuple(tokens[left : end + window]), start - left))
    return found


def _vectors(
    embedder: Embedder, pairs: Sequence[SimilarityPair], window: int | None
) -> Iterator[Array]:
    """Yield the vectors of the first and the second side of each pair, in turn."""
    sides = (
        (pair.example.where, text, target)
        for pair in pairs
        for text, target in zip(pair.texts, pair.targets or (None, None), strict=True)
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
    """Return the words to read, and the place of the compared ones among them."""
    words, offsets = split_words(text)
    start, end = target or (0, len(text))
    inside = [n for n, (first, last) in enumerate(offsets) if first < end and start < last]
    if not inside:
        raise UserError(f"{where}: {text[start:end]!r:.60} holds no word to compare.")
    left = 0 if window is None else max(0, inside[0] - window)
    right = len(words) if window is None else inside[-1] + 1 + window
    return tuple(words[left:right]), slice(inside[0] - left, inside[-1] + 1 - left)


def _static_vectors(
    embedder: Embedder, pairs: Sequence[SimilarityPair], contexts: Contexts
) -> Iterator[Array]:
    """Yield the mean vectors over contexts of both sides of each pair, in turn."""
    sides = list(chain.from_iterable(map(compared_words, pairs)))
    uses = {words: contexts.get(words_key(words)) or [Use(words, 0)] for words in sides}
    flat = [(words, use) for words, each in uses.items() for use in each]
    sums: dict[Words, Array] = {}
    embeddings = embedder.encode(use.words for _, use in flat)
    for (words, use), embedding in zip(flat, embeddings, strict=True):
        place = slice(use.position, use.position + len(words))
        vector = embedding.vectors[place].mean(axis=0) / len(uses[words])
        sums[words] = sums[words] + vector if words in sums else vector
    return (sums[words] for words in sides)
