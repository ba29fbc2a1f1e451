"""A new vocabulary for a trained encoder: initial embeddings from the old embeddings.

``overlap`` copies the embedding of each subword that both vocabularies have. ``similarity`` also
computes the other embeddings as weighted means of old embeddings, by the similarity of static
vectors: FOCUS (Dobler & de Melo 2023) with vectors from the text, or WECHSEL (Minixhofer et al.
2022) with word vectors of both languages. ``mean`` gives all subwords the mean of old embeddings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.special import softmax
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import MultiLabelBinarizer, normalize
from sklearn.utils.extmath import randomized_svd
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM

from finetune.data.files import read_lines
from finetune.models.families import FAMILIES
from finetune.models.loading import MissingHead, load_config, load_weights
from finetune.preprocessing.encodings import Array
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.types import DataError, UserError

NEIGHBORS, TEMPERATURE = 10, 0.1
"""Old subwords that WECHSEL averages, and the temperature of their weights."""
WINDOW = 5
"""Subwords on each side that count as context; a subword at distance d has the weight 1/d."""
SMOOTHING = 0.75
"""Exponent of the probabilities of contexts, which lowers the PMI of rare ones."""
MOST_WORD_VECTORS = 200_000
"""Most words to read from a file of word vectors, which lists frequent words first."""
_ROWS, _LINES = 256, 10_000
"""Subwords to compare, and lines to count, at a time."""


def cooccurrence_vectors(tokenizer: SubwordTokenizer, lines: Iterable[str]) -> Array:
    """Compute a vector of each subword from a text: float32 [V, at most 300], zeros if absent.

    They are the singular vectors of the positive pointwise mutual information of subwords and
    their contexts, scaled by the root of the singular values (Levy, Goldberg & Dagan 2015,
    "Improving distributional similarity with lessons learned from word embeddings"). FOCUS trains
    fastText here, which factors a similar matrix implicitly (Levy & Goldberg 2014).
    """
    size, remaining = len(tokenizer.tokenizer), iter(lines)
    counts = sparse.csr_array((size, size), dtype=np.float64)
    while chunk := list(islice(remaining, _LINES)):
        rows = tokenizer.text_subwords(chunk)
        ids = np.fromiter((id for row in rows for id in row), np.int64)
        line = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        for distance in range(1, WINDOW + 1):
            same = line[distance:] == line[:-distance]
            pair = ids[:-distance][same], ids[distance:][same]
            weights = np.full(len(pair[0]), 1 / distance)
            counts += sparse.coo_array((weights, pair), (size, size)).tocsr()
    counts = (counts + counts.T).tocoo()
    if not counts.nnz:
        return np.zeros((size, 1), np.float32)
    occurrences = np.asarray(counts.sum(axis=0)).ravel()
    smoothed = occurrences**SMOOTHING
    row, column = counts.coords
    counts.data = np.log(counts.data * smoothed.sum() / (occurrences[row] * smoothed[column]))
    matrix = counts.tocsr().maximum(0)
    left, values, _ = randomized_svd(matrix, min(300, size - 1), random_state=0)
    vectors: Array = (left * np.sqrt(values)).astype(np.float32)
    vectors[occurrences == 0] = 0  # where the algorithm leaves rounding errors
    return vectors


def read_word_vectors(path: str | Path) -> tuple[list[list[str]], Array]:
    """Read words, each as a list of one, and their vectors [W, width].

    The file has the text format of word2vec and fastText (``.vec``, also gzipped): a word and its
    numbers on each line, the most frequent first, after an optional line with their numbers.

    Raises:
        DataError: The file is empty, or a line has more or fewer numbers, or infinite ones.
    """
    file, words, rows = Path(path), list[list[str]](), list[Array]()
    for number, text, _ in islice(read_lines(str(file), file), MOST_WORD_VECTORS + 1):
        word, *numbers = text.rstrip().split(" ")
        if number == 1 and len(numbers) == 1 and numbers[0].isdecimal():
            continue
        try:
            with np.errstate(over="ignore"):  # becomes infinite
                row = np.array(numbers, np.float32)
        except ValueError:
            row = np.full(1, np.nan)
        if not len(row) or not np.isfinite(row).all() or len(row) != len((rows or [row])[0]):
            raise DataError(
                f"{file}:{number}: {text!r:.60}: write a word and its vector, with as many "
                "finite numbers as in the first line."
            )
        words.append([word])
        rows.append(row)
    if not words:
        raise DataError(f"{file}: there are no word vectors in it.")
    return words, np.stack(rows)


def subword_vectors(
    words: Sequence[Sequence[str]], rows: Array, tokenizer: SubwordTokenizer
) -> Array:
    """Compute the vector of each subword from word vectors: the mean over its words [V, width].

    Words count by frequency as in WECHSEL (Minixhofer et al. 2022), which their files lack: the
    r-th word counts 1/r (Zipf). Zeros for subwords of no word, and special tokens.
    """
    subwords = MultiLabelBinarizer(classes=range(len(tokenizer.tokenizer)), sparse_output=True)
    occurs = subwords.fit_transform([ids for (ids,) in tokenizer.raw_word_subwords(words)])
    weights = occurs.multiply(1 / np.arange(1, len(words) + 1)[:, None]).T.tocsr()
    vectors: Array = normalize(weights, "l1") @ rows
    vectors[tokenizer.tokenizer.all_special_ids] = 0
    return vectors.astype(np.float32)


def overlap(old: SubwordTokenizer, new: SubwordTokenizer) -> dict[int, int]:
    """Map the subwords that both vocabularies have from their new ids to their old ids.

    A subword that only the old vocabulary has inside of words, or only at their beginning,
    corresponds to that one.
    """
    mark = getattr(new.backend.model, "continuing_subword_prefix", "")
    old_ids, pairs = old.tokenizer.get_vocab(), dict[int, int]()
    for name, id in new.tokenizer.get_vocab().items():
        marks = [mark] if mark else ["Ġ", "▁"]  # of bytes, and of SentencePiece
        moved = [name.removeprefix(m) if name.startswith(m) else m + name for m in marks]
        if matches := [old_ids[spelling] for spelling in (name, *moved) if spelling in old_ids]:
            pairs[id] = matches[0]
    return pairs


def embedding_weights(
    old: SubwordTokenizer,
    new: SubwordTokenizer,
    init: str,
    lines: Iterable[str] = (),
    vectors: Sequence[Array] = (),
) -> Any:
    """Compute the weights of old embeddings for each new subword: a sparse matrix [V, V_old].

    A row sums to 1, or is empty for an unknown subword.

    Args:
        old: The tokenizer of the encoder.
        new: The new tokenizer, trained like the old one.
        init: ``overlap``, ``similarity`` or ``mean``.
        lines: The text of the new vocabulary, for ``similarity`` without ``vectors`` (FOCUS).
        vectors: Vectors of the old and of the new subwords in one space, for ``similarity``
            (WECHSEL).
    """
    shape = len(new.tokenizer), len(old.tokenizer)
    pairs = np.array(sorted(overlap(old, new).items()), dtype=np.int64)
    if init == "mean" or vectors:  # special tokens alone are copied
        pairs = pairs[np.isin(pairs[:, 0], new.tokenizer.all_special_ids)]
    copies = sparse.coo_array((np.ones(len(pairs)), tuple(pairs.T)), shape).tocsr()
    if vectors:
        return copies + wechsel_weights(*reversed(vectors))
    if init == "similarity":
        return copies + focus_weights(cooccurrence_vectors(new, lines), copies)
    return copies


def focus_weights(vectors: Array, copies: Any) -> Any:
    """Compute the weights of old subwords for each new one, as FOCUS does: [V, V_old].

    They are the sparsemax of the cosines of its vector with the vectors of overlapping subwords.
    ``vectors`` are of the new subwords [V, width], zeros where unknown; ``copies`` [V, V_old] has 1
    for each new and old subword that are the same.
    """
    overlaps, has_vector = np.diff(copies.indptr) > 0, vectors.any(axis=1)
    rows, anchors = np.flatnonzero(has_vector & ~overlaps), np.flatnonzero(has_vector & overlaps)
    if not (len(rows) and len(anchors)):
        return sparse.csr_array(copies.shape)
    blocks = [
        sparse.csr_array(sparsemax(cosine_similarity(vectors[chunk], vectors[anchors])))
        for chunk in np.split(rows, range(_ROWS, len(rows), _ROWS))
    ]
    to_rows = sparse.eye_array(len(vectors), format="csc")[:, rows]
    return (to_rows @ sparse.vstack(blocks) @ copies[anchors]).tocsr()


def wechsel_weights(new: Array, old: Array) -> Any:
    """Compute the weights of old subwords for each new one, as WECHSEL does: [V, V_old].

    They are the softmax of its cosines to its ``NEIGHBORS`` nearest old subwords, divided by
    ``TEMPERATURE``. ``new`` [V, width] and ``old`` are static vectors in one space; zeros where
    unknown.
    """
    rows, columns = (np.flatnonzero(vectors.any(axis=1)) for vectors in (new, old))
    if not (len(rows) and len(columns)):
        return sparse.csr_array((len(new), len(old)))
    search = NearestNeighbors(n_neighbors=min(NEIGHBORS, len(columns)), metric="cosine")
    distances, nearest = search.fit(old[columns]).kneighbors(new[rows])
    weights = softmax(-distances / TEMPERATURE, axis=1)
    pairs = np.repeat(rows, nearest.shape[1]), columns[nearest.ravel()]
    return sparse.coo_array((weights.ravel(), pairs), (len(new), len(old))).tocsr()


def sparsemax(scores: Array) -> Array:
    """Compute the sparse probabilities nearest to each row of scores (Martins & Astudillo 2016)."""
    ordered = -np.sort(-scores, axis=1)
    sums = np.cumsum(ordered, axis=1)
    ranks = np.arange(1, scores.shape[1] + 1)
    size = (1 + ranks * ordered > sums).sum(axis=1)
    threshold = (sums[np.arange(len(scores)), size - 1] - 1) / size
    weights: Array = np.maximum(scores - threshold[:, None], 0)
    return weights


def new_rows(weights: Any, old: Tensor, ordinary: Sequence[int], seed: int | None = 0) -> Tensor:
    """Compute the rows of a matrix [V, H] or bias [V] as weighted means of the old rows.

    Rows without weights get the mean of the ``ordinary`` old rows; in a matrix plus Gaussian noise
    of their standard deviation, unless ``seed`` is None.
    """
    old_rows = old.double().numpy()
    rows: Array = weights @ old_rows
    unknown, ordinary_rows = np.diff(weights.indptr) == 0, old_rows[ordinary]
    rows[unknown] = ordinary_rows.mean(axis=0)
    if old.ndim == 2 and seed is not None:
        drawn = np.random.default_rng(seed).standard_normal(rows[unknown].shape)
        rows[unknown] += ordinary_rows.std(axis=0) * drawn
    return torch.from_numpy(rows).to(old.dtype)


def with_vocabulary(
    name: str, old: SubwordTokenizer, new: SubwordTokenizer, weights: Any, seed: int | None = 0
) -> Any:
    """Load the model of a checkpoint with another vocabulary, and with its masked-LM head if any.

    Embeddings, output matrix and biases of subwords follow from ``weights`` and ``seed``
    (``new_rows``). Raises UserError if the model does not exist, or counts positions from a padding
    id that the new vocabulary does not have.
    """
    config, pad = load_config(name), new.tokenizer.pad_token_id
    family = FAMILIES.get(config.model_type)
    if family and family.positions == "after padding" and pad != config.pad_token_id:
        raise UserError(
            f"model {name!r} counts positions from its padding id {config.pad_token_id}, but the "
            f"new vocabulary pads with {pad}."
        )
    model: Any = None
    # a part of MobileBERT's output matrix is not in its output layer
    if type(config) in AutoModelForMaskedLM._model_mapping and config.model_type != "mobilebert":
        with contextlib.suppress(MissingHead):
            model = load_weights(AutoModelForMaskedLM, name, config, new_head=False)
    model = load_weights(AutoModel, name, config) if model is None else model
    num_new, num_old = weights.shape
    ordinary = sorted({*range(num_old)} - {*old.tokenizer.all_special_ids})
    # without rows of padded vocabularies
    before = [weight.detach()[:num_old].clone() for weight in _vocabulary_weights(model)]
    model.resize_token_embeddings(num_new, mean_resizing=False)
    with torch.no_grad():
        for weight, rows in zip(_vocabulary_weights(model), before, strict=True):
            weight.copy_(new_rows(weights, rows, ordinary, seed))
    for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
        if getattr(model.config, f"{role}_token_id", None) is not None:
            setattr(model.config, f"{role}_token_id", getattr(new.tokenizer, f"{role}_token_id"))
    return model.eval()


def _vocabulary_weights(model: Any) -> list[Tensor]:
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    return [weight for layer in layers if layer is not None for weight in layer.parameters()]
