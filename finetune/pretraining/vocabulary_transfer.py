"""A new vocabulary for a trained encoder: initial embeddings from the old embeddings.

``overlap`` copies the embedding of each subword that both vocabularies have. ``similarity`` also
computes the other embeddings as weighted means of old embeddings, by the similarity of static
vectors: FOCUS (Dobler & de Melo 2023) with vectors from the text, or WECHSEL (Minixhofer et al.
2022) with word vectors of both languages. ``mean`` gives all subwords the mean of old embeddings.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.special import softmax
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd
from tokenizers import decoders
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM

from finetune.data.dataset import DataError
from finetune.data.files import read_lines
from finetune.models.families import FAMILIES
from finetune.models.loading import MissingHead, load_config, load_weights, quiet
from finetune.preprocessing.encodings import Array
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.progress import Reporter
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.pretraining.commands import VocabularyCommand

Init = Literal["overlap", "similarity", "mean"]

NEIGHBORS, TEMPERATURE = 10, 0.1
"""Old subwords that WECHSEL averages, and the temperature of their weights."""
PARTIAL = "\ufffd"
"""The character that replaces incomplete bytes."""
WINDOW = 5
"""Subwords on each side that count as context; a subword at distance d has the weight 1/d."""
SMOOTHING = 0.75
"""Exponent of the probabilities of contexts, which lowers the PMI of rare ones."""
_WIDTH = 300
"""Largest number of dimensions of vectors from co-occurrence."""
MOST_WORD_VECTORS = 200_000
"""Most words to read from a file of word vectors, which lists frequent words first."""
_ROWS, _LINES = 256, 10_000
"""Subwords to compare, and lines to count, at a time."""


def cooccurrence_vectors(tokenizer: SubwordTokenizer, lines: Iterable[str]) -> Array:
    """Compute a vector of each subword of a vocabulary from the text that it was trained on.

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
    remaining = iter(lines)
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
    left, values, _ = randomized_svd(matrix, min(_WIDTH, size - 1), random_state=0)
    vectors: Array = (left * np.sqrt(values)).astype(np.float32)
    vectors[occurrences == 0] = 0  # where the algorithm leaves rounding errors
    return vectors


class WordVectors(NamedTuple):
    """Static vectors of the words of a language, the most frequent word first."""

    words: Sequence[str]
    vectors: Array
    """float32 [words, width]."""

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
        words, rows = list[str](), list[Array]()
        for number, text, _ in islice(read_lines(str(file), file), MOST_WORD_VECTORS + 1):
            word, _, numbers = text.rstrip().partition(" ")
            if number == 1 and numbers.isdecimal():
                continue
            try:
                with np.errstate(over="ignore"):  # becomes infinite
                    row = np.array(numbers.split()).astype(np.float32)
            except ValueError:
                row = np.empty(0, np.float32)
            if not len(row) or not np.isfinite(row).all() or len(row) != len((rows or [row])[0]):
                raise DataError(
                    f"{file}:{number}: {text!r:.60}: write a word and its vector, with as many "
                    "finite numbers as in the first line."
                )
            words.append(word)
            rows.append(row)
        if not words:
            raise DataError(f"{file}: there are no word vectors in it.")
        return cls(words, np.stack(rows))

    def of_subwords(self, tokenizer: SubwordTokenizer) -> Array:
        """Compute the vector of each subword: the mean over the words in which it occurs [V,
        width].

        Words count by frequency as in WECHSEL (Minixhofer et al. 2022), which these files lack: the
        r-th word counts 1/r (Zipf). Zeros for subwords of no word.
        """
        subwords = tokenizer.raw_word_subwords([[word] for word in self.words])
        ids = [sorted({*of_word[0]}) for of_word in subwords]
        column = np.repeat(np.arange(len(ids)), [len(of_word) for of_word in ids])
        row = np.fromiter((id for of_word in ids for id in of_word), np.int64)
        shape = len(tokenizer.tokenizer), len(ids)
        weights = sparse.coo_array((1 / (1 + column), (row, column)), shape).tocsr()
        vectors: Array = normalize(weights, "l1") @ self.vectors
        return vectors.astype(np.float32)


class EmbeddingMap(NamedTuple):
    """New embeddings as weighted means of old ones.

    ``weights`` is [new vocabulary, old vocabulary]; its rows sum to 1, or are empty for unknown
    subwords. Rows without weights get the mean of the old embeddings, plus their standard deviation
    times Gaussian ``noise``.
    """

    weights: Any
    noise: float

    @property
    def num_weights(self) -> Array:
        """Number of weights of each new subword [V]: 1 if its embedding is copied, 0 if unknown."""
        return np.diff(self.weights.indptr)

    def apply(self, old: Tensor, ordinary: Array, seed: int) -> Tensor:
        """Compute a new matrix [V, H] or bias [V] from the old one.

        ``ordinary`` are the old ids whose rows have the mean and deviation.
        """
        rows = old.double().numpy()
        new_rows: Array = self.weights @ rows
        unknown, ordinary_rows = self.num_weights == 0, rows[ordinary]
        new_rows[unknown] = ordinary_rows.mean(axis=0)
        if old.ndim == 2:
            drawn = np.random.default_rng(seed).standard_normal(new_rows[unknown].shape)
            new_rows[unknown] += self.noise * ordinary_rows.std(axis=0) * drawn
        return torch.from_numpy(new_rows).to(old.dtype)


def is_byte_level(tokenizer: SubwordTokenizer) -> bool:
    """Whether the subwords of a tokenizer are bytes, as in byte-level BPE."""
    settings = json.loads(tokenizer.backend.to_str())
    return '"ByteLevel"' in json.dumps([settings["pre_tokenizer"], settings["decoder"]])


def subword_texts(tokenizer: SubwordTokenizer) -> dict[int, tuple[bool, str]]:
    """Map the id of each subword to whether it begins a word, and to its text without the marks of
    its tokenizer; without special tokens.

    A byte-level subword that is no whole character has ``PARTIAL`` and its bytes as characters.
    """
    prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", "")
    is_bytes, decoder = is_byte_level(tokenizer), decoders.ByteLevel()
    texts = {}
    for name, id in tokenizer.backend.get_vocab(with_added_tokens=False).items():
        if prefix:
            texts[id] = not name.startswith(prefix), name.removeprefix(prefix)
        elif is_bytes:
            text = decoder.decode([name])
            text = PARTIAL + name if PARTIAL in text else text
            texts[id] = text.startswith(" "), text.removeprefix(" ")
        else:
            texts[id] = name.startswith("▁"), name.removeprefix("▁")
    return {
        id: texts[id] for id in sorted(texts.keys() - tokenizer.backend.get_added_tokens_decoder())
    }


def overlap(old: SubwordTokenizer, new: SubwordTokenizer) -> dict[int, int]:
    """Map the subwords that both vocabularies have from their new ids to their old ids.

    Special tokens correspond by role. Other subwords agree in text, as it is or as the old
    tokenizer normalizes it, and if possible in beginning a word.
    """
    pairs = {}
    for role, token in new.tokenizer.special_tokens_map.items():
        before = getattr(old.tokenizer, role, None)
        if isinstance(token, str) and before is not None:
            id = new.tokenizer.convert_tokens_to_ids(token)
            pairs[id] = old.tokenizer.convert_tokens_to_ids(before)
    # of equal texts the first
    old_ids = {subword: id for id, subword in reversed(subword_texts(old).items())}
    normalizer = old.backend.normalizer
    for id, (begins, text) in subword_texts(new).items():
        texts = [text]
        if normalizer is not None and not text.startswith(PARTIAL):
            texts.append(normalizer.normalize_str(text).strip(" ▁"))
        candidates = [(flag, text) for flag in (begins, not begins) for text in texts if text]
        if matches := [old_ids[subword] for subword in candidates if subword in old_ids]:
            pairs[id] = matches[0]
    return pairs


def embedding_map(
    old: SubwordTokenizer,
    new: SubwordTokenizer,
    init: Init,
    lines: Iterable[str] = (),
    vectors: tuple[WordVectors, WordVectors] | None = None,
) -> EmbeddingMap:
    """Compute the initial embeddings of a new vocabulary.

    Args:
        old: The tokenizer of the encoder.
        new: The new tokenizer, with the special tokens of the old one.
        init: ``overlap``, ``similarity`` or ``mean``.
        lines: The text of the new vocabulary, for ``similarity`` without ``vectors`` (FOCUS).
        vectors: Word vectors of the old and of the new language in one space, for ``similarity``
            (WECHSEL): then only special tokens, and subwords without vectors, are copied.
    """
    shape = len(new.tokenizer), len(old.tokenizer)
    pairs = overlap(old, new)
    new_ids, old_ids = np.array(sorted(pairs.items()), dtype=np.int64).reshape(-1, 2).T
    copies = sparse.coo_array((np.ones(len(new_ids)), (new_ids, old_ids)), shape).tocsr()
    is_special = np.isin(np.arange(shape[0]), new.tokenizer.all_special_ids)
    special_copies = sparse.diags_array(is_special.astype(float)) @ copies
    special_copies.eliminate_zeros()
    if init == "mean":
        return EmbeddingMap(special_copies, 0.0)
    layers = [copies]
    if vectors is not None:
        similar = wechsel_weights(vectors[1].of_subwords(new), vectors[0].of_subwords(old))
        layers = [special_copies, similar, copies]
    elif init == "similarity":
        layers = [copies, focus_weights(cooccurrence_vectors(new, lines), copies)]
    weights = layers[0]
    for layer in layers[1:]:  # each fills the rows that are still empty
        empty = np.diff(weights.indptr) == 0
        weights = (weights + sparse.diags_array(empty.astype(float)) @ layer).tocsr()
        weights.eliminate_zeros()
    return EmbeddingMap(weights, 1.0)


def focus_weights(vectors: Array, copies: Any) -> Any:
    """Compute the weights of old subwords for each new one, as FOCUS does: [V, V_old].

    They are the sparsemax of the cosines of its vector with the vectors of overlapping subwords.

    Args:
        vectors: Static vectors of the new vocabulary [V, width]; zeros where unknown.
        copies: 1 for each new and old subword that are the same [V, V_old].
    """
    overlaps, has_vector = np.diff(copies.indptr) > 0, vectors.any(axis=1)
    rows, anchors = np.flatnonzero(has_vector & ~overlaps), np.flatnonzero(has_vector & overlaps)
    weights = sparse.csr_array((len(vectors), len(vectors)))
    for start in range(0, len(rows) if len(anchors) else 0, _ROWS):
        chunk = rows[start : start + _ROWS]
        part = sparse.coo_array(sparsemax(cosine_similarity(vectors[chunk], vectors[anchors])))
        row, column = part.coords
        weights += sparse.coo_array((part.data, (chunk[row], anchors[column])), weights.shape)
    return weights @ copies


def wechsel_weights(new: Array, old: Array) -> Any:
    """Compute the weights of old subwords for each new one, as WECHSEL does: [V, V_old].

    They are the softmax of its cosines to its ``NEIGHBORS`` nearest old subwords, divided by
    ``TEMPERATURE``.

    Args:
        new: Static vectors of the new subwords [V, width]; zeros where unknown.
        old: Those of the old subwords, in the same space [V_old, width].
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


def with_vocabulary(
    name: str,
    old: SubwordTokenizer,
    new: SubwordTokenizer,
    embeddings: EmbeddingMap,
    *,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Load the model of a checkpoint with another vocabulary, and with its masked-LM head if any.

    Embeddings, output matrix and biases of subwords are replaced. ``seed`` determines the noise;
    ``options`` are as in ``load_config``.

    Raises:
        UserError: The model does not exist, or it counts positions from a padding id that the new
            vocabulary does not have.
    """
    config, pad = load_config(name, **options), new.tokenizer.pad_token_id
    family = FAMILIES.get(config.model_type)
    if family and family.positions == "after padding" and pad != config.pad_token_id:
        raise UserError(
            f"model {name!r} counts positions from its padding id {config.pad_token_id}, but the "
            f"new vocabulary pads with {pad}."
        )
    model: Any = None
    has_head = type(config) in AutoModelForMaskedLM._model_mapping
    if config.model_type == "mobilebert":  # a part of its output matrix is not in its output layer
        has_head = False
    if has_head or getattr(config, "auto_map", None):
        with contextlib.suppress(MissingHead):
            model = load_weights(AutoModelForMaskedLM, name, config, new_head=False, **options)
    model = load_weights(AutoModel, name, config, **options) if model is None else model
    special = {*old.tokenizer.all_special_ids}
    num_new, num_old = embeddings.weights.shape
    ordinary = np.array([id for id in range(num_old) if id not in special])
    weights = [weight.detach().clone() for weight in _vocabulary_weights(model)]
    model.resize_token_embeddings(num_new, mean_resizing=False)
    with torch.no_grad():
        for weight, before in zip(_vocabulary_weights(model), weights, strict=True):
            rows = before[:num_old]  # without rows of padded vocabularies
            weight.copy_(embeddings.apply(rows, ordinary, seed))
    for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
        if getattr(model.config, f"{role}_token_id", None) is not None:
            setattr(model.config, f"{role}_token_id", getattr(new.tokenizer, f"{role}_token_id"))
    return model.eval()


def _vocabulary_weights(model: Any) -> list[Tensor]:
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    return [weight for layer in layers if layer is not None for weight in layer.parameters()]


def transfer(
    command: VocabularyCommand,
    old: SubwordTokenizer,
    new: SubwordTokenizer,
    lines: Iterable[str],
    folder: Path,
    reporter: Reporter,
) -> dict[str, Any]:
    """Write the model with the new vocabulary, and count its embeddings by origin."""
    name = str(command.for_)
    reporter.log(f"embeddings of {name}: {command.init}")
    vectors = None
    if command.vectors:
        source, target = map(WordVectors.read, command.vectors)
        if source.vectors.shape[1] != target.vectors.shape[1]:
            raise UserError(
                f"--vectors have {source.vectors.shape[1]} and {target.vectors.shape[1]} "
                "dimensions: name files in one space."
            )
        vectors = source, target
    embeddings = embedding_map(old, new, command.init, lines, vectors)
    options = {"trust_remote_code": command.trust_remote_code}
    model = with_vocabulary(name, old, new, embeddings, seed=command.seed, **options)
    with quiet():
        model.save_pretrained(folder)
    other, copied, averaged = np.bincount(embeddings.num_weights.clip(max=2), minlength=3).tolist()
    counts = {"copied": copied, "averaged": averaged, "other": other}
    if command.init == "similarity" and not averaged:
        reporter.log(
            "note: the vocabularies share no subword of the text, so that nothing is similar: "
            "all other embeddings are drawn at random. Word vectors (--vectors) would help."
        )
    return {"model": name, "init": command.init, **counts}
