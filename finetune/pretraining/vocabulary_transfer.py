"""A new vocabulary for a trained encoder: initial embeddings from the old embeddings.

``overlap`` copies the embedding of each subword that both vocabularies have. ``similarity`` also
computes the other embeddings as weighted means of old embeddings, by the similarity of static
vectors: FOCUS (Dobler & de Melo 2023) with vectors from the text, or WECHSEL (Minixhofer et al.
2022) with word vectors of both languages. ``mean`` gives all subwords the mean of old embeddings.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import sparse
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
    expected = occurrences[row] * (smoothed / smoothed.sum())[column]
    information = np.log(counts.data / expected)
    kept = information > 0
    matrix = sparse.coo_array((information[kept], (row[kept], column[kept])), (size, size)).tocsr()
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
            except ValueError as error:
                raise DataError(
                    f"{file}:{number}: {error}; write a word and its numbers."
                ) from error
            if not len(row) or not np.isfinite(row).all() or len(row) != len((rows or [row])[0]):
                raise DataError(
                    f"{file}:{number}: the vector of {word!r} has {len(row)} numbers, NaN or "
                    "infinite ones: all words need equally many finite numbers in float32."
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
        totals = np.asarray(weights.sum(axis=1)).ravel()
        vectors: Array = (weights @ self.vectors) / np.maximum(totals, 1e-12)[:, None]
        return vectors.astype(np.float32)


@dataclass(frozen=True, eq=False)
class EmbeddingMap:
    """New embeddings as weighted means of old ones.

    ``weights`` is [new vocabulary, old vocabulary]; its rows sum to 1, or are empty for unknown
    subwords. Rows without weights get the mean of the old embeddings, plus their standard deviation
    times Gaussian ``noise``.
    """

    weights: Any
    noise: float

    @property
    def copied(self) -> int:
        """The number of rows of one weight."""
        return int((np.diff(self.weights.indptr) == 1).sum())

    @property
    def averaged(self) -> int:
        """The number of rows of several weights."""
        return int((np.diff(self.weights.indptr) > 1).sum())

    def apply(self, old: Tensor, ordinary: Array, seed: int) -> Tensor:
        """Compute a new matrix [V, H] or bias [V] from the old one.

        ``ordinary`` are the old ids whose rows have the mean and deviation.
        """
        rows = old.detach().double().numpy()
        new_rows: Array = self.weights @ rows
        unknown = np.diff(self.weights.indptr) == 0
        known = rows[ordinary]
        new_rows[unknown] = known.mean(axis=0)
        if old.ndim == 2:
            drawn = np.random.default_rng(seed).standard_normal(new_rows[unknown].shape)
            new_rows[unknown] += self.noise * known.std(axis=0) * drawn
        return torch.from_numpy(new_rows).to(old.dtype)


def is_byte_level(tokenizer: SubwordTokenizer) -> bool:
    """Whether the subwords of a tokenizer are bytes, as in byte-level BPE."""
    settings = json.loads(tokenizer.backend.to_str())
    return '"ByteLevel"' in json.dumps([settings["pre_tokenizer"], settings["decoder"]])


def subword_texts(tokenizer: SubwordTokenizer) -> list[tuple[bool, str] | None]:
    """List for each subword id whether it begins a word, and its text without the marks of its
    tokenizer; None for special tokens.

    A byte-level subword that is no whole character has ``PARTIAL`` and its bytes as characters.
    """
    settings = json.loads(tokenizer.backend.to_str())
    prefix = settings["model"].get("continuing_subword_prefix") or ""
    special = {entry["id"] for entry in settings["added_tokens"]}
    is_bytes, decoder = is_byte_level(tokenizer), decoders.ByteLevel()
    vocabulary = tokenizer.backend.get_vocab()
    texts: list[tuple[bool, str] | None] = [None] * (max(vocabulary.values()) + 1)
    for name, id in vocabulary.items():
        if id in special:
            continue
        if prefix:
            texts[id] = not name.startswith(prefix), name.removeprefix(prefix)
        elif is_bytes:
            text = decoder.decode([name])
            text = PARTIAL + name if PARTIAL in text else text
            texts[id] = text.startswith(" "), text.removeprefix(" ")
        else:
            texts[id] = name.startswith("▁"), name.removeprefix("▁")
    return texts


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
    old_ids: dict[tuple[bool, str], int] = {}
    for id, subword in enumerate(subword_texts(old)):
        if subword is not None:
            old_ids.setdefault(subword, id)
    normalizer = old.backend.normalizer
    for id, subword in enumerate(subword_texts(new)):
        if subword is None:
            continue
        begins, text = subword
        texts = [text]
        if normalizer is not None and not text.startswith(PARTIAL):
            texts.append(normalizer.normalize_str(text).strip(" ▁"))
        candidates = ((b, text) for b in (begins, not begins) for text in texts if text)
        old_id = next((old_ids[pair] for pair in candidates if pair in old_ids), None)
        if old_id is not None:
            pairs[id] = old_id
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
    pairs, special = overlap(old, new), {*new.tokenizer.all_special_ids}
    copies = _copies(pairs, shape)
    special_copies = _copies({id: pairs[id] for id in pairs if id in special}, shape)
    if init == "mean":
        return EmbeddingMap(special_copies, 0.0)
    layers = [copies]
    if init == "similarity" and vectors is None:
        layers += [focus_weights(cooccurrence_vectors(new, lines), pairs, shape[1])]
    elif vectors is not None:
        similar = wechsel_weights(vectors[1].of_subwords(new), vectors[0].of_subwords(old))
        layers = [special_copies, similar, copies]
    weights = layers[0]
    for layer in layers[1:]:  # each fills the rows that are still empty
        empty = np.diff(weights.indptr) == 0
        weights = (weights + sparse.diags_array(empty.astype(float)) @ layer).tocsr()
        weights.eliminate_zeros()
    return EmbeddingMap(weights, 1.0)


def _copies(pairs: dict[int, int], shape: tuple[int, int]) -> Any:
    new, old = np.array(sorted(pairs.items()), dtype=np.int64).reshape(-1, 2).T
    return sparse.coo_array((np.ones(len(new)), (new, old)), shape).tocsr()


def focus_weights(vectors: Array, pairs: dict[int, int], num_old: int) -> Any:
    """Compute the weights of old subwords for each new one, as FOCUS does: [V, num_old].

    They are the sparsemax of the cosines of its vector with the vectors of overlapping subwords.

    Args:
        vectors: Static vectors of the new vocabulary [V, width]; zeros where unknown.
        pairs: The overlap, new ids to old ids.
        num_old: Size of the old vocabulary.
    """
    known = {*np.flatnonzero(vectors.any(axis=1)).tolist()}
    anchors = np.array(sorted(known & pairs.keys()), dtype=np.int64)
    rows = np.array(sorted(known - pairs.keys()), dtype=np.int64)
    columns = np.array([pairs[id] for id in anchors], dtype=np.int64)
    shape = len(vectors), num_old
    return _similarity_weights(vectors[rows], vectors[anchors], rows, columns, shape, sparsemax)


def wechsel_weights(new: Array, old: Array) -> Any:
    """Compute the weights of old subwords for each new one, as WECHSEL does: [V, V_old].

    They are the softmax of its cosines to its ``NEIGHBORS`` nearest old subwords, divided by
    ``TEMPERATURE``.

    Args:
        new: Static vectors of the new subwords [V, width]; zeros where unknown.
        old: Those of the old subwords, in the same space [V_old, width].
    """

    def softmax_of_nearest(cosines: Array) -> Array:
        count = min(NEIGHBORS, cosines.shape[1])
        nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        weights = np.exp((np.take_along_axis(cosines, nearest, axis=1) - 1) / TEMPERATURE)
        spread = np.zeros_like(cosines)
        np.put_along_axis(spread, nearest, weights / weights.sum(axis=1, keepdims=True), axis=1)
        return spread

    rows, columns = (np.flatnonzero(vectors.any(axis=1)) for vectors in (new, old))
    shape = len(new), len(old)
    return _similarity_weights(new[rows], old[columns], rows, columns, shape, softmax_of_nearest)


def _similarity_weights(
    new: Array,
    old: Array,
    rows: Array,
    columns: Array,
    shape: tuple[int, int],
    weigh: Callable[[Array], Array],
) -> Any:
    weights = sparse.csr_array(shape)
    new, old = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (new, old))
    for start in range(0, len(new) if len(old) else 0, _ROWS):
        part = sparse.coo_array(weigh(new[start : start + _ROWS] @ old.T))
        row, column = part.coords
        weights += sparse.coo_array((part.data, (rows[start + row], columns[column])), shape)
    return weights


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
    config = load_config(name, **options)
    family = FAMILIES.get(config.model_type)
    pad = new.tokenizer.pad_token_id
    if family and family.positions == "after padding" and pad != config.pad_token_id:
        raise UserError(
            f"model {name!r} counts positions from its padding id {config.pad_token_id}, but the "
            f"new vocabulary pads with {pad}."
        )
    model: Any = None
    if type(config) in AutoModelForMaskedLM._model_mapping or getattr(config, "auto_map", None):
        with contextlib.suppress(MissingHead):
            model = load_weights(AutoModelForMaskedLM, name, config, new_head=False, **options)
    model = load_weights(AutoModel, name, config, **options) if model is None else model
    # The weights of the vocabulary are those whose shape depends on its size.
    config = copy.deepcopy(model.config)
    config.vocab_size += 1
    with torch.device("meta"):
        larger = type(model)(config).state_dict()
    state = model.state_dict()
    special = {*old.tokenizer.all_special_ids}
    num_new, num_old = embeddings.weights.shape
    ordinary = np.array([id for id in range(num_old) if id not in special])
    for weight_name, value in state.items():
        if value.shape != larger[weight_name].shape:
            rows = value[:num_old]  # without rows of padded vocabularies
            state[weight_name] = embeddings.apply(rows, ordinary, seed)
    config = copy.deepcopy(model.config)
    config.vocab_size = num_new
    for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
        if getattr(config, f"{role}_token_id", None) is not None:
            setattr(config, f"{role}_token_id", getattr(new.tokenizer, f"{role}_token_id"))
    resized = type(model)(config)
    resized.load_state_dict(state)
    resized.tie_weights()
    return resized.eval()


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
    if command.init == "similarity" and not embeddings.averaged:
        reporter.log(
            "note: the vocabularies share no subword of the text, so that nothing is similar: "
            "all embeddings are drawn at random. Word vectors (--vectors) would help."
        )
    options = {"trust_remote_code": command.trust_remote_code}
    model = with_vocabulary(name, old, new, embeddings, seed=command.seed, **options)
    with quiet():
        model.save_pretrained(folder)
    known = {"copied": embeddings.copied, "averaged": embeddings.averaged}
    other = embeddings.weights.shape[0] - sum(known.values())
    return {"model": name, "init": command.init, **known, "other": other}
