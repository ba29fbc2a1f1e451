"""The tagger with a CRF: every family, saved and loaded; chains of tags in loss and answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from finetune.config.tasks import TagConfig
from finetune.models.heads.crf import (
    CrfScores,
    CrfTagger,
    CrfTaggerConfig,
    chain_loss,
    log_partition,
    path_score,
)
from finetune.models.heads.pretrained import TokenClassifier
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import FlatSequences
from finetune.tasks.tag_decoding import TagDecoder
from finetune.tasks.token_classification import allowed_tags
from finetune.training.optimizer import parameter_groups
from finetune.types import IGNORED, Batch, TokenExample, TokenSequence, WindowOutput
from tests import fixtures as fx
from tests import tiny
from tests.models.heads import TAGS, head_of
from tests.models.test_crf import trained_like

# The model


def test_the_start_is_the_same_with_and_without_a_crf(tmp_path: Path) -> None:
    source = str(fx.checkpoint())
    torch.manual_seed(3)
    plain = TokenClassifier.from_pretrained(source, labels=TAGS)
    torch.manual_seed(3)
    head = CrfTagger.from_pretrained(source, labels=TAGS, scheme="BIO")
    own = dict(head.tagger.named_parameters())
    assert all(torch.equal(own.pop(name), value) for name, value in plain.named_parameters())
    assert not own and {"crf.start", "crf.end", "crf.transitions"} < set(tiny.head_parameters(head))
    head.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["model_type"], config["scheme"]) == ("crf-tagger", "BIO")
    assert config["id2label"] == config["tagger"]["id2label"] == {"0": "O", "1": "B-A", "2": "I-A"}
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "saved"), CrfTaggerConfig)


def test_transitions_have_a_rate_of_their_own() -> None:
    head = head_of("crf", layers=3)
    config = TagConfig(crf=True, lr=1e-4, head_lr=2e-3, layer_decay=0.5)
    names = {id(weight): name for name, weight in head.named_parameters()}
    groups = parameter_groups(head, config)
    found = {names[id(w)]: (g["peak"], g["weight_decay"]) for g in groups for w in g["params"]}
    assert found.keys() == set(names.values())
    own = {name: kind for name, kind in found.items() if name.startswith("crf.")}
    assert own == dict.fromkeys(("crf.start", "crf.end", "crf.transitions"), (0.05, 0.0))
    assert found["tagger.model.classifier.weight"] == (2e-3, 0.01)
    assert {kind[0] for name, kind in found.items() if "bert" in name} == {
        1e-4 * 0.5**n for n in range(1, 5)
    }


# Its chains of tags


def target_of(tags: list[int], ends: bool, example: int = 0, first_word: int = 0) -> TokenSequence:
    starts = list(range(1, len(tags) + 2))
    ids = [5] * (len(tags) + 2)
    target = {"tag": tags, "begins": [first_word == 0], "ends": [ends]}
    return TokenSequence(example, ids, None, starts, first_word, target)


def targets_of(made: list[TokenSequence]) -> dict[str, torch.Tensor]:
    rows = FlatSequences.of(made).targets
    targets = {name: torch.tensor(rows[name].values) for name in ("tag", "begins", "ends")}
    targets["tag"] = targets["tag"].long()
    return targets | allowed_tags(targets["tag"], 3)


def scores_of(num_words: int) -> CrfScores:
    """Random emissions in float64 with random legal transitions."""
    scores = trained_like(TAGS, "BIO")(2 * torch.randn(num_words, 3, dtype=torch.double))
    return CrfScores(*(part.detach() for part in scores))


def test_windows_count_the_edges_they_have() -> None:
    """Sentences of 3, of 5 + 4 + 2 and of no words: each window is a chain of its own."""
    made = [
        target_of([0, 1, 2], True),
        target_of([0, 0, 1, 2, 2], False, 1),
        target_of([2, 2, 0, 1], False, 1, 5),
        target_of([2, 0], True, 1, 9),
        target_of([], True, 2),
    ]
    targets = targets_of(made)
    assert targets["begins"].tolist() == [True, True, False, False, True]
    assert targets["ends"].tolist() == [True, False, False, True, True]
    assert "allowed" not in targets
    scores, batch = scores_of(14), pack(made, targets)
    total, count = chain_loss(scores, batch)
    assert int(count) == 14
    expected, position = 0.0, 0
    nothing = torch.zeros(3, dtype=torch.double)
    for encoding in made[:-1]:
        tags = encoding.target["tag"]
        own = CrfScores(
            scores.emissions[position : position + len(tags)],
            scores.start if encoding.first_word == 0 else nothing,
            scores.end if encoding.target["ends"][0] else nothing,
            scores.transitions,
        )
        position += len(tags)
        gold = path_score(own, torch.tensor(tags), [len(tags)])
        expected += log_partition(own, [len(tags)]) - gold
    torch.testing.assert_close(total, expected[0], rtol=0, atol=1e-12)


def test_words_without_a_tag_may_have_any() -> None:
    made = [target_of([0, IGNORED, 2], True), target_of([IGNORED] * 4, True, 1)]
    targets = targets_of(made)
    assert targets["allowed"].tolist() == [
        [True, False, False],
        [True] * 3,
        [False, False, True],
        *[[True] * 3] * 4,
    ]
    scores = scores_of(7)
    total, count = chain_loss(scores, pack(made, targets))
    assert int(count) == 2
    own = scores._replace(emissions=scores.emissions[:3])
    paths = torch.stack([path_score(own, torch.tensor([0, t, 2]), [3]) for t in range(3)])
    expected = log_partition(own, [3]) - paths.logsumexp(0)
    torch.testing.assert_close(total, expected[0], rtol=0, atol=1e-12)
    assert total > 0, "an unlabelled sentence costs nothing"


@pytest.mark.parametrize("cuts", [[40], [1, 39], [13, 13, 13, 1], [1] * 40])
def test_windows_are_joined_before_anything_is_decided(cuts: list[int]) -> None:
    scores = scores_of(43)  # a sentence of 40 words after one of 3
    batch = pack([target_of([0] * 3, True), target_of([0] * 40, True, 1)])
    tags, chances = decoded(scores, batch, slice(1, None))
    own = scores._replace(emissions=scores.emissions[3:])
    first = [sum(cuts[:n]) for n in range(len(cuts))]
    made = [target_of([0] * n, False, 1, f) for n, f in zip(cuts, first, strict=True)]
    joined = decoded(own, pack(made))
    assert joined[0] == tags
    assert joined[1] == pytest.approx(chances, abs=1e-12)
    assert chances == pytest.approx(probabilities(own, tags), abs=1e-9)


def decoded(
    scores: CrfScores, batch: Batch, rows: slice = slice(None)
) -> tuple[list[int], tuple[float, ...]]:
    """The classes and scores of one sentence; its windows are some sequences of a batch."""
    emissions, start, end, pairs = (part.detach().numpy() for part in scores)
    decoder = TagDecoder.restored(
        {"labels": ("O", "B-A", "I-A"), "scheme": "BIO", "temperature": None}
    )
    lengths = batch.word_lengths.numpy()
    values = decoder.windows(emissions, batch.num_words, lengths, (start, end, pairs))
    outputs = list(map(WindowOutput, batch.window, values))[rows]
    example = TokenExample(0, ("a",) * sum(batch.num_words[rows]))
    found = decoder.postprocess(example, outputs)
    return [decoder.labels.id(tag) for tag in found.tags], found.scores


def probabilities(scores: CrfScores, tags: list[int]) -> list[float]:
    """Of each tag alone: the partition with that word held fast, over the whole."""
    whole = log_partition(scores, [len(tags)])
    found = []
    for word, tag in enumerate(tags):
        emissions = scores.emissions.clone()
        emissions[word, [other for other in range(3) if other != tag]] = -torch.inf
        fixed = log_partition(scores._replace(emissions=emissions), [len(tags)])
        found.append(float((fixed - whole).exp()))
    return found


def test_long_sentences_keep_their_precision() -> None:
    """Emissions far from 0 would cost float32 digits that the loss needs."""
    scores = scores_of(2000)
    scores = scores._replace(emissions=scores.emissions + 40)
    made = [target_of(decode(scores, 2000), True)]
    batch = pack(made, targets_of(made))
    exact, _ = chain_loss(scores, batch)
    single, _ = chain_loss(CrfScores(*(part.float() for part in scores)), batch)
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(float(exact), rel=2e-5)


def decode(scores: CrfScores, num_words: int) -> list[int]:
    return decoded(scores, pack([target_of([0] * num_words, True)]))[0]
