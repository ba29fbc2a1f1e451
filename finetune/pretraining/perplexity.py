"""Pseudo-log-likelihood and pseudo-perplexity of texts under a masked language model.

The pseudo-log-likelihood of a text is the sum over its subwords of log P(x_t | the others), with
one masked copy of the text for each subword (Salazar et al. 2020, "Masked language model scoring").
By word, the later subwords of the same word are masked too: otherwise they give a rare word away
(Kauf & Ivanova 2023, "A better way to do masked language model scoring").
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from finetune.cli.output import open_records, print_tables, show
from finetune.config.tasks import column_map
from finetune.data import read_text_file
from finetune.data.word_splitting import split_words
from finetune.evaluation.metrics import mean
from finetune.evaluation.significance import Counts, estimate
from finetune.inference.loop import chunks, forward_passes
from finetune.models.encoder import Batching
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.loading import MissingHead
from finetune.preprocessing.batching import pack
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.preprocessing.windows import windows
from finetune.runtime.launch import make_accelerator
from finetune.runtime.progress import Reporter
from finetune.tasks import find_saved_model
from finetune.types import Batch, Encoding, TextExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.pretraining.commands import Perplexity

Array = np.ndarray[Any, np.dtype[Any]]
Method = Literal["token", "word"]

COPIES = 8192
"""Number of masked copies to sort by length together."""


@dataclass(frozen=True, eq=False)
class TextScore:
    """The log-probabilities (natural logarithm) of the subwords of a text [n].

    ``split_words`` defines the words. Log-probabilities are NaN until they are computed.
    """

    id: str | int
    text: str
    ids: Sequence[int]
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
    """Sums over texts, and which pairs of texts have the more likely text first."""

    texts: int = 0
    subwords: int = 0
    words: int = 0
    characters: int = 0
    unknown: int = 0
    log_likelihood: float = 0.0
    correct: list[bool] = field(default_factory=list)

    def add(self, *scores: TextScore) -> None:
        """Count the one or two texts of a row."""
        for score in scores:
            self.texts += 1
            self.subwords += len(score.subwords)
            self.words += score.num_words
            self.characters += len(score.text)
            self.unknown += score.num_unknown
            self.log_likelihood += score.log_likelihood
        if len(scores) == 2:
            self.correct.append(scores[0].log_likelihood > scores[1].log_likelihood)

    def record(self, resamples: int, seed: int) -> dict[str, Any]:
        """Return the sums and the measures: pseudo-perplexity (of a subword), bits per word and
        character, and the accuracy of pairs with its bootstrap interval.

        Bits per character compare models of different vocabularies, perplexities do not.
        """
        bits = -self.log_likelihood / math.log(2)
        record: dict[str, Any] = dataclasses.asdict(self) | {
            "pseudo_perplexity": math.exp(-self.log_likelihood / max(1, self.subwords)),
            "bits_per_word": bits / max(1, self.words),
            "bits_per_character": bits / max(1, self.characters),
        }
        if correct := record.pop("correct"):
            rows = np.column_stack([np.array(correct, dtype=float), np.ones(len(correct))])
            own = [Counts(rows, mean)]
            found = estimate(own, num_resamples=resamples, seed=seed, limits=(0.0, 1.0))
            record |= {"pairs": len(correct), "accuracy": tuple(found)}
        return record


class _Copy(NamedTuple):
    """A copy of the subwords ``start .. end-1`` of a text, to predict the one at ``place``.

    The subwords ``place .. masked_end-1`` are masked.
    """

    text: TextScore
    start: int
    end: int
    place: int
    masked_end: int


class TextScorer:
    """A masked language model with its tokenizer, for pseudo-log-likelihoods.

    Texts longer than ``max_length`` are read in windows; each subword is scored once, in the window
    in which its word is further from the cut edge. Memory does not grow with texts or their length.

    Args:
        model: Hub id, short name or folder of a masked language model, or of a run of ``pretrain``.
        method: ``token`` or ``word``.
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
        method: Method = "token",
        max_length: int | None = None,
        batching: Batching = "auto",
        max_tokens: int | None = None,
        **options: Any,
    ) -> None:
        if method not in ("token", "word"):
            raise UserError(f"method {method!r}: legal are token and word.")
        self.method = method
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
        waiting: deque[TextScore] = deque()

        def copies() -> Iterator[_Copy]:
            for number, item in enumerate(texts):
                text, starts = self._read(number, item)
                waiting.append(text)
                yield from self._copies(text, starts)

        for chunk in chunks(copies(), COPIES):
            self._predict(chunk)
            while waiting and not np.isnan(waiting[0].log_probabilities).any():
                yield waiting.popleft()
        yield from waiting  # blank ones

    def _read(self, number: int, item: str | TextExample) -> tuple[TextScore, list[int]]:
        example = TextExample(number, item) if isinstance(item, str) else item
        ((ids, starts),) = self.tokenizer.subwords_with_words([example.text])
        text = TextScore(
            number if example.key is None else example.key,
            example.text,
            ids,
            tuple(self.tokenizer.tokenizer.convert_ids_to_tokens(ids)),
            np.full(len(ids), np.nan),
            len(split_words(example.text)[0]),
            ids.count(-1 if self.tokenizer.unknown is None else self.tokenizer.unknown),
        )
        return text, starts

    def _copies(self, text: TextScore, starts: list[int]) -> Iterator[_Copy]:
        if not text.ids:
            return
        room = self.max_length - self.tokenizer.single.num_special
        bounds = [*starts, len(text.ids)]
        # of words, and of parts of words longer than a window
        edges = [edge for a, b in pairwise(bounds) for edge in range(a, b, room)]
        edges.append(len(text.ids))
        found = windows(list(map(int, np.diff(edges))), room, room // 4)
        self.num_windowed += len(found) > 1
        word_end = np.repeat(bounds[1:], np.diff(bounds))
        for window in found:
            start, end, first, last = (edges[index] for index in window)
            for index in range(first, last):
                masked_end = min(int(word_end[index]), end) if self.method == "word" else index + 1
                yield _Copy(text, start, end, index, masked_end)

    def _predict(self, copies: Sequence[_Copy]) -> None:
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
                for row, loss in zip(rows, losses, strict=True):
                    copies[row].text.log_probabilities[copies[row].place] = -loss

    def _batch(self, copies: Sequence[_Copy]) -> Batch:
        batch = pack(self._encoding(*each) for each in enumerate(copies))
        places = [len(self.tokenizer.single.prefix) + each.place - each.start for each in copies]
        targets = {
            "position": batch.cu_seqlens[:-1] + torch.tensor(places),
            "token": torch.tensor([copy.text.ids[copy.place] for copy in copies]),
        }
        return replace(batch, targets=targets)

    def _encoding(self, number: int, copy: _Copy) -> Encoding:
        ids = list(copy.text.ids[copy.start : copy.end])
        begin, end = copy.place - copy.start, copy.masked_end - copy.start
        ids[begin:end] = [self.mask] * (end - begin)
        return Encoding(number, *self.tokenizer.build(ids))


def score_texts(command: Perplexity) -> None:
    """Score all texts, write their lines and print the measures of the whole."""
    rows = _rows(command)
    if (first := next(rows, None)) is None:
        raise UserError(f"--file {command.file}: there is no text in it.")
    scorer = TextScorer(command.model, method=command.method, **command.encoder.keywords())
    corpus, shown = CorpusScore(), list[tuple[Any, ...]]()
    opened = open_records(command.out) if command.out else contextlib.nullcontext()
    with opened as write:
        for scores in _scored(command, scorer, chain([first], rows)):
            corpus.add(*scores)
            if command.text:
                shown += [(each.text, each.log_likelihood, each.perplexity) for each in scores]
            if write is not None:
                write(_line(command, *scores))
    if number := scorer.num_windowed:
        limit = f"{number:,} over {scorer.max_length} tokens"
        show(f"texts read in several windows: {limit}", error=True)
    record = {"method": command.method, **corpus.record(command.resamples, command.seed)}
    if command.format == "json":
        show(json.dumps(record, indent=2))
    else:
        _print(command, record, shown)


def _rows(command: Perplexity) -> Iterator[TextExample]:
    if command.text and command.pairs:
        yield TextExample(0, command.text[0], command.text[1], where="--text")
    elif command.text:
        yield from (TextExample(index, text) for index, text in enumerate(command.text))
    else:
        yield from read_text_file(
            command.file or "",
            columns=column_map(command.columns),
            pair=command.pairs or None,
            labels=False,
            encoding=command.encoding,
        )


def _sides(row: TextExample) -> list[TextExample]:
    key = row.id if row.key is None else row.key
    return [TextExample(row.id, text, key=key) for text in (row.text, row.pair) if text is not None]


def _scored(
    command: Perplexity, scorer: TextScorer, rows: Iterable[TextExample]
) -> Iterator[list[TextScore]]:
    is_stream = command.file is not None and not Path(command.file).is_file()
    total = 0 if is_stream else sum(1 for _ in _rows(command))
    read, again = tee(rows)
    with Reporter(quiet=command.format != "table" or is_stream) as reporter:
        reporter.start("scoring", total, unit="row")
        scores = scorer.score(side for row in read for side in _sides(row))
        for done, row in enumerate(again, 1):
            yield [next(scores) for _ in _sides(row)]
            reporter.update(done)


def _line(command: Perplexity, first: TextScore, second: TextScore | None = None) -> dict[str, Any]:
    scores = [first] if second is None else [first, second]
    columns: dict[str, list[Any]] = {
        "log_likelihood": [round(each.log_likelihood, 6) for each in scores],
        "num_subwords": [len(each.subwords) for each in scores],
    }
    if second is None:
        columns |= {"num_words": [first.num_words], "num_characters": [len(first.text)]}
    if command.subwords:
        columns["subwords"] = [each.subwords for each in scores]
        columns["log_probabilities"] = [each.log_probabilities.round(6).tolist() for each in scores]
    if second is None:
        values = {name: value for name, (value,) in columns.items()}
        return {"id": first.id, "text": first.text, **values}
    difference = first.log_likelihood - second.log_likelihood
    probability = 1 / (1 + math.exp(-max(-700.0, min(700.0, difference))))
    return {
        "id": first.id,
        "label": "first" if difference > 0 else "second" if difference < 0 else "tie",
        "gold": "first",
        "text": first.text,
        "text_pair": second.text,
        "score": round(max(probability, 1 - probability), 6),
        **columns,
    }


def _print(command: Perplexity, record: dict[str, Any], shown: list[tuple[Any, ...]]) -> None:
    command.note(
        f"{quantity(record['texts'], 'text')}, {quantity(record['subwords'], 'subword')}, "
        f"{quantity(record['words'], 'word')} (--method {command.method})"
    )
    rows = [
        ("pseudo-perplexity of a subword", record["pseudo_perplexity"]),
        ("bits per word", record["bits_per_word"]),
        ("bits per character", record["bits_per_character"]),
    ]
    if "accuracy" in record and command.format != "table":
        names = ("accuracy", "accuracy low", "accuracy high")
        rows += zip(names, record["accuracy"], strict=True)
    tables: list[Any] = [("", ("measure", "value"), rows)]
    if shown:
        tables.insert(0, ("", ("text", "log-likelihood", "pseudo-perplexity"), shown))
    print_tables(command.format, *tables)
    if record["unknown"]:
        command.note(
            f"{quantity(record['unknown'], 'subword')} unknown to the model: they get the "
            "probability of the unknown token, which is too high"
        )
    if "accuracy" in record:
        value, low, high = record["accuracy"]
        command.note(
            f"accuracy {value:.4f} ({low:.4f} to {high:.4f}, 95 % interval): the first of "
            f"{quantity(record['pairs'], 'pair')} is more likely"
        )
