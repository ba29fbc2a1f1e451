"""A tiny head of every type in float64, and sequences that it reads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from finetune.models.heads.crf import CrfScores, CrfTagger, CrfTaggerConfig
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.heads.pretrained import (
    ChoiceScorer,
    QuestionAnswerer,
    SequenceClassifier,
    TokenClassifier,
)
from finetune.models.heads.relation_classifier import RelationClassifier
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.types import TokenSequence
from tests import tiny
from tests.models.parity import encodings, plain_inputs

LABELS = ["yes", "no", "perhaps"]
TAGS = ["O", "B-A", "I-A"]


class HeadCase(NamedTuple):
    """A type of head."""

    head: Any
    auto_class: Any = None
    """The class of transformers, if there is one."""
    labels: tuple[str, ...] = tuple(LABELS)
    settings: Mapping[str, Any] = MappingProxyType({})
    """Settings of the configuration of a head without a class of transformers."""
    words: str = "words"
    """What its sequences have as words: some words, two markers, or two texts."""
    without: tuple[str, ...] = ()
    """Families that transformers has no class for."""


SPAN = {"max_width": 5, "hidden": 24}
HEAD_TYPES = {
    "sequence": HeadCase(SequenceClassifier, AutoModelForSequenceClassification),
    "tagging": HeadCase(TokenClassifier, AutoModelForTokenClassification),
    "answers": HeadCase(
        QuestionAnswerer,
        AutoModelForQuestionAnswering,
        ("start", "end"),
        without=("eurobert", "nomic_bert"),
    ),
    "choice": HeadCase(
        ChoiceScorer,
        AutoModelForMultipleChoice,
        ("score",),
        without=("eurobert", "nomic_bert", "jina_embeddings_v3", "deberta"),
    ),
    "boundary": HeadCase(SpanClassifier, settings=SPAN),
    "ffn": HeadCase(SpanClassifier, settings=SPAN | {"representation": "ffn"}),
    "attention": HeadCase(SpanClassifier, settings=SPAN | {"representation": "attention"}),
    "multi-label": HeadCase(SpanClassifier, settings=SPAN | {"multi_label": True}),
    "crf": HeadCase(CrfTagger, labels=tuple(TAGS), settings={"scheme": "BIO"}),
    "relations": HeadCase(RelationClassifier, settings={"subject_id": 7}, words="markers"),
    "bi": HeadCase(PairClassifier, settings={"kind": "bi"}, words="texts"),
    "poly": HeadCase(PairClassifier, settings={"kind": "poly", "num_codes": 5}, words="texts"),
}
OF_TRANSFORMERS = [
    name for name, head_type in HEAD_TYPES.items() if head_type.auto_class is not None
]
OWN = [name for name, head_type in HEAD_TYPES.items() if head_type.auto_class is None]
OF_FAMILIES = [
    pytest.param(family, head_type, marks=() if i % len(OF_TRANSFORMERS) == j else pytest.mark.slow)
    for i, family in enumerate(tiny.FAMILIES)
    for j, head_type in enumerate(OF_TRANSFORMERS)
    if family not in HEAD_TYPES[head_type].without
]
"""Every family with every kind of head that transformers has for it; one of each is not slow."""


def head_of(
    name: str,
    family: str = "bert",
    *,
    dropout: float = 0.0,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """A head over a tiny encoder, with weights large enough to matter."""
    head_type, settings = HEAD_TYPES[name], settings or {}
    labels = {"id2label": dict(enumerate(head_type.labels))}
    labels |= {"label2id": {label: index for index, label in enumerate(head_type.labels)}}
    if head_type.auto_class is not None:
        changes["num_labels"] = len(head_type.labels)
        model = tiny.model(family, head_type.auto_class, dropout=dropout, **changes)
        return head_type.head(model.double(), **settings)
    if head_type.head is CrfTagger:
        auto_class = AutoModelForTokenClassification
        model = tiny.model(family, auto_class, num_labels=3, dropout=dropout, **changes)
        model.config.update(labels)
        inner = {"tagger": model.config.to_dict()}
        config = CrfTaggerConfig(**inner, **(head_type.settings | settings), **labels)
    else:
        model = tiny.model(family, dropout=dropout, **changes)
        own = {"dropout": dropout, **head_type.settings, **settings}
        config = head_type.head.config_class(encoder=model.config, **own, **labels)
    head = head_type.head(config, model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in tiny.head_parameters(head).items():
            if not name.startswith("tagger."):
                scale = 1.0 if name.startswith("crf.") else 0.3
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return head.eval().double()


def sequences_of(name: str, head: Any) -> list[TokenSequence]:
    """Sequences of mixed lengths with the words that a type of head reads."""
    made = encodings(head.encoder.model)
    words = HEAD_TYPES[name].words
    if words == "words":
        return words_of(made)
    found = []
    for encoding in made:
        length = len(encoding.input_ids)
        if words == "markers" and length >= 3:
            found.append([1, length - 1, length])
        elif words == "texts" and length >= 2:
            found.append([0, length // 2, length])
        else:
            found.append([])
    rows = zip(made, found, strict=True)
    return [TokenSequence(e.example, e.input_ids, e.token_type_ids, own) for e, own in rows if own]


def words_of(made: list[TokenSequence], seed: int = 0) -> list[TokenSequence]:
    """The same sequences with words: some of one piece, some long; some sequences with none."""
    chance = random.Random(seed)
    result = []
    for encoding in made:
        length = len(encoding.input_ids)
        inner = range(1, length - 1)
        count = min(len(inner), chance.randint(1, 9))
        starts = [*sorted(chance.sample(inner, count)), length - 1] if count else []
        result.append(
            TokenSequence(encoding.example, encoding.input_ids, encoding.token_type_ids, starts)
        )
    return result


def logits_of(output: Any) -> Tensor:
    """The logits of a head's output: of a CRF the emissions."""
    return output.emissions if isinstance(output, CrfScores) else output


def expected_logits(head_type: str, reference: Any, made: list[TokenSequence]) -> Tensor:
    """Return logits of the Hugging Face class on padded rows, for sequences or first subwords."""
    inputs = plain_inputs(reference, made)
    if head_type == "choice":  # questions of one choice
        inputs = {name: value[:, None] for name, value in inputs.items()}
    output = reference(**inputs)
    if head_type == "answers":
        logits = torch.stack([output.start_logits, output.end_logits], -1)
        return torch.cat([logits[n, : len(e.input_ids)] for n, e in enumerate(made)])
    logits = output.logits
    if head_type in ("sequence", "choice"):
        return logits
    rows = [logits[n, e.word_starts[:-1]] for n, e in enumerate(made) if e.word_starts]
    return torch.cat(rows)
