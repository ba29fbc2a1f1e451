"""Pseudo-log-likelihood and pseudo-perplexity of texts under a masked language model.

The pseudo-log-likelihood of a text is the sum over its subwords of log P(x_t | the others), with
one masked copy of the text for each subword (Salazar et al. 2020, "Masked language model scoring").
By word, the later subwords of the same word are masked too: otherwise they give a rare word away
(Kauf & Ivanova 2023, "A better way to do masked language model scoring").
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from finetune.data.word_splitting import split_words
from finetune.inference.loop import chunks, forward_passes
from finetune.models.encoder import Batching
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.loading import MissingHead
from finetune.preprocessing.batching import pack
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.preprocessing.windows import windows
from finetune.runtime.launch import make_accelerator
from finetune.tasks import find_saved_model
from finetune.types import Batch, Encoding, TextExample, UserError

Array = np.ndarray[Any, np.dtype[Any]]

COPIES = 8192
"""Number of masked copies to sort by length together."""


@dataclass(frozen=True, eq=False)
class TextScore:
    """The log-probabilities (natural logarithm) of the subwords of a text [n].

    ``split_words`` defines the words.
    """

    id: str | int
    text: str
    subwords: tuple[str, ...]
    log_probabilities: Array
    num_words: int
    num_unknown: int

    @property
    def log_likelihood(self) -> float:
        """The pseudo-log-likelihood."""
        return float(self.log_probabilities.sum())

    @property
    def perplexity(self) -> float | None:
        """exp of the mean negative log-probability of a subword; None without subwords."""
        number = len(self.subwords)
        return math.exp(-self.log_likelihood / number) if number else None


@dataclass
class CorpusScore:
    """Sums over texts, and the measures that they give."""

    log_likelihood: float = 0.0
    texts: int = 0
    subwords: int = 0
    words: int = 0
    characters: int = 0
    unknown: int = 0

    def add(self, score: TextScore) -> None:
        """Count a text."""
        self.log_likelihood += score.log_likelihood
        self.texts += 1
        self.subwords += len(score.subwords)
        self.words += score.num_words
        self.characters += len(score.text)
        self.unknown += score.num_unknown

    def measures(self) -> dict[str, float]:
        """Return pseudo-perplexity (per subword), and bits per word and character.

        Bits per character compare models of different vocabularies, perplexities do not.
        """
        bits = -self.log_likelihood / math.log(2)
        return {
            "pseudo_perplexity": math.exp(-self.log_likelihood / max(1, self.subwords)),
            "bits_per_word": bits / max(1, self.words),
            "bits_per_character": bits / max(1, self.characters),
        }


@dataclass(eq=False)
class _Text:
    """A text while its subwords are scored; ``left`` counts those without score."""

    example: TextExample
    number: int
    ids: list[int]
    starts: list[int]
    log_probabilities: Array = field(init=False)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.ids)
        self.log_probabilities = np.zeros(self.left)


class _Copy(NamedTuple):
    """A masked copy of the subwords ``start .. end-1`` of a text, and those that it predicts."""

    text: _Text
    start: int
    end: int
    masked: range
    predicted: range


class TextScorer:
    """A masked language model with its tokenizer, for pseudo-log-likelihoods.

    Texts longer than ``max_length`` are read in windows; each subword is scored once, in the window
    in which its word is further from the cut edge. Memory does not grow with texts or their length.

    Args:
        model: Hub id, short name or folder of a masked language model, or of a run of ``pretrain``.
        method: ``token``, ``word`` or ``every:K``. The last is an estimate in K copies of a text
            instead of one for each subword: each masks every K-th subword and predicts all of them.
        max_length: Tokens of the longest sequence; by default the model's limit, at most 512.
        batching: ``auto``, ``packed`` or ``padded``; changes memory and speed only.
        max_tokens: Tokens of a forward pass; changes memory and speed only.
        options: ``revision`` and ``trust_remote_code`` of the model.

    Raises:
        UserError: The model does not exist, or its masked-LM head is not trained.

    Examples:
        >>> scorer = TextScorer("roberta-base", method="word")  # doctest: +SKIP
        >>> (good, bad) = scorer.score(["The cats sleep.", "The cats sleeps."])  # doctest: +SKIP
        >>> good.log_likelihood > bad.log_likelihood  # doctest: +SKIP
        True
    """

    def __init__(
        self,
        model: str | Path,
        *,
        method: str = "token",
        max_length: int | None = None,
        batching: Batching = "auto",
        max_tokens: int | None = None,
        **options: Any,
    ) -> None:
        self.method, self.step = method, _step(method)
        name = str(find_saved_model(str(model), options.get("revision")) or model)
        self.device = make_accelerator().device
        try:
            self.model = MaskedLanguageModel.from_pretrained(
                name, batching=batching, new_head=False, **options
            )
        except MissingHead as error:
            raise UserError(
                f"model {str(model)!r} has no trained masked-LM head, so its probabilities mean "
                "nothing: name a masked language model, or train one with finetune pretrain."
            ) from error
        self.model.to(self.device).eval()
        self.tokenizer = SubwordTokenizer.from_pretrained(name, **options)
        if (mask := self.tokenizer.tokenizer.mask_token_id) is None:
            raise UserError(f"model {str(model)!r}: its tokenizer has no mask token.")
        self.mask: int = mask
        self.max_length = self.tokenizer.max_length(self.model.encoder.max_length, max_length)
        self.max_tokens = max_tokens
        self.num_windowed = 0
        """Number of texts that were read in several windows."""

    def score(self, texts: Iterable[str | TextExample]) -> Iterator[TextScore]:
        """Yield the score of each text, in order."""
        waiting: deque[_Text] = deque()

        def copies() -> Iterator[_Copy]:
            for number, item in enumerate(texts):
                text = self._read(number, item)
                waiting.append(text)
                yield from self._copies(text)

        for chunk in chunks(copies(), COPIES):
            self._predict(chunk)
            yield from self._finished(waiting)
        yield from self._finished(waiting)  # blank ones

    def _read(self, number: int, item: str | TextExample) -> _Text:
        example = TextExample(number, item) if isinstance(item, str) else item
        ((ids, starts),) = self.tokenizer.subwords_with_words([example.text])
        return _Text(example, number, ids, starts)

    def _finished(self, waiting: deque[_Text]) -> Iterator[TextScore]:
        """Yield the texts at the front whose subwords all have scores."""
        while waiting and not waiting[0].left:
            text = waiting.popleft()
            example = text.example
            yield TextScore(
                text.number if example.key is None else example.key,
                example.text,
                tuple(self.tokenizer.tokenizer.convert_ids_to_tokens(text.ids)),
                text.log_probabilities,
                len(split_words(example.text)[0]),
                text.ids.count(-1 if self.tokenizer.unknown is None else self.tokenizer.unknown),
            )

    def _copies(self, text: _Text) -> Iterator[_Copy]:
        """Yield the masked copies of all windows of a text."""
        room = self.max_length - self.tokenizer.single.num_special
        bounds = [*text.starts, len(text.ids)]
        edges = [  # of words, and of parts of words longer than a window
            edge for a, b in zip(bounds[:-1], bounds[1:], strict=True) for edge in range(a, b, room)
        ]
        edges.append(len(text.ids))
        found = windows(list(map(int, np.diff(edges))), room, room // 4) if text.ids else []
        self.num_windowed += len(found) > 1
        word_end = np.repeat(bounds[1:], np.diff(bounds)) if text.ids else np.empty(0, int)
        for window in found:
            start, end, first, last = (edges[index] for index in window)
            if self.step is not None:
                for begin in range(first, min(first + self.step, last)):
                    chosen = range(begin, last, self.step)
                    yield _Copy(text, start, end, chosen, chosen)
                continue
            for index in range(first, last):
                masked_end = min(int(word_end[index]), end) if self.method == "word" else index + 1
                yield _Copy(text, start, end, range(index, masked_end), range(index, index + 1))

    def _predict(self, copies: Sequence[_Copy]) -> None:
        """Enter the log-probabilities that copies predict in their texts."""
        special = self.tokenizer.single.num_special
        passes = forward_passes(
            self.model,
            np.array([copy.end - copy.start + special for copy in copies], dtype=np.int64),
            lambda rows: self._batch([copies[row] for row in rows]),
            lambda scores, _: scores.loss.cpu().numpy(),
            device=self.device,
            max_tokens=self.max_tokens,
        )
        with contextlib.closing(passes):
            for rows, losses in passes:
                group = [copies[row] for row in rows]
                ends = np.cumsum([len(copy.predicted) for copy in group])
                for copy, values in zip(group, np.split(losses, ends[:-1]), strict=True):
                    copy.text.log_probabilities[copy.predicted] = -values
                    copy.text.left -= len(values)

    def _batch(self, copies: Sequence[_Copy]) -> Batch:
        batch = pack(self._encoding(*each) for each in enumerate(copies))
        begins = batch.cu_seqlens[:-1].tolist()
        position = [
            begin + len(self.tokenizer.single.prefix) + index - copy.start
            for begin, copy in zip(begins, copies, strict=True)
            for index in copy.predicted
        ]
        token = [copy.text.ids[index] for copy in copies for index in copy.predicted]
        targets = {"position": torch.tensor(position), "token": torch.tensor(token)}
        return replace(batch, targets=targets)

    def _encoding(self, number: int, copy: _Copy) -> Encoding:
        ids = copy.text.ids[copy.start : copy.end]
        for index in copy.masked:
            ids[index - copy.start] = self.mask
        return Encoding(number, *self.tokenizer.build(ids))


def _step(method: str) -> int | None:
    """Return K of ``every:K``; None for the exact methods."""
    if method in ("token", "word"):
        return None
    name, _, number = method.partition(":")
    if name != "every" or not number.isdecimal() or int(number) < 2:
        raise UserError(f"--method {method}: legal are token, word and every:K, such as every:8.")
    return int(number)
