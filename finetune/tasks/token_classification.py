"""Tagging of words: named entities, parts of speech, chunks.

Each word's tag is predicted from its subwords, y = softmax(W_K z_i) (Jurafsky & Martin, "Masked
Language Models", sequence labeling; Devlin et al., 2019, section 5.3), so every word gets exactly
one prediction. With ``--crf`` tags depend on each other (``finetune.models.heads.crf``). A window
of a long sentence is then a separate chain in training, and prediction joins the windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from finetune.config.tasks import TagConfig, WordConfig
from finetune.data import Dataset
from finetune.data.labels import numbered_order
from finetune.data.tag_schemes import convert_tags, tag_names, tags_to_spans
from finetune.data.tokens import tags_and_scheme, training_tags
from finetune.evaluation.calibration import fit_on_words
from finetune.models.heads.crf import CrfScores, CrfTagger, chain_loss
from finetune.models.heads.pretrained import TokenClassifier
from finetune.preprocessing.context import in_documents
from finetune.preprocessing.encodings import FlatSequences
from finetune.preprocessing.preparation import with_gold
from finetune.tasks.base import Fitted, Scores, Windows, WindowTargets
from finetune.tasks.class_losses import class_losses, class_shift, class_weights, loss_targets
from finetune.tasks.tag_decoding import TagDecoder
from finetune.tasks.word_task import WordState, WordTask
from finetune.types import (
    IGNORED,
    Batch,
    LabelSet,
    TokenExample,
    TokenPrediction,
    TokenSequence,
    UserError,
    abbreviated,
)


@dataclass(frozen=True, kw_only=True)
class TagState(WordState, TagDecoder):
    """The state of a tagging task; ``TagDecoder`` explains the fields of decoding."""

    config: TagConfig
    scheme: str | None
    source: str | None
    """The tag scheme of the training data."""
    class_weights: tuple[float, ...] | None = None
    class_shift: tuple[float, ...] | None = None
    """What logit adjustment adds to the logits."""

    @property
    def prediction_type(self) -> str:
        return "tags" if self.scheme else "plain tags"

    @property
    def constrained(self) -> bool:  # type: ignore[override]  # an attribute of what is restored
        return self.config.decoding == "constrained"

    @property
    def all_subwords(self) -> bool:  # type: ignore[override]
        return self.config.label_subwords == "all"


class TokenClassificationTask(WordTask):
    """One tag for every word."""

    state: TagState
    state_class = TagState
    reusable_head = TokenClassifier
    gold = attrgetter("tags")

    @classmethod
    def prepare(cls, config: WordConfig, data: Dataset) -> Dataset:
        for rows in data.splits.values():
            golds = rows.columns("tags", "spans", "where") if None in rows.column("tags") else ()
            for tags, spans, where in golds:
                if tags is None and spans is not None:
                    raise UserError(
                        f"{where}: spans overlap or nest, which one tag for each word cannot "
                        "represent: use `finetune ner`, or keep the outermost spans only."
                    )
        return with_gold(in_documents(config, data), "tags", "sentence", "tags.", "tags")

    @classmethod
    def derive(cls, config: TagConfig, data: Dataset) -> dict[str, Any]:
        """Derive the tags to predict, their scheme, and the class weights."""
        train = data.splits["train"]
        tags_of_words, source = tags_and_scheme(train)
        sentences: Iterable[Sequence[str]] = training_tags(train)
        scheme = None
        if source is None:
            labels = numbered_order(tags_of_words, data.label_order) or sorted(tags_of_words)
            if config.scheme != "auto":
                raise UserError(
                    f"--scheme {config.scheme}: the tags of {data.name} are not spans in a "
                    f"B-/I- scheme ({abbreviated(labels)}): leave --scheme out."
                )
        else:
            scheme = "BIO" if config.scheme == "auto" else config.scheme
            types = {span.label for tag in tags_of_words for span in tags_to_spans((tag,), source)}
            labels = tag_names(sorted(types), scheme)
            if {*labels} == {*data.label_order}:
                labels = list(data.label_order)
            sentences = (convert_tags(tags, source, scheme) for tags in sentences)
        fields: dict[str, Any] = {"labels": LabelSet(labels), "source": source, "scheme": scheme}
        if config.class_weights == "none" and config.loss == "ce":
            return fields
        counts = Counter(chain.from_iterable(sentences))
        weights = class_weights(config.class_weights, labels, counts, counts.total(), "single")
        shift = class_shift(config, labels, counts, counts.total())
        return fields | {"class_weights": weights, "class_shift": shift}

    def _window_targets(self, example: TokenExample, windows: Windows) -> WindowTargets:
        tags = self._gold_classes(example) or [IGNORED] * len(example.words)
        return [self._target(window, tags) for window in windows]

    def _target(self, window: TokenSequence, tags: list[int]) -> dict[str, Sequence[float]]:
        end = window.first_word + window.num_words
        core = tags[window.first_word : end]
        if self.state.config.crf:
            return {"tag": core, "begins": [window.first_word == 0], "ends": [end == len(tags)]}
        if not self.state.all_subwords:
            return {"tag": core}
        spread: list[int] = []
        continuations = self.state.continuations
        for (first, last), target in zip(pairwise(window.word_starts), core, strict=True):
            follow = target if target == IGNORED else continuations[target]
            spread += [target] + [follow] * (last - first - 1)
        return {"tag": spread}

    def _gold_classes(self, example: TokenExample) -> list[int] | None:
        if example.tags is None:
            return None
        tags: Sequence[str] = example.tags
        source, scheme = self.state.source, self.state.scheme
        if source is not None and scheme is not None:
            tags = convert_tags(tags, source, scheme)
        return self.state.labels.ids(tags, IGNORED)

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        """For a CRF also ``allowed`` [W, C], the possible tags of words, if some tag is unknown."""
        state, targets = self.state, super()._targets(sequences)
        if not state.config.crf:
            return targets | loss_targets(state.class_weights, state.class_shift)
        return targets | allowed_tags(targets["tag"], len(state.labels))

    def model(self, folder: str | Path | None = None) -> TokenClassifier | CrfTagger:
        if self.state.config.crf:
            scheme = self.state.scheme
            return self._load(CrfTagger.from_pretrained, folder, scheme=scheme)
        tagger = self._load(TokenClassifier.from_pretrained, folder)
        tagger.all_subwords = self.state.all_subwords
        return tagger

    def loss(
        self, logits: torch.Tensor | CrfScores, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the summed loss of logits [W, C], and the number of labeled subwords.

        With class weights it is their sum. For a CRF the loss is the negative log-likelihood, and
        the number that of labeled words.
        """
        if isinstance(logits, CrfScores):
            return chain_loss(logits, batch)
        targets = batch.targets
        losses, weights = class_losses(self.state.config, logits, targets["tag"], targets)
        return losses.sum(), weights.sum()

    def decode(self, logits: torch.Tensor | CrfScores, batch: Batch) -> list[Any]:
        """Compute log-probabilities [words, C] of the core words of each sequence, or a chain."""
        transitions = None
        if isinstance(logits, CrfScores):
            start, end, pairs = (part.detach().cpu().numpy() for part in logits[1:])
            logits, transitions = logits.emissions, (start, end, pairs)
        logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
        lengths = batch.word_lengths.cpu().numpy()
        return self.state.windows(logits.cpu().numpy(), batch.num_words, lengths, transitions)

    def fit(self, gold: Sequence[TokenExample], predicted: Sequence[TokenPrediction]) -> Fitted:
        temperature, note = fit_on_words(
            [self._gold_classes(example) for example in gold],
            [prediction.log_probabilities for prediction in predicted],
        )
        return {"temperature": temperature}, note

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any], **fields: Any) -> Scores:
        schemes = self.state.source, self.state.scheme
        return super()._score(gold, predicted, schemes=schemes)


def allowed_tags(tags: torch.Tensor, num_tags: int) -> dict[str, torch.Tensor]:
    """Make the target ``allowed`` [W, C], the possible tags of each word, if a tag is unknown."""
    unknown = tags == IGNORED
    if not unknown.any():
        return {}
    known = functional.one_hot(tags.masked_fill(unknown, 0), num_tags).bool()
    return {"allowed": known | unknown[:, None]}
