"""Static vectors of subwords, to compare the subwords of two vocabularies.

``cooccurrence_vectors`` come from a text alone; ``WordVectors`` are read from files and averaged
over the words that contain a subword.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import orthogonal_procrustes
from sklearn.utils.extmath import randomized_svd

from finetune.data.dataset import DataError
from finetune.data.files import read_lines
from finetune.preprocessing.tokenizer import SubwordTokenizer

Array = np.ndarray[Any, np.dtype[Any]]

WINDOW = 5
"""Subwords on each side that count as context; a subword at distance d has the weight 1/d."""
SMOOTHING = 0.75
"""Exponent of the probabilities of contexts, which lowers the PMI of rare ones."""
WIDTH = 300
"""Largest number of dimensions of vectors from co-occurrence."""
MOST_WORDS = 200_000
"""Most words to read from a file of word vectors, which lists frequent words first."""
_LINES = 10_000


def cooccurrence_vectors(tokenizer: SubwordTokenizer, lines: Iterable[str]) -> Array:
    """Return a vector of each subword of a vocabulary from the text that it was trained on.

    They are the singular vectors of the positive pointwise mutual information of subwords and
    their contexts, scaled by the root of the singular values (Levy, Goldberg & Dagan 2015,
    "Improving distributional similarity with lessons learned from word embeddings"). FOCUS (Dobler
    & de Melo 2023) trains fastText here, which factors a similar matrix implicitly (Levy &
    Goldberg 2014), and also reads the characters of subwords.

    Returns:
        float32 [V, at most WIDTH]; zeros for subwords that do not occur.
    """
    size = len(tokenizer.tokenizer)
    counts = sparse.csr_array((size, size), dtype=np.float64)
    rest = iter(lines)
    while chunk := list(islice(rest, _LINES)):
        rows = tokenizer.text_subwords(chunk)
        ids = np.fromiter((id for row in rows for id in row), np.int64)
        line = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        for distance in range(1, WINDOW + 1):
            same = line[distance:] == line[:-distance]
            pair = ids[:-distance][same], ids[distance:][same]
            weights = np.full(len(pair[0]), 1 / distance)
            counts += sparse.coo_array((weights, pair), (size, size)).tocsr()
    counts = (counts + counts.T).tocoo()
    total = counts.sum()
    if not total:
        return np.zeros((size, 1), np.float32)
    occurrences = np.asarray(counts.sum(axis=0)).ravel()
    smoothed = occurrences**SMOOTHING
    row, column = counts.coords
    expected = occurrences[row] * (smoothed / smoothed.sum())[column]
    information = np.log(counts.data / expected)
    kept = information > 0
    matrix = sparse.coo_array((information[kept], (row[kept], column[kept])), (size, size)).tocsr()
    left, values, _ = randomized_svd(matrix, min(WIDTH, size - 1), random_state=0)
    vectors: Array = (left * np.sqrt(values)).astype(np.float32)
    vectors[occurrences == 0] = 0  # where the algorithm leaves rounding errors
    return vectors


class WordVectors:
    """Static vectors of the words of a language, the most frequent word first.

    Args:
        words: The words.
        vectors: float32 [words, width].
    """

    def __init__(self, words: Sequence[str], vectors: Array) -> None:
        self.words, self.vectors = words, vectors

    @classmethod
    def read(cls, path: str | Path) -> WordVectors:
        """Read a text file of word2vec or fastText (``.vec``, also gzipped): a word and its numbers
        on each line, after an optional line with the numbers of words and dimensions.

        Raises:
            DataError: The file does not exist, or a line has other numbers than the first, or
                one that is not finite.
        """
        file = Path(path)
        if not file.is_file():
            raise DataError(f"--vectors {path}: no such file.")
        words, rows, width = list[str](), list[Array](), 0
        for number, text in islice(read_lines(str(file), file), MOST_WORDS + 1):
            word, _, numbers = text.rstrip().partition(" ")
            if number == 1 and numbers.isdecimal():
                continue
            row = np.array(numbers.split())
            try:
                with np.errstate(over="ignore"):  # becomes infinite
                    rows.append(row.astype(np.float32))
            except ValueError as error:
                raise DataError(
                    f"{file}:{number}: {error}; write a word and its numbers."
                ) from error
            if not np.isfinite(rows[-1]).all():
                raise DataError(
                    f"{file}:{number}: the vector of {word!r} has NaN or infinite numbers in "
                    "float32: remove the line, or restore the file from its source."
                )
            width = width or len(row)
            if len(row) != width or not width:
                raise DataError(f"{file}:{number}: {len(row)} numbers, but {width} in line 1.")
            words.append(word)
        if not words:
            raise DataError(f"{file}: there are no word vectors in it.")
        return cls(words, np.stack(rows))

    def aligned(self, other: WordVectors, dictionary: Path) -> WordVectors:
        """Return these vectors rotated into the space of ``other``, by pairs of words.

        The rotation is the orthogonal one nearest to the pairs (Artetxe et al. 2016). Each line of
        the dictionary has a word of ``other`` and its translation here.

        Raises:
            DataError: The dictionary has no pair of known words, or a line is no pair.
        """
        theirs, ours = (
            {word: row for row, word in reversed(list(enumerate(side.words)))}
            for side in (other, self)
        )
        pairs = []
        for number, text in read_lines(str(dictionary), dictionary):
            words = text.split("\t") if "\t" in text else text.split()
            if words and len(words) != 2:
                raise DataError(f"{dictionary}:{number}: {text!r:.60} is no pair of words.")
            if words and words[0] in theirs and words[1] in ours:
                pairs.append((theirs[words[0]], ours[words[1]]))
        if not pairs:
            raise DataError(f"{dictionary}: no pair has vectors in both files of --vectors.")
        target, source = (unit_rows(v.vectors)[0] for v in (other, self))
        left, right = np.array(pairs).T
        rotation, _ = orthogonal_procrustes(source[right], target[left])
        return WordVectors(self.words, source @ rotation)

    def of_subwords(self, tokenizer: SubwordTokenizer) -> Array:
        """Return the vector of each subword: the mean over the words in which it occurs [V, width].

        Words count by frequency as in WECHSEL (Minixhofer et al. 2022), which these files lack: the
        r-th word counts 1/r (Zipf). Zeros for subwords of no word.
        """
        size = len(tokenizer.tokenizer)
        words = [[word] for word in self.words]
        found = [subwords[0] for subwords in tokenizer.raw_word_subwords(words)]
        column = np.repeat(np.arange(len(found)), [len(set(each)) for each in found])
        row = np.fromiter((id for each in found for id in sorted(set(each))), np.int64)
        weights = sparse.coo_array((1 / (1 + column), (row, column)), (size, len(found))).tocsr()
        totals = np.asarray(weights.sum(axis=1)).ravel()
        vectors: Array = (weights @ self.vectors) / np.maximum(totals, 1e-12)[:, None]
        return vectors.astype(np.float32)


def unit_rows(vectors: Array) -> tuple[Array, Array]:
    """Return vectors of length 1, and which of them are not zero."""
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors / np.maximum(lengths, 1e-12)[:, None], lengths > 0
