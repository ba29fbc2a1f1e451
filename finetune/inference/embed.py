"""Contextual embeddings: vectors of texts, words or subwords from the layers of an encoder.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", section on
contextual embeddings: the vector of a word in its context comes from the last layer, or is the mean
of the last four. A word of several subwords has their mean.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash
from torch import Tensor

from finetune.config.values import conforms, description, require_count
from finetune.data.in_memory import input_list
from finetune.data.word_splitting import split_words
from finetune.inference.loop import chunks, values_of_examples
from finetune.models.encoder import Encoder
from finetune.models.heads.layers import pool, pooled_tokens
from finetune.models.heads.pretrained import subword_rows
from finetune.preprocessing.encodings import EncodedExamples
from finetune.preprocessing.texts import as_example
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.preprocessing.windows import encode_window, windows
from finetune.runtime.launch import make_accelerator
from finetune.runtime.progress import Reporter
from finetune.runtime.workers import ahead
from finetune.tasks import find_saved_model, saved_task
from finetune.tasks.base import Task
from finetune.types import Batch, TextExample, TokenExample, UserError

CHUNK_BYTES = 2**27
"""Bytes of vectors from which a chunk of inputs takes no more."""

Unit = Literal["text", "word", "subword"]
_Pooling = Literal["mean", "first", "max"]
Combination = Literal["mean", "sum", "none"]
_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Embedding:
    """The vectors of one input, of its U units: the text, its words or its subwords."""

    id: str | int
    """The id in the data if there is one, else the index of the input."""
    units: tuple[str, ...]
    """The text, the words or the subwords [U]."""
    vectors: _Array
    """float32 [U, H]; with ``combine="none"`` [U, L', H] for L' layers."""
    offsets: tuple[tuple[int, int], ...] | None = None
    """Characters (start, end) of each unit in the input, if that is a text."""


class _Units(NamedTuple):
    """An input as groups of subwords, one for each unit; a text has one for each subword."""

    id: str | int
    units: tuple[str, ...]
    subwords: list[list[int]]
    offsets: tuple[tuple[int, int], ...] | None


class Embedder:
    """An encoder with its tokenizer, for vectors of texts, words or subwords.

    Inputs longer than ``max_length`` are read in windows. A word or subword has the vector of the
    window in which it is further from the cut edge; a text is pooled over all windows.

    Args:
        model: Hub id, short name or folder of an encoder, or the folder of a run.
        unit: The unit that gets a vector. Texts are split into words as for ``tag``.
        layers: ``"last"``, ``"last4"``, ``"all"``, or numbers, perhaps as in ``"0,-1"``: 0 is the
            output of the embeddings, 1 to L are the layers, and negative numbers count from the
            last.
        combine: Return the mean or the sum of the layers, or ``"none"`` for each of them.
        pooling: Pool a word over its subwords, or a text over its tokens with the special ones, by
            their mean, their maximum, or the first (for a text the CLS token). None is the mean;
            for texts and a run of ``finetune sentence`` it is the trained vector.
        normalize: Scale each vector to length 1.
        max_length: Tokens of the longest sequence; by default the model's limit, at most 512.
        max_tokens: Tokens of a forward pass; changes memory and speed only.
        revision: Branch, tag or commit of a model on the hub.
        trust_remote_code: Whether to run code of the model's repository.

    Raises:
        UserError: The model cannot be loaded, or has fewer layers.

    Examples:
        >>> embedder = Embedder("roberta-base", unit="word", layers="last4")  # doctest: +SKIP
        >>> (bank,) = embedder.encode(["the bank of the river"])  # doctest: +SKIP
        >>> bank.vectors.shape  # doctest: +SKIP
        (5, 768)
    """

    def __init__(
        self,
        model: str | Path,
        *,
        unit: Unit = "text",
        layers: str | Sequence[int] = "last",
        combine: Combination = "mean",
        pooling: _Pooling | None = None,
        normalize: bool = False,
        max_length: int | None = None,
        max_tokens: int | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        legal = {"unit": Unit, "combine": Combination, "pooling": _Pooling | None}
        for option, value in {"unit": unit, "combine": combine, "pooling": pooling}.items():
            if not conforms(value, legal[option]):
                raise UserError(f"{option} must be {description(legal[option])}, not {value!r}.")
        require_count("max_tokens", 1 if max_tokens is None else max_tokens)
        name, words = str(model), unit == "word"
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        self.encoder: Encoder
        self._task: Task | None = None
        """The task of a trained sentence encoder, which encodes its texts."""
        self._forward: Callable[[Batch], Tensor] = self._vectors
        if (folder := find_saved_model(name, revision)) is None:
            self.tokenizer = SubwordTokenizer.from_pretrained(name, words=words, **options)
            self.encoder = Encoder.from_pretrained(name, **options)
        else:
            task = saved_task(folder)
            head = task.model(folder)
            self.tokenizer = SubwordTokenizer.saved(folder, words=words)
            self.encoder = head.encoder
        self.device = make_accelerator().device
        self.encoder.to(self.device).eval()
        self.unit, self.combine, self.normalize = unit, combine, normalize
        self.pooling: _Pooling = pooling or "mean"
        self.layers = _layer_numbers(layers, self.encoder.num_layers + 1)
        self.max_length = self.tokenizer.max_length(self.encoder.max_length, max_length)
        self.max_tokens = max_tokens
        self.num_cut = 0
        """Number of inputs that were cut, as in a run of ``finetune sentence``."""
        last = self.layers == [self.encoder.num_layers] and combine != "none"
        if folder is None or unit != "text" or pooling is not None or not last:
            return
        if not (task.description.labels or task.description.fills_masks):
            self.max_length = task.state.max_length if max_length is None else self.max_length
            self._task = replace(task, state=replace(task.state, max_length=self.max_length))
            self._forward = head.to(self.device).vectors

    @property
    def weights_hash(self) -> str:
        """A hash of the weights of the encoder."""
        digest = xxhash.xxh3_64()
        for weight in self.encoder.parameters():
            digest.update(weight.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a vector: [H], or [L', H] with ``combine="none"``."""
        width = self.encoder.width
        return (len(self.layers), width) if self.combine == "none" else (width,)

    def encode(
        self,
        inputs: Iterable[str | Sequence[str] | TextExample | TokenExample],
        reporter: Reporter | None = None,
    ) -> Iterator[Embedding]:
        """Yield the vectors of each input, in order and in bounded memory.

        Args:
            inputs: A text, a list of words, or an example of either. Words without a text are read
                with blanks between them.
            reporter: Shows the progress, in sequences that the encoder has read.

        Yields:
            The vectors of an input, float32.

        Raises:
            UserError: An input is a pair of texts, or neither a text nor words.
        """
        inputs = input_list(inputs, "encode")
        reporter = reporter or Reporter(quiet=True)
        reporter.start("embedding", None, unit="sequence")
        units, read = (self._read(*item) for item in enumerate(inputs)), 0
        size = 4 * math.prod(self.shape)
        parts = chunks(units, size_of=lambda item: size * len(item.units), most_size=CHUNK_BYTES)
        options: dict[str, Any] = {"device": self.device, "max_tokens": self.max_tokens}
        options |= {"forward": self._forward, "reporter": reporter, "title": "embedding"}
        with contextlib.closing(ahead(map(self._encode, parts), most=1)) as ready:
            for chunk, encoded in ready:
                values = dict(values_of_examples(self.encoder, encoded, self._by_window, **options))
                read, self.num_cut = read + len(encoded.sequences), self.num_cut + encoded.num_cut
                bounds = pairwise(encoded.offsets.tolist())
                for number, (item, (start, end)) in enumerate(zip(chunk, bounds, strict=True)):
                    vectors = self._joined(values[number], encoded.sequences.lengths[start:end])
                    vectors = vectors.reshape(-1, *self.shape)
                    if self.normalize:
                        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
                        vectors /= np.maximum(norms, np.finfo(np.float32).tiny)
                    yield Embedding(item.id, item.units, vectors, item.offsets)
                reporter.update(read)
        reporter.stop()

    def _encode(self, inputs: Sequence[_Units]) -> tuple[Sequence[_Units], EncodedExamples]:
        if self._task is not None:
            texts = enumerate(item.units[0] for item in inputs)
            return inputs, self._task.encode([TextExample(*text) for text in texts])
        room, encoded = self.tokenizer.room(self.max_length), []
        for number, item in enumerate(inputs):
            subwords = [ids[:room] for ids in item.subwords]
            overlap = 0 if self.unit == "text" else room // 4
            bounds = windows([len(ids) for ids in subwords], room, overlap)
            encoded.append([encode_window(self.tokenizer, number, subwords, w) for w in bounds])
        return inputs, EncodedExamples.of(encoded)

    def _read(self, index: int, item: Any) -> _Units:
        if isinstance(item, str):
            item = TextExample(index, item)
        elif not isinstance(item, TextExample | TokenExample):
            item = as_example(index, item, TokenExample, pairs=None)
        is_text = isinstance(item, TextExample)
        if len(item.texts()) > 1:
            where = item.where or f"input {index}"
            raise UserError(f"{where}: a pair of texts has no vector: name one column.")
        id = index if item.key is None else item.key
        if self.unit == "word":
            words, offsets = split_words(item.text) if is_text else (item.words, item.offsets)
            offsets = None if offsets is None else tuple(offsets)
            return _Units(id, tuple(words), self.tokenizer.word_subwords([words])[0], offsets)
        text = item.line()
        encoding = self.tokenizer.backend.encode(text, add_special_tokens=False)
        subwords = [[id] for id in encoding.ids]
        if self.unit == "subword":
            offsets = None if item.text is None else tuple(encoding.offsets)
            return _Units(id, tuple(encoding.tokens), subwords, offsets)
        return _Units(id, (text,), subwords, None)

    def _vectors(self, batch: Batch) -> Tensor:
        states = self.encoder.layers(batch, self.layers).float()  # [L', T, H]
        if self.combine == "none":
            hidden = states.transpose(0, 1).flatten(1)
        else:
            hidden = states.sum(0) if self.combine == "sum" else states.mean(0)
        if self.unit == "text":
            return pooled_tokens(hidden, batch, self.pooling)
        return pool(hidden.index_select(0, subword_rows(batch)), batch.word_lengths, self.pooling)

    def _by_window(self, vectors: Tensor, batch: Batch) -> list[_Array]:
        counts = [1] * len(batch.lengths) if self.unit == "text" else batch.num_words
        return np.split(vectors.cpu().numpy(), np.cumsum(counts)[:-1])

    def _joined(self, windows: Sequence[_Array], lengths: _Array) -> _Array:
        if self.unit != "text":
            return np.concatenate(windows)
        if self.pooling == "first":
            return windows[0]
        if self.pooling == "max":
            joined: _Array = np.max(windows, axis=0)
        else:
            joined = np.average(windows, axis=0, weights=lengths)
        return joined.astype(np.float32)


def _layer_numbers(layers: str | Sequence[int], count: int) -> list[int]:
    numbers: Any = layers
    if isinstance(layers, str):
        named = {"last": [-1], "last4": list(range(-min(4, count), 0)), "all": list(range(count))}
        with contextlib.suppress(ValueError):
            numbers = named.get(layers) or list(map(int, layers.split(",")))
    are_numbers = isinstance(numbers, Sequence) and {*numbers} <= {*range(-count, count)}
    if not are_numbers or not numbers:
        value = ",".join(map(str, layers)) if isinstance(layers, list | tuple) else layers
        raise UserError(
            f"layers {value}: legal are last, last4, all and numbers from 0 (the output of the "
            f"embeddings) to {count - 1} (the last layer), or from -{count} to -1."
        )
    return [int(number) % count for number in numbers]
