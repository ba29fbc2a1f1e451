"""Pseudo-log-likelihood and pseudo-perplexity of texts under a masked language model.

The pseudo-log-likelihood of a text is the sum over its subwords of log P(x_t | the others), with
one masked copy of the text for each subword (Salazar et al. 2020, "Masked language model scoring").
By word, the later subwords of the same word are masked too: otherwise they give a rare word away
(Kauf & Ivanova 2023, "A better way to do masked language model scoring").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.special import expit

from finetune.cli.output import print_tables
from finetune.data import read_text_file
from finetune.data.word_splitting import split_words
from finetune.inference.loop import chunks, values_of_examples
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.loading import MissingHead
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.preprocessing.windows import windows
from finetune.runtime.launch import make_accelerator
from finetune.runtime.progress import Reporter
from finetune.runtime.row_files import write_rows
from finetune.tasks import find_saved_model
from finetune.types import TextExample, TokenSequence, UserError

if TYPE_CHECKING:
    from finetune.pretraining.commands import Perplexity

ScoringMethod = Literal["token", "word"]
TEXTS, CHARACTERS = 128, 32_768
"""Most texts, and about the most characters, whose copies are sorted by length together."""


@dataclass(frozen=True, eq=False)
class TextScore:
    """The log-probabilities (natural logarithm) of the subwords of a text [n]."""

    text: str
    subwords: tuple[str, ...]
    log_probabilities: np.ndarray[Any, np.dtype[Any]]
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


class TextScorer:
    """A masked language model with its tokenizer, for pseudo-log-likelihoods.

    Texts longer than ``max_length`` are read in windows; each subword is scored once, in the window
    in which its word is further from the cut edge.

    Args:
        model: Hub id, short name or folder of a masked language model, or of a run of ``pretrain``.
        method: ``token`` or ``word``.
        max_length: Tokens of the longest sequence; by default the model's limit, at most 512.
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
        method: ScoringMethod = "token",
        max_length: int | None = None,
        max_tokens: int | None = None,
        **options: Any,
    ) -> None:
        if method not in ("token", "word"):
            raise UserError(f"method {method!r}: legal are token and word.")
        self.method = method
        name = str(find_saved_model(str(model), options.get("revision")) or model)
        self.device = make_accelerator().device
        try:
            self.model = MaskedLanguageModel.from_pretrained(name, new_head=False, **options)
        except MissingHead as error:
            raise UserError(
                f"model {str(model)!r} has no trained masked-LM head, so its probabilities mean "
                "nothing: name a masked language model, or train one with finetune pretrain."
            ) from error
        self.model.to(self.device).eval()
        self.tokenizer = SubwordTokenizer.from_pretrained(name, **options)
        self.mask: int = self.tokenizer.tokenizer.mask_token_id
        self.max_length = self.tokenizer.max_length(self.model.encoder.max_length, max_length)
        self.max_tokens = max_tokens

    def score(self, texts: Iterable[str]) -> Iterator[TextScore]:
        """Yield the score of each text, in order and in bounded memory."""
        names = self.tokenizer.tokenizer.convert_ids_to_tokens
        unknown: Any = self.tokenizer.unknown
        options: dict[str, Any] = {"device": self.device, "max_tokens": self.max_tokens}
        options |= {"targets": _targets, "decode": lambda scores, _: scores.loss.cpu().tolist()}
        for chunk in chunks(texts, TEXTS, len, CHARACTERS):
            subwords = self.tokenizer.subwords_with_words(chunk)
            copies = chain.from_iterable(self._masked_copies(*words) for words in subwords)
            values: list[float] = []
            for part in chunks(copies):
                encoded = EncodedExamples.of([[copy] for copy in part], ids=self.tokenizer.id_dtype)
                losses = values_of_examples(self.model, encoded, **options)
                values += [-loss for _, (loss,) in sorted(losses)]
            ends = np.cumsum([len(ids) for ids, _ in subwords])
            of_texts = np.split(np.array(values), ends[:-1])
            for text, (ids, _), of_text in zip(chunk, subwords, of_texts, strict=True):
                yield TextScore(text, tuple(names(ids)), of_text, ids.count(unknown))

    def _masked_copies(self, ids: list[int], starts: list[int]) -> Iterator[TokenSequence]:
        room = self.tokenizer.room(self.max_length)
        bounds = [*starts, len(ids)]
        # of words, and of parts of words longer than a window
        edges = [edge for a, b in pairwise(bounds) for edge in range(a, b, room)] + [len(ids)]
        text_windows = windows(np.diff(edges).tolist(), room, room // 4) if ids else []
        word_end = np.repeat(bounds[1:], np.diff(bounds)).tolist()
        for window in text_windows:
            start, end, first, last = (edges[index] for index in window)
            for index in range(first, last):
                masked_end = min(word_end[index], end) if self.method == "word" else index + 1
                masks = [self.mask] * (masked_end - index)
                built = self.tokenizer.build([*ids[start:index], *masks, *ids[masked_end:end]])
                position = len(self.tokenizer.single.prefix) + index - start
                target = {"position": [position], "token": [ids[index]]}
                yield TokenSequence(0, *built, target=target)


def _targets(copies: FlatSequences) -> dict[str, torch.Tensor]:
    rows = copies.targets or {}
    position, token = (rows[name].values.astype(np.int64) for name in ("position", "token"))
    begins = copies.ids.offsets[:-1]
    return {"position": torch.from_numpy(begins + position), "token": torch.from_numpy(token)}


def score_texts(command: Perplexity) -> None:
    """Score all texts, write a line for each, and print the measures of the corpus."""
    if command.text:
        rows = [TextExample(index, text) for index, text in enumerate(command.text)]
    else:
        rows = list(read_text_file(command.file or "", labels=False, **command.reading))
    if not rows:
        raise UserError(f"--file {command.file}: there is no text in it.")
    scorer = TextScorer(command.model, method=command.method, **command.encoder.keywords())
    scores = list[TextScore]()
    with Reporter(quiet=command.format != "table") as reporter:
        reporter.start("scoring", sum(len(row.texts()) for row in rows), unit="text")
        for score in scorer.score(text for row in rows for text in row.texts()):
            scores.append(score)
            reporter.update(len(scores))
    by_row = iter(scores)
    lines = [_line(row, *islice(by_row, len(row.texts()))) for row in rows]
    if command.out:
        write_rows(command.out, lines)
    measures: dict[str, float] = {
        "texts": len(scores),
        "subwords": sum(len(score.subwords) for score in scores),
        "words": sum(len(split_words(score.text)[0]) for score in scores),
        "characters": sum(len(score.text) for score in scores),
        "unknown": sum(score.num_unknown for score in scores),
    }
    log_likelihood = sum((score.log_likelihood for score in scores), 0.0)
    per_subword = log_likelihood / max(1, measures["subwords"])
    measures |= {"log_likelihood": log_likelihood, "pseudo_perplexity": math.exp(-per_subword)}
    for unit in ("word", "character"):  # which compare models of different vocabularies
        number = max(1, measures[f"{unit}s"])
        measures[f"bits_per_{unit}"] = -log_likelihood / math.log(2) / number
    if right := [line["label"] == "first" for line in lines if "label" in line]:
        measures |= {"pairs": len(right), "accuracy": sum(right) / len(right)}
    command.note(f"--method {command.method}")
    tables: list[Any] = []
    if command.text:
        by_text = [(score.text, score.log_likelihood, score.perplexity) for score in scores]
        tables = [("texts", ("text", "log-likelihood", "pseudo-perplexity"), by_text)]
    values = [(name.replace("_", " "), value) for name, value in measures.items()]
    tables.append(("measures" if tables else "", ("measure", "value"), values))
    print_tables(command.format, *tables)


def _line(row: TextExample, *scores: TextScore) -> dict[str, Any]:
    line: dict[str, Any] = {"id": row.id if row.key is None else row.key}
    likelihoods = [round(score.log_likelihood, 6) for score in scores]
    numbers = [len(score.subwords) for score in scores]
    if row.pair is None:
        line |= {"text": row.text, "log_likelihood": likelihoods[0], "num_subwords": numbers[0]}
        return line | {"num_words": len(split_words(row.text)[0]), "num_characters": len(row.text)}
    difference = scores[0].log_likelihood - scores[1].log_likelihood
    label = "first" if difference > 0 else "second" if difference < 0 else "tie"
    line |= {"label": label, "gold": "first", "text": row.text, "text_pair": row.pair}
    line["score"] = round(float(expit(abs(difference))), 6)
    return line | {"log_likelihood": likelihoods, "num_subwords": numbers}
