"""Word tagging (named entities, parts of speech, chunks) over subword pieces.

Each word's tag is predicted from its pieces, y = softmax(W_K z_i) (Jurafsky & Martin, "Masked
Language Models", sequence labelling; Devlin et al., 2019, section 5.3). Gold stays on words: it is
spread to pieces for the loss, and pieces are brought back to words before anything is decided or
scored, so every word gets exactly one prediction whatever the tokenizer or the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from finetune import align
from finetune.config import TagConfig
from finetune.data import Dataset, read_tokens
from finetune.decoding import Transitions, viterbi, word_scores
from finetune.heads.tagging import TokenTagger
from finetune.metrics import tagging_scores
from finetune.tasks.base import BaseTask
from finetune.types import (
    IGNORED,
    Batch,
    Encoding,
    Partial,
    Span,
    TokenExample,
    TokenPrediction,
    shortened,
)


class Tag(BaseTask):
    """One tag for every word."""

    name = "tag"
    words = True
    config: TagConfig

    @classmethod
    def open(cls, config: TagConfig) -> Dataset:
        """Read words with tags or flat spans."""
        return read_tokens(config.data, columns=config.column_map)

    @classmethod
    def prepare(cls, config: TagConfig, data: Dataset) -> Dataset:
        """Leave out sentences without gold from train and validation; refuse nested spans."""
        splits = {}
        for split, examples in data.splits.items():
            nested = next((e for e in examples if e.tags is None and e.spans is not None), None)
            if nested is not None:
                raise ValueError(
                    f"{nested.where}: spans overlap or nest, and one tag for a word cannot say "
                    "that: keep the outermost spans only, or use a span-based task."
                )
            labelled = [example for example in examples if example.tags is not None]
            if not labelled and not split.startswith("test"):
                raise ValueError(f"{data.name}: no sentence of {split} has tags.")
            splits[split] = labelled or examples
        return replace(data, splits=splits)

    @classmethod
    def derive(cls, config: TagConfig, data: Dataset) -> tuple[list[str], dict[str, Any]]:
        """The tags to predict and the scheme: spans of the training data, or its tags as is."""
        train = [example.tags for example in data.splits["train"]]
        source = align.detect_scheme(train)
        if source is None:
            if config.scheme != "auto":
                raise ValueError(
                    f"--scheme {config.scheme}: the tags of {data.name} are no spans in a "
                    f"B-/I- scheme ({shortened(sorted({t for tags in train for t in tags}))}): "
                    "leave --scheme out."
                )
            labels = sorted({tag for tags in train for tag in tags})
            if len(labels) < 2:
                raise ValueError(
                    f"{data.name}: every word of train is tagged {shortened(labels)!r}, so there "
                    "is nothing to learn. Name the column with --columns tags=COLUMN."
                )
            return labels, {"scheme": None, "source": None}
        scheme = "BIO" if config.scheme == "auto" else config.scheme
        types = sorted({s.label for tags in train for s in align.tags_to_spans(tags, source)})
        return align.tag_names(types, scheme), {"scheme": scheme, "source": source}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.scheme: str | None = self.extra["scheme"]
        self.source: str | None = self.extra["source"]
        self.transitions = Transitions(list(self.labels), self.scheme)
        self.continuations = [
            self.labels.id(tag) if tag in self.labels else index
            for index, tag in enumerate(
                align.continuation_tag(name, self.scheme) for name in self.labels
            )
        ]
        self.all_pieces = self.config.label_pieces == "all" or self.config.word_score != "first"
        if self.config.word_score != "first" and self.config.label_pieces == "first":
            self.notes.append(
                f"--word-score {self.config.word_score} reads pieces that --label-pieces first "
                "does not train: --label-pieces all goes better with it"
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

    def encode(self, examples: Sequence[TokenExample]) -> list[list[Encoding]]:
        """The windows of each sentence; together they answer for every word once."""
        room = self.max_length - self.tokenizer.single.num_special
        result = []
        pieces = self.tokenizer.word_pieces([example.words for example in examples])
        for example, words in zip(examples, pieces, strict=True):
            self.num_cut += sum(len(word) > room for word in words)
            words = [word[:room] for word in words]
            targets = self._targets(example)
            windows = align.windows([len(word) for word in words], room, self.overlap)
            result.append([self._window(example.id, words, window, targets) for window in windows])
        return result

    def _window(
        self, example: int, words: list[list[int]], window: align.Window, targets: list[int] | None
    ) -> Encoding:
        pieces = [piece for word in words[window.start : window.end] for piece in word]
        position = len(self.tokenizer.single.prefix)
        position += sum(len(word) for word in words[window.start : window.own_start])
        own = words[window.own_start : window.own_end]
        starts = [position]
        for word in own:
            starts.append(starts[-1] + len(word))
        target = None if targets is None else self._spread(own, targets[window.own_start :])
        return Encoding(example, *self.tokenizer.build(pieces), starts, window.own_start, target)

    def _targets(self, example: TokenExample) -> list[int] | None:
        if example.tags is None:
            return None
        tags = example.tags
        if self.scheme is not None:
            tags = align.convert_tags(tags, self.source, self.scheme)
        return [self.labels.id(tag) if tag in self.labels else IGNORED for tag in tags]

    def _spread(self, words: list[list[int]], targets: list[int]) -> list[int]:
        """Targets of the scored pieces: the first of each word, or all of them."""
        if not self.all_pieces:
            return targets[: len(words)]
        spread: list[int] = []
        for word, target in zip(words, targets, strict=False):
            follow = IGNORED
            if self.config.label_pieces == "all" and target != IGNORED:
                follow = self.continuations[target]
            spread += [target] + [follow] * (len(word) - 1)
        return spread

    def collate(self, encodings: Sequence[Encoding]) -> dict[str, torch.Tensor]:
        """``tag`` [W], or [P] where all pieces are scored."""
        if any(encoding.target is None for encoding in encodings):
            return {}
        return {"tag": torch.tensor([tag for e in encodings for tag in e.target], dtype=torch.long)}

    def head(self, name: str | Path | None = None) -> TokenTagger:
        """The family's tagger, fresh on the configured encoder or loaded from a folder."""
        pieces = "all" if self.all_pieces else "first"
        if name is not None:
            return TokenTagger.from_pretrained(
                str(name), labels=None, batching=self.config.batching, pieces=pieces
            )
        return TokenTagger.from_pretrained(
            self.config.model,
            labels=list(self.labels),
            revision=self.config.revision,
            batching=self.config.batching,
            trust_remote_code=self.config.trust_remote_code,
            pieces=pieces,
        )

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Summed cross entropy of logits [W, C] or [P, C], and the number of labelled pieces."""
        target = batch.targets["tag"]
        total = functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
        return total, (target != IGNORED).sum()

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[Partial]:
        """Log-probabilities [words, C] of the words each sequence answers for."""
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
        logs = np.concatenate([partial.values for partial in partials])
        if len(logs) != len(example.words):
            raise RuntimeError(
                f"{example.where}: {len(logs)} predictions for {len(example.words)} words"
            )
        constrained = self.config.decoding == "constrained"
        ids = viterbi(logs, self.transitions) if constrained else logs.argmax(-1)
        tags = tuple(self.labels[int(index)] for index in ids)
        scores = tuple(float(p) for p in np.exp(logs[np.arange(len(ids)), ids]))
        spans: tuple[Span, ...] | None = None
        span_scores: tuple[float, ...] = ()
        if self.scheme is not None:
            spans = tuple(align.tags_to_spans(tags, self.scheme))
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
        )

    def has_gold(self, example: TokenExample) -> bool:
        """Whether the sentence has tags."""
        return example.tags is not None

    def score(
        self, gold: Sequence[TokenExample], predicted: Sequence[TokenPrediction]
    ) -> dict[str, float]:
        """Span scores by name, or accuracy and macro F1 where tags are no spans."""
        return tagging_scores(
            [example.tags for example in gold],
            [prediction.tags for prediction in predicted],
            self.source,
            self.scheme,
        )
