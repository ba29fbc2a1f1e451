"""`finetune perplexity`."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from finetune.cli.command import Command
from finetune.cli.options import (
    FormatOption,
    InputOptions,
    OutOption,
    ReadingOptions,
    ResampleOptions,
)
from finetune.cli.output import (
    check_output,
    inputs_of,
    open_records,
    print_tables,
    quiet_libraries,
    show,
)
from finetune.config.options import argument
from finetune.config.tasks import column_map
from finetune.config.values import MOST_RESAMPLES, require_count
from finetune.runtime.records import RECORD_SUFFIXES
from finetune.types import TextExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.pretraining.perplexity import CorpusScore, TextScore, TextScorer


@dataclass(frozen=True, kw_only=True)
class Perplexity(OutOption, FormatOption, ResampleOptions, InputOptions, Command):
    """Score texts, or minimal pairs of texts, with a masked language model.

    Examples:
        finetune perplexity roberta-base --file texts.txt
        finetune perplexity roberta-base --file pairs.jsonl --pairs --out scores.jsonl
    """

    model: Annotated[str, argument("MODEL")]
    """Model name, folder, or folder of a run of `pretrain`."""
    pairs: bool = False
    """Compare the two texts of each row: the first should be more likely. Unset compares them if
    the file has usual columns of pairs."""
    method: str = "token"
    """Mask each subword in a copy of the text (`token`), mask the later ones of its word too
    (`word`), or mask every K-th one in K copies, an estimate (`every:K`)."""
    out: str | None = None
    """File (.jsonl) with a line for each text; for pairs, predictions for `finetune compare`."""
    subwords: bool = False
    """Add the log-probability of each subword to the lines of --out."""
    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Lengths, batches and source of the encoder."""

    def run(self) -> None:
        """Score all texts, write their lines and print the measures of the whole."""
        self._check()
        examples = self._examples()
        if (first := next(examples, None)) is None:
            raise UserError(f"--file {self.file}: there is no text in it.")
        examples = chain([first], examples)
        quiet_libraries()
        from finetune.pretraining.perplexity import CorpusScore, TextScorer

        scorer = TextScorer(self.model, method=self.method, **self.encoder.keywords())
        corpus, correct, shown = CorpusScore(), list[bool](), list[tuple[Any, ...]]()
        opened = open_records(self.out) if self.out else contextlib.nullcontext()
        with opened as write:
            for scores in self._scored(scorer, examples):
                for score in scores:
                    corpus.add(score)
                    if self.text:
                        shown.append((score.text, score.log_likelihood, score.perplexity))
                row = self._row(scores[0]) if len(scores) == 1 else self._pair_row(*scores)
                if len(scores) == 2:
                    correct.append(row["label"] == row["gold"])
                if write is not None:
                    write(row)
        if number := scorer.num_windowed:
            limit = f"{number:,} over {scorer.max_length} tokens"
            show(f"texts read in several windows: {limit}", error=True)
        record = self._record(corpus, correct)
        if self.format == "json":
            show(json.dumps(record, indent=2))
        else:
            self._print(record, shown)

    def _check(self) -> None:
        self.require_input("perplexity")
        if self.text and self.pairs and len(self.text) != 2:
            raise UserError(f"--pairs compares two texts, not {len(self.text)}.")
        require_count("--resamples", self.resamples, most=MOST_RESAMPLES)
        if self.subwords and self.out is None:
            raise UserError("--subwords adds to the lines of --out: name that file.")
        if self.out is not None:
            check_output(self.out, inputs_of(self.file), RECORD_SUFFIXES)

    def _examples(self) -> Iterator[TextExample]:
        from finetune import data

        if self.text and self.pairs:
            yield TextExample(0, self.text[0], self.text[1], where="--text")
        elif self.text:
            yield from (TextExample(index, text) for index, text in enumerate(self.text))
        else:
            yield from data.read_text_file(
                self.file or "",
                columns=column_map(self.columns),
                pair=self.pairs or None,
                labels=False,
                encoding=self.encoding,
            )

    def _scored(
        self, scorer: TextScorer, examples: Iterable[TextExample]
    ) -> Iterator[list[TextScore]]:
        """Yield the scores of the one or two texts of each row, and show the progress."""
        from finetune.runtime.progress import Reporter

        is_stream = self.file is not None and not Path(self.file).is_file()
        total = 0 if is_stream else sum(1 for _ in self._examples())
        sizes: list[int] = []

        def texts() -> Iterator[TextExample]:
            for each in examples:
                key = each.id if each.key is None else each.key
                sizes.append(1 if each.pair is None else 2)
                yield TextExample(each.id, each.text, key=key)
                if each.pair is not None:
                    yield TextExample(each.id, each.pair, key=key)

        with Reporter(quiet=self.format != "table" or is_stream) as reporter:
            reporter.start("scoring", total, unit="row")
            row: list[TextScore] = []
            done = 0
            for score in scorer.score(texts()):
                row.append(score)
                if len(row) == sizes[done]:
                    yield row
                    row, done = [], done + 1
                    reporter.update(done)

    def _row(self, score: TextScore) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": score.id,
            "text": score.text,
            "log_likelihood": round(score.log_likelihood, 6),
            "num_subwords": len(score.subwords),
            "num_words": score.num_words,
            "num_characters": len(score.text),
        }
        if self.subwords:
            row["subwords"] = score.subwords
            row["log_probabilities"] = score.log_probabilities.round(6).tolist()
        return row

    def _pair_row(self, first: TextScore, second: TextScore) -> dict[str, Any]:
        """Return the prediction for a pair; gold is the first text."""
        difference = first.log_likelihood - second.log_likelihood
        probability = 1 / (1 + math.exp(-max(-700.0, min(700.0, difference))))
        label = "first" if difference > 0 else "second" if difference < 0 else "tie"
        sides = self._row(first), self._row(second)
        row: dict[str, Any]
        row = {
            "id": first.id,
            "label": label,
            "gold": "first",
            "text": first.text,
            "text_pair": second.text,
            "score": round(max(probability, 1 - probability), 6),
        }
        for name in ("log_likelihood", "num_subwords", "subwords", "log_probabilities"):
            if name in sides[0]:
                row[name] = [side[name] for side in sides]
        return row

    def _record(self, corpus: CorpusScore, correct: list[bool]) -> dict[str, Any]:
        record: dict[str, Any] = {
            "method": self.method,
            "estimate": self.method.startswith("every"),
            "texts": corpus.texts,
            "subwords": corpus.subwords,
            "words": corpus.words,
            "characters": corpus.characters,
            "unknown": corpus.unknown,
            "log_likelihood": corpus.log_likelihood,
            **corpus.measures(),
        }
        if correct:
            record["pairs"] = len(correct)
            record["accuracy"] = accuracy(correct, self.resamples, self.seed)
        return record

    def _print(self, record: dict[str, Any], shown: list[tuple[Any, ...]]) -> None:
        how = "an estimate, " if record["estimate"] else ""
        self.note(
            f"{quantity(record['texts'], 'text')}, {quantity(record['subwords'], 'subword')}, "
            f"{quantity(record['words'], 'word')} ({how}--method {self.method})"
        )
        rows = [
            ("pseudo-perplexity of a subword", record["pseudo_perplexity"]),
            ("bits per word", record["bits_per_word"]),
            ("bits per character", record["bits_per_character"]),
        ]
        if "accuracy" in record and self.format != "table":
            names = ("accuracy", "accuracy low", "accuracy high")
            rows += zip(names, record["accuracy"], strict=True)
        tables: list[Any] = [("", ("measure", "value"), rows)]
        if shown:
            tables.insert(0, ("", ("text", "log-likelihood", "pseudo-perplexity"), shown))
        print_tables(self.format, *tables)
        if record["unknown"]:
            self.note(
                f"{quantity(record['unknown'], 'subword')} unknown to the model: they get the "
                "probability of the unknown token, which is too high"
            )
        if "accuracy" in record:
            value, low, high = record["accuracy"]
            self.note(
                f"accuracy {value:.4f} ({low:.4f} to {high:.4f}, 95 % interval): the first of "
                f"{quantity(record['pairs'], 'pair')} is more likely"
            )


def accuracy(correct: list[bool], resamples: int, seed: int) -> tuple[float, float, float]:
    """Return the fraction of correct decisions and the bootstrap interval."""
    import numpy as np

    from finetune.evaluation.metrics import mean
    from finetune.evaluation.resampling import Counts
    from finetune.evaluation.significance import estimate

    rows = np.column_stack([np.array(correct, dtype=float), np.ones(len(correct))])
    counts = [Counts(rows, mean)]
    found = estimate(counts, num_resamples=resamples, seed=seed, limits=(0.0, 1.0))
    return found.value, found.low, found.high
