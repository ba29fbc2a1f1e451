"""`finetune similarity`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.command import Command
from finetune.cli.options import (
    DataOptions,
    FormatOption,
    ModelArgument,
    OutOption,
    ReadingOptions,
    ResampleOptions,
)
from finetune.cli.output import check_output, open_records, print_tables, quiet_libraries, show
from finetune.config.options import COMMON, DATA, Help
from finetune.embeddings.cli.embed import layer_numbers
from finetune.embeddings.cli.options import VectorOptions
from finetune.runtime.records import RECORD_SUFFIXES
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.data.similarity_pairs import SimilarityData, SimilarityPair
    from finetune.embeddings.evaluation.standardization import Standardizer
    from finetune.embeddings.inference.cosines import Contexts, Cosines
    from finetune.inference.embed import Embedder

NUM_CONTEXTS = 5
"""Default number of contexts of a word."""


@dataclass(frozen=True, kw_only=True)
class Similarity(
    ModelArgument, VectorOptions, OutOption, FormatOption, ResampleOptions, DataOptions, Command
):
    """Compare texts, words, or words in context, and correlate their similarity with gold.

    Examples:
        finetune similarity minilm --data stsb
        finetune similarity minilm --data wic/ --threshold --out runs/wic
    """

    data: Annotated[str | None, DATA] = None
    """Pairs as for training (file, folder, hub data set), with or without gold. Columns `start`,
    `end`, `start_pair`, `end_pair` (characters) or `index`, `index_pair` (words between white
    space) name the compared word in each text; `source` or `subset` names subsets."""
    text: Annotated[str | None, DATA] = None
    """A text to compare with --pair, in place of --data."""
    pair: Annotated[str | None, DATA] = None
    """The second text."""
    split: Annotated[str | None, DATA] = None
    """Split of --data. Unset is the only one, else test."""
    unit: Annotated[Literal["auto", "text", "word"], COMMON] = "auto"
    """Compare texts, or words: those that the data name, else all words of a text, without special
    tokens. auto compares words where the data name them."""
    standardize: Annotated[str | None, Help("CORPUS", common=True)] = None
    """Standardize vectors over a corpus: its file or folder, or a standardizer (.safetensors). With
    --threshold write `train`, for the words of the training texts."""
    standardize_texts: int = 1000
    """Lines of the corpus to sample for --standardize."""
    save_standardizer: Annotated[str | None, Help("FILE")] = None
    """File (.safetensors) to save the fitted standardizer."""
    resamples: int = 1000
    window: int | None = None
    """Words to read on each side of a word in context. Unset reads all of them."""
    contexts: Annotated[str | None, DATA] = None
    """Corpus (file or folder): single words get the mean of their vectors in it."""
    num_contexts: int | None = None
    """Contexts of each single word, the first in the corpus. Unset is 5."""
    threshold: Annotated[bool, COMMON] = False
    """Choose the threshold on the cosine of two words in context that separates the two labels of
    the train split best, score all splits, and write a run folder, for `finetune predict`."""
    out: Annotated[str | None, COMMON] = None
    """File of predictions (.jsonl) for `finetune compare`: their label is the cosine, standardized
    with --standardize. With --threshold the run folder."""
    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Lengths, batches and source of the encoder."""

    def run(self) -> None:
        """Print the scores, or the cosines of pairs without gold."""
        if self.threshold:
            from finetune.embeddings.cli.threshold import fit_threshold

            quiet_libraries()
            fit_threshold(self)
            return
        self._check()
        data = self._read()
        in_context = data.pairs[0].targets is not None
        unit: Any = self.unit
        if unit == "auto":
            unit = "word" if in_context or self.contexts else "text"
        self._check_unit(unit, in_context)
        quiet_libraries()
        from finetune.embeddings.inference.cosines import compare_pairs
        from finetune.inference.embed import Embedder
        from finetune.runtime.progress import Reporter

        embedder = Embedder(
            self.model,
            unit=unit,
            layers=layer_numbers(self.layers),
            combine=self.combine,
            pooling=self.pooling,
            **self.encoder.keywords(),
        )
        standardizer = self._standardizer(embedder)
        contexts = self._contexts(data)
        cosines = compare_pairs(
            embedder,
            data.pairs,
            standardizer=standardizer,
            window=self.window,
            contexts=contexts,
            reporter=Reporter(quiet=self.format != "table"),
        )
        if number := embedder.num_windowed:
            limit = f"{number:,} over {embedder.max_length} tokens"
            show(f"inputs read in several windows: {limit}", error=True)
        if self.out is not None:
            self._write(data, cosines)
        record = self._record(data, cosines, unit)
        if self.format == "json":
            show(json.dumps(record, indent=2, ensure_ascii=False))
        else:
            self._print(record, data, cosines)

    def _check(self) -> None:
        if (self.data is None) == (self.text is None):
            raise UserError("similarity needs either --data, or --text and --pair.")
        if (self.text is None) != (self.pair is None):
            raise UserError("--text and --pair belong together: give both texts.")
        if self.resamples < 1 or self.standardize_texts < 2:
            raise UserError("--resamples must be 1 or more, --standardize-texts 2 or more.")
        if self.save_standardizer is not None:
            if self.standardize is None or self.standardize.endswith(".safetensors"):
                raise UserError("--save-standardizer needs --standardize CORPUS to fit to.")
            if not self.save_standardizer.endswith(".safetensors"):
                raise UserError(
                    f"--save-standardizer {self.save_standardizer}: write a name with "
                    "the suffix .safetensors."
                )
            check_output(self.save_standardizer, [Path(self.standardize)])
        if self.out is not None:
            if self.combine == "none":
                raise UserError("--out needs one cosine of a pair: write --combine mean or sum.")
            inputs = (self.data, self.standardize, self.contexts)
            check_output(self.out, [Path(path) for path in inputs if path], RECORD_SUFFIXES)
        if self.num_contexts is not None and (self.num_contexts < 1 or self.contexts is None):
            raise UserError("--num-contexts must be 1 or more, and needs --contexts CORPUS.")

    def _check_unit(self, unit: str, in_context: bool) -> None:
        """Raise UserError for options that the unit ignores."""
        if self.window is not None and (self.window < 0 or not in_context):
            raise UserError("--window must be 0 or more, and needs data that name words in texts.")
        if unit == "text" and (self.contexts is not None or self.window is not None):
            raise UserError("--contexts and --window are for words: write --unit word.")
        if in_context and self.contexts is not None:
            raise UserError(
                "--contexts is for single words, and these data have contexts: leave it out."
            )

    def _read(self) -> SimilarityData:
        from finetune.embeddings.data.similarity_pairs import (
            SimilarityData,
            SimilarityPair,
            read_similarity,
        )
        from finetune.types import TextExample

        if self.data is None:
            example = TextExample(0, self.text or "", self.pair, where="--text")
            return SimilarityData("--text", "", [SimilarityPair(example)])
        data = read_similarity(self.data, split=self.split, **self.reading)
        for note in data.notes:
            show(note, error=True)
        return data

    def _lines(self, corpus: str) -> Iterator[str]:
        from finetune.data.running_text import text_sources

        return (line for source in text_sources(corpus, self.encoding) for line in source.lines())

    def _standardizer(self, embedder: Embedder) -> Standardizer | None:
        if self.standardize is None:
            return None
        from finetune.embeddings.evaluation.standardization import Standardizer
        from finetune.embeddings.inference.cosines import fit_standardizer

        if self.standardize.endswith(".safetensors"):
            return Standardizer.load(self.standardize)
        lines = self._lines(self.standardize)
        found = fit_standardizer(embedder, lines, most=self.standardize_texts, seed=self.seed)
        show(
            f"standardized over {quantity(found.count, embedder.unit)} of {self.standardize}"
            + (f"; constant dimensions: {found.num_constant}" if found.num_constant else ""),
            error=True,
        )
        if self.save_standardizer is not None:
            found.save(self.save_standardizer)
        return found

    def _contexts(self, data: SimilarityData) -> Contexts | None:
        if self.contexts is None:
            return None
        from finetune.embeddings.inference.cosines import compared_words, find_contexts, words_key

        words = {words_key(each) for pair in data.pairs for each in compared_words(pair)}
        found = find_contexts(self._lines(self.contexts), words, self.num_contexts or NUM_CONTEXTS)
        missing = sum(each not in found for each in words)
        show(
            f"{missing:,} of {quantity(len(words), 'word')} do not occur in {self.contexts}"
            + ("; they are read alone" if missing else ""),
            error=True,
        )
        return found

    def _write(self, data: SimilarityData, cosines: list[Cosines]) -> None:
        """Write the cosines as predictions with their gold."""
        from finetune.evaluation.predictions import to_row
        from finetune.types import TextPrediction

        with open_records(self.out) as write:
            for number, pair in enumerate(data.pairs):
                predicted = TextPrediction(pair.example.id, float(cosines[-1].values[number]))
                write(to_row(predicted, _named(pair)) | _details(pair))
        show(f"wrote {self.out}: {quantity(len(data.pairs), 'pair')}", error=True)

    def _record(self, data: SimilarityData, cosines: list[Cosines], unit: str) -> dict[str, Any]:
        """Return all results as JSON values."""
        from finetune.embeddings.evaluation import similarity

        gold, subsets = data.gold, data.subsets
        views = []
        for each in cosines:
            predicted = each.values.tolist()
            view: dict[str, Any] = {
                "layer": each.layer,
                "standardized": each.standardized,
                "expected_cosine": each.expected,
            }
            if gold is None or len(gold) < similarity.LEAST_PAIRS:
                view["cosines"] = predicted
            else:
                scores = similarity.correlations(
                    gold, predicted, subsets, num_resamples=self.resamples, seed=self.seed
                )
                view["scores"] = similarity.records(scores)
                if subsets is not None:
                    columns = ("subset", "pairs", "spearman", "pearson")
                    rows = similarity.scores_by_subset(gold, predicted, subsets)
                    view["subsets"] = [dict(zip(columns, row, strict=True)) for row in rows]
            views.append(view)
        return {
            "model": self.model,
            "data": self.data,
            "split": data.split or None,
            "unit": unit,
            "layers": self.layers,
            "combine": self.combine,
            "pooling": self.pooling,
            "standardize": self.standardize,
            "pairs": len(data.pairs),
            "resamples": self.resamples,
            "seed": self.seed,
            "results": views,
        }

    def _print(self, record: dict[str, Any], data: SimilarityData, cosines: list[Cosines]) -> None:
        views = record["results"]
        if "scores" not in views[0]:
            names = ("cosine" if len(views) == 1 else _name(view) for view in views)
            rows = [
                (*(float(each.values[n]) for each in cosines), _shown(pair, 0), _shown(pair, 1))
                for n, pair in enumerate(data.pairs)
            ]
            print_tables(self.format, ("", (*names, "first", "second"), rows))
            return
        split = f" ({data.split})" if data.split else ""
        self.note(
            f"{quantity(len(data.pairs), 'pair')} of {record['data']}{split}, "
            f"{record['resamples']:,} resamples, seed {record['seed']}"
        )
        columns: list[str] = ["vectors"]
        for metric in views[0]["scores"]:
            intervals = () if self.format == "table" else (f"{metric} low", f"{metric} high")
            columns += [metric, *intervals]
        scores = [
            (_name(view), *self._cells(view["scores"].values()), view["expected_cosine"])
            for view in views
        ]
        tables: list[Any] = [("", (*columns, "expected cosine"), scores)]
        for view in views:
            if "subsets" in view:
                rows = [tuple(row.values()) for row in view["subsets"]]
                tables.append((f"{_name(view)}, by subset", tuple(view["subsets"][0]), rows))
        print_tables(self.format, *tables)

    def _cells(self, scores: Iterable[dict[str, float]]) -> Iterator[Any]:
        """Yield scores with their intervals: each is one text for reading, else three numbers."""
        for score in scores:
            if self.format == "table":
                yield "{value:.4f} ({low:.4f} to {high:.4f})".format(**score)
            else:
                yield from (score[name] for name in ("value", "low", "high"))


def _named(pair: SimilarityPair) -> Any:
    """Return the example, without gold that is a name, which cosines do not predict."""
    example = pair.example
    return example if isinstance(example.label, float) else replace(example, label=None)


def _details(pair: SimilarityPair) -> dict[str, Any]:
    """Return the additional fields of a pair in its line of predictions."""
    details: dict[str, Any] = {} if pair.subset is None else {"subset": pair.subset}
    if pair.targets is not None:
        details["targets"] = [list(target) for target in pair.targets]
    if isinstance(pair.example.label, str):
        details["name"] = pair.example.label
    return details


def _name(view: dict[str, Any]) -> str:
    kind = "standardized" if view["standardized"] else "raw"
    return kind if view["layer"] is None else f"layer {view['layer']}, {kind}"


def _shown(pair: SimilarityPair, side: int) -> str:
    text = pair.texts[side]
    if pair.targets is not None:
        start, end = pair.targets[side]
        return text[start:end]
    return text if len(text) <= 40 else text[:39] + "…"
