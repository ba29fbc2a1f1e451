"""Word tagging (named entities, parts of speech, chunks) over subword pieces.

Each word's tag is predicted from its pieces, y = softmax(W_K z_i) (Jurafsky & Martin, "Masked
Language Models", sequence labelling; Devlin et al., 2019, section 5.3). Gold stays on words: it is
spread to pieces for the loss, and pieces are brought back to words before anything is decided or
scored, so every word gets exactly one prediction whatever the tokenizer or the length. With
``--crf`` whole sequences of tags are scored (``finetune.tasks.crf``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from finetune.config.tasks import TagConfig
from finetune.data import Dataset
from finetune.data.tag_schemes import (
    continuation_tag,
    convert_tags,
    detect_scheme,
    tag_names,
    tags_to_spans,
)
from finetune.evaluation.calibration import fit_on_words, probabilities_of, word_calibration_scores
from finetune.evaluation.metrics import tagging_scores
from finetune.models.heads.crf import CrfScores
from finetune.models.heads.crf_tagger import CrfTagger
from finetune.models.heads.token_classification import TokenTagger
from finetune.preprocessing.context import in_documents
from finetune.preprocessing.encodings import Ragged
from finetune.tasks.crf import chain_loss, chain_target, chain_targets, decode_chains, whole_chain
from finetune.tasks.viterbi import Transitions, viterbi, word_scores
from finetune.tasks.word_task import WordTask
from finetune.types import (
    IGNORED,
    Batch,
    Encoding,
    Partial,
    Span,
    TokenExample,
    TokenPrediction,
    UserError,
    shortened,
)


class TokenClassificationTask(WordTask):
    """One tag for every word."""

    name = "tag"
    config: TagConfig

    @classmethod
    def prepare(cls, config: TagConfig, data: Dataset) -> Dataset:
        """Leave out sentences without gold from train and validation; refuse nested spans."""
        data, splits = in_documents(config, data), {}
        for split, examples in data.splits.items():
            nested = next((e for e in examples if e.tags is None and e.spans is not None), None)
            if nested is not None:
                raise UserError(
                    f"{nested.where}: spans overlap or nest, and one tag for a word cannot say "
                    "that: use `finetune ner`, or keep the outermost spans only."
                )
            labelled = [example for example in examples if example.tags is not None]
            if not labelled and not split.startswith("test"):
                raise UserError(f"{data.name}: no sentence of {split} has tags.")
            splits[split] = labelled or examples
        return replace(data, splits=splits)

    @classmethod
    def derive(cls, config: TagConfig, data: Dataset) -> tuple[list[str], dict[str, Any]]:
        """The tags to predict and the scheme: spans of the training data, or its tags as is."""
        train = [example.tags for example in data.splits["train"]]
        source = detect_scheme(train)
        if source is None:
            if config.scheme != "auto":
                raise UserError(
                    f"--scheme {config.scheme}: the tags of {data.name} are no spans in a "
                    f"B-/I- scheme ({shortened(sorted({t for tags in train for t in tags}))}): "
                    "leave --scheme out."
                )
            labels = sorted({tag for tags in train for tag in tags})
            if len(labels) < 2:
                raise UserError(
                    f"{data.name}: every word of train is tagged {shortened(labels)!r}, so there "
                    "is nothing to learn. Name the column with --columns tags=COLUMN."
                )
            return labels, {"scheme": None, "source": None}
        scheme = "BIO" if config.scheme == "auto" else config.scheme
        types = sorted({s.label for tags in train for s in tags_to_spans(tags, source)})
        return tag_names(types, scheme), {"scheme": scheme, "source": source}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.scheme: str | None = self.extra["scheme"]
        self.source: str | None = self.extra["source"]
        self.transitions = Transitions(list(self.labels), self.scheme)
        self.continuations = [
            self.labels.id(tag) if tag in self.labels else index
            for index, tag in enumerate(continuation_tag(name, self.scheme) for name in self.labels)
        ]
        self.all_pieces = self.config.label_subwords == "all" or self.config.word_score != "first"
        if self.config.word_score != "first" and self.config.label_subwords == "first":
            self.notes.append(
                f"--word-score {self.config.word_score} reads pieces that --label-subwords first "
                "does not train: --label-subwords all goes better with it"
            )
        self._note_unseen()

    def _note_unseen(self) -> None:
        for split in self.splits[1:]:
            tags = {tag for example in self.read(split) for tag in example.tags or ()}
            unseen = sorted(
                {t.split("-", 1)[-1] for t in tags} - {t.split("-", 1)[-1] for t in self.labels}
                if self.scheme
                else tags - set(self.labels)
            )
            if unseen:
                self.notes.append(
                    f"{shortened(unseen)} in {split} never occurs in train: cannot be predicted "
                    "and counts as missed"
                )

    @property
    def metric(self) -> str:
        """The metric that selects the best model: span F1, or accuracy where tags are no spans."""
        return self.config.metric or ("span_f1_conll" if self.scheme else "accuracy")

    def sequences(self, examples: Sequence[TokenExample]) -> list[list[Encoding]]:
        """The windows of each sentence; together they answer for every word once."""
        result = []
        for example, windows in zip(examples, self.windows(examples, own=True), strict=True):
            tags = self._targets(example)
            if tags is not None:
                windows = [replace(w, target=self._target(w, tags)) for w in windows]
            result.append(windows)
        return result

    def _target(self, window: Encoding, tags: list[int]) -> dict[str, Sequence[float]]:
        """The targets of a window's own words, from those of all words of its sentence."""
        end = window.first_word + window.num_words
        own = tags[window.first_word : end]
        if self.config.crf:
            return chain_target(own, window.first_word == 0, end == len(tags))
        return {"tag": self._spread(window, own)}

    def _targets(self, example: TokenExample) -> list[int] | None:
        if example.tags is None:
            return None
        tags = example.tags
        if self.scheme is not None:
            tags = convert_tags(tags, self.source, self.scheme)
        return [self.labels.id(tag) if tag in self.labels else IGNORED for tag in tags]

    def _spread(self, window: Encoding, targets: list[int]) -> list[int]:
        """Targets of the scored pieces: the first of each word, or all of them."""
        if not self.all_pieces:
            return targets
        spread: list[int] = []
        for (start, end), target in zip(pairwise(window.word_starts), targets, strict=True):
            follow = IGNORED
            if self.config.label_subwords == "all" and target != IGNORED:
                follow = self.continuations[target]
            spread += [target] + [follow] * (end - start - 1)
        return spread

    def targets_of(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """``tag`` [W], or [P] where all pieces are scored; more for the CRF (``chain_targets``)."""
        if self.config.crf:
            return chain_targets(rows, len(self.labels))
        return {"tag": torch.from_numpy(rows["tag"].values.astype(np.int64))}

    def head(self, name: str | Path | None = None) -> TokenTagger | CrfTagger:
        """The family's tagger, fresh on the configured encoder or loaded from a folder."""
        config = self.config
        if name is not None and config.crf:
            return CrfTagger.from_pretrained(name, batching=config.batching)
        pieces = "all" if self.all_pieces else "first"
        if name is not None:
            return TokenTagger.from_pretrained(
                str(name), labels=None, batching=config.batching, subwords=pieces
            )
        with self.beginning() as where:
            fresh: dict[str, Any] = {
                "labels": list(self.labels), "batching": config.batching, **where,
            }  # fmt: skip
            if config.crf:
                return CrfTagger.from_encoder(scheme=self.scheme, **fresh)
            return TokenTagger.from_pretrained(subwords=pieces, **fresh)

    def loss(
        self, logits: torch.Tensor | CrfScores, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Summed cross entropy of logits [W, C] or [P, C] and the number of labelled pieces, or
        summed negative log-likelihood of the tags under the CRF and the number of labelled words.
        """
        if isinstance(logits, CrfScores):
            return chain_loss(logits, batch)
        target = batch.targets["tag"]
        total = functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
        return total, (target != IGNORED).sum()

    def decode(self, logits: torch.Tensor | CrfScores, batch: Batch) -> list[Partial]:
        """Log-probabilities [words, C] of the words each sequence answers for, or their chain."""
        if isinstance(logits, CrfScores):
            return decode_chains(logits, batch)
        logs = logits.float().log_softmax(-1)
        if self.all_pieces:
            logs = word_scores(logs, batch.word_lengths, self.continuations, self.config.word_score)
        rows = logs.cpu().numpy()
        cuts = np.cumsum(batch.num_words)[:-1]
        parts = np.split(rows, cuts)
        return [Partial(*item) for item in zip(batch.example, batch.first_word, parts, strict=True)]

    def finish(self, example: TokenExample, partials: Sequence[Partial]) -> TokenPrediction:
        """One tag for each word, from the windows in order."""
        partials = sorted(partials, key=lambda partial: partial.first_word)
        logs = None
        if self.config.crf:
            ids, chances = whole_chain(partials)
        else:
            ids, chances, logs = self._each_word(partials)
        if len(ids) != len(example.words):
            raise RuntimeError(
                f"{example.where}: {len(ids)} predictions for {len(example.words)} words"
            )
        keep = self.config.calibrate != "none" and self.data is not None  # in training
        return self._answer(example, ids, chances, logs if keep else None)

    def _answer(
        self, example: TokenExample, ids: Sequence[int], chances: Sequence[float], logs: Any
    ) -> TokenPrediction:
        tags = tuple(self.labels[int(index)] for index in ids)
        scores = tuple(float(p) for p in chances)
        spans: tuple[Span, ...] | None = None
        span_scores: tuple[float, ...] = ()
        if self.scheme is not None:
            spans = tuple(tags_to_spans(tags, self.scheme))
            span_scores = tuple(float(np.mean(scores[s.start : s.end])) for s in spans)
        return TokenPrediction(
            example.id,
            example.words,
            tags,
            scores,
            spans,
            span_scores,
            example.offsets,
            example.text,
            logs,
        )

    def _each_word(self, partials: Sequence[Partial]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tag and probability of each word by its own scores, both [words], and those scores."""
        logs = np.concatenate([partial.values for partial in partials])
        constrained = self.config.decoding == "constrained"
        ids = viterbi(logs, self.transitions) if constrained else logs.argmax(-1)
        return ids, probabilities_of(ids, logs, self.extra.get("temperature", 1.0)), logs

    def calibrate(
        self, head: Any, gold: Sequence[TokenExample], predicted: Sequence[TokenPrediction]
    ) -> list[TokenPrediction] | None:
        """A temperature fitted on the words of validation, kept in the task."""
        if self.config.calibrate == "none":
            return None
        targets = [self._targets(example) for example in gold]
        self.extra["temperature"], note = fit_on_words(targets, [p.logs for p in predicted])
        self.notes.append(note)
        answers = []
        for example, prediction in zip(gold, predicted, strict=True):
            ids = [self.labels.id(tag) for tag in prediction.tags]
            chances = probabilities_of(ids, prediction.logs, self.extra["temperature"])
            answers.append(self._answer(example, ids, chances, prediction.logs))
        return answers

    def has_gold(self, example: TokenExample) -> bool:
        """Whether the sentence has tags."""
        return example.tags is not None

    def score(
        self, gold: Sequence[TokenExample], predicted: Sequence[TokenPrediction]
    ) -> dict[str, float]:
        """Span scores by name, or accuracy and macro F1 where tags are no spans."""
        scores = tagging_scores(
            [example.tags for example in gold],
            [prediction.tags for prediction in predicted],
            self.source,
            self.scheme,
        )
        if "temperature" in self.extra:
            tags = [example.tags for example in gold]
            if self.scheme is not None:
                tags = [convert_tags(each, self.source, self.scheme) for each in tags]
            scores |= word_calibration_scores(tags, predicted, self.labels)
        return scores
