"""The CRF against all sequences counted one by one; its tagger, saved and loaded, and windows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from finetune.config.tasks import TagConfig
from finetune.data.tag_schemes import SCHEMES, illegal_transitions, tag_names
from finetune.models.heads.crf import (
    CrfScores,
    CrfTagger,
    CrfTaggerConfig,
    LinearChainCrf,
    chain_loss,
    log_partition,
    path_score,
)
from finetune.models.heads.pretrained import TokenClassifier
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import FlatSequences
from finetune.tasks.tag_decoding import TagDecoder, viterbi
from finetune.tasks.tag_decoding import marginals as viterbi_marginals
from finetune.tasks.token_classification import allowed_tags
from finetune.training.optimizer import parameter_groups
from finetune.types import IGNORED, Batch, TokenExample, TokenSequence, WindowOutput
from tests import fixtures as fx
from tests import tiny
from tests.models.heads import TAGS, head_of

CLOSE = {"rtol": 0, "atol": 1e-10}


def plain(scores: CrfScores) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The scores as numpy arrays: emissions and transitions."""
    emissions, *transitions = (part.detach().numpy() for part in scores)
    return emissions, (transitions[0], transitions[1], transitions[2])


def best_path(scores: CrfScores, num_words: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(viterbi(*plain(scores), num_words))


def marginals(scores: CrfScores, num_words: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(viterbi_marginals(*plain(scores), num_words))


class Case:
    """Random scores of a few sequences, with tags ruled out so that one path is left at least."""

    def __init__(self, seed: int, num_tags: int, num_words: list[int], whole: bool = False) -> None:
        chance = np.random.default_rng(seed)
        self.num_tags, self.num_words = num_tags, num_words
        path = chance.integers(num_tags, size=6)
        start, end = (np.where(chance.random(num_tags) < 0.3, -np.inf, 0) for _ in "se")
        steps = np.where(chance.random((num_tags, num_tags)) < 0.3, -np.inf, 0)
        start[path[0]], end[path] = 0, 0
        steps[path[:-1], path[1:]] = 0
        self.start = start + chance.normal(size=num_tags)
        self.end = end + chance.normal(size=num_tags)
        self.steps = steps + 2 * chance.normal(size=steps.shape)
        self.emissions = 2 * chance.normal(size=(sum(num_words), num_tags))
        self.begins = whole or chance.random(len(num_words)) < 0.6
        self.ends = whole or chance.random(len(num_words)) < 0.6
        self.path = np.concatenate([path[:n] for n in num_words]).astype(int)

    def scores(self, grad: bool = False) -> CrfScores:
        parts = (self.emissions, self.start, self.end, self.steps)
        return CrfScores(*(torch.tensor(part).requires_grad_(grad) for part in parts))

    @property
    def layout(self) -> tuple:
        if self.begins is True:
            return (self.num_words,)
        return (self.num_words, torch.tensor(self.begins), torch.tensor(self.ends))

    def sentences(self):
        """Emissions, own start and own end of each sequence."""
        none = np.zeros(self.num_tags)
        parts = np.split(self.emissions, np.cumsum(self.num_words)[:-1])
        for number, emissions in enumerate(parts):
            begins = self.begins is True or self.begins[number]
            ends = self.ends is True or self.ends[number]
            yield emissions, self.start if begins else none, self.end if ends else none

    def counted(self) -> list[dict[tuple[int, ...], float]]:
        """The score of every tag sequence, for each sequence of words."""
        found = []
        for emissions, start, end in self.sentences():
            table = {}
            for path in product(range(self.num_tags), repeat=len(emissions)):
                if path:
                    score = start[path[0]] + end[path[-1]]
                    score += sum(row[tag] for row, tag in zip(emissions, path, strict=True))
                    score += sum(self.steps[pair] for pair in pairwise(path))
                    table[path] = score
            found.append(table or {(): 0.0})
        return found


cases = st.builds(
    Case,
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.booleans(),
)
sentences = cases.filter(lambda case: case.begins is True)


def log_sum(values) -> float:
    values = np.array(list(values), dtype=float)
    top = values.max()
    return top + np.log(np.exp(values - top).sum())


def assert_same(found: torch.Tensor, expected) -> None:
    torch.testing.assert_close(found, torch.tensor(np.array(expected, dtype=float)), **CLOSE)


@given(cases)
def test_partition_is_the_sum_over_all_sequences(case: Case) -> None:
    assert_same(
        log_partition(case.scores(), *case.layout), [log_sum(t.values()) for t in case.counted()]
    )


@given(cases)
def test_score_of_a_sequence(case: Case) -> None:
    path = torch.tensor(case.path)
    cuts = np.split(case.path, np.cumsum(case.num_words)[:-1])
    own = [table[tuple(cut.tolist())] for table, cut in zip(case.counted(), cuts, strict=True)]
    assert_same(path_score(case.scores(), path, *case.layout), own)


@given(sentences)
def test_marginals_are_summed_probabilities(case: Case) -> None:
    rows = []
    for table, length in zip(case.counted(), case.num_words, strict=True):
        whole = log_sum(table.values())
        chances = np.zeros((length, case.num_tags))
        for path, score in table.items():
            chances[np.arange(length), list(path)] += np.exp(score - whole)
        rows.append(chances)
    found = marginals(case.scores(), case.num_words)
    assert_same(found, np.concatenate(rows))
    impossible = torch.tensor(np.concatenate(rows)) == 0
    assert (found[impossible] == 0).all(), "exactly"


@given(cases)
def test_gradient_of_likelihood_is_counts_less_expected_counts(case: Case) -> None:
    """Of emissions, edges and transitions; and no NaN beside what is ruled out."""
    scores = case.scores(grad=True)
    gold = path_score(scores, torch.tensor(case.path), *case.layout)
    (gold - log_partition(scores, *case.layout)).sum().backward()
    expected = [np.zeros_like(p.detach().numpy()) for p in scores]
    position = 0
    cuts = np.split(case.path, np.cumsum(case.num_words)[:-1])
    flags = [np.broadcast_to(f, len(cuts)) for f in (case.begins, case.ends)]
    for table, cut, begins, ends in zip(case.counted(), cuts, *flags, strict=True):
        whole = log_sum(table.values())
        signed = [(p, -np.exp(s - whole)) for p, s in table.items()]
        for path, weight in [*signed, (tuple(cut.tolist()), 1.0)]:
            if not path:
                continue
            expected[0][position + np.arange(len(path)), list(path)] += weight
            expected[1][path[0]] += weight * begins
            expected[2][path[-1]] += weight * ends
            for pair in pairwise(path):
                expected[3][pair] += weight
        position += len(cut)
    for part, wanted in zip(scores, expected, strict=True):
        found = torch.zeros_like(part) if part.grad is None else part.grad
        assert_same(found, wanted)
        assert (found[part.isinf()] == 0).all()


def trained_like(tags: list[str], scheme: str | None, seed: int = 0) -> LinearChainCrf:
    """A CRF with random transitions, in float64."""
    torch.manual_seed(seed)
    crf = LinearChainCrf(tags, scheme).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf


# Schemes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_scheme_forbids_is_never_answered_nor_possible(scheme: str) -> None:
    tags = tag_names(["A", "B"], scheme)
    crf = trained_like(tags, scheme, seed=3)
    num_words = [random.Random(0).randint(1, 6) for _ in range(200)]
    scores = crf(torch.randn(sum(num_words), len(tags), dtype=torch.double) * 5)
    paths = best_path(scores, num_words).split(num_words)
    assert not any(illegal_transitions([tags[i] for i in path], scheme) for path in paths)
    one = marginals(crf(torch.randn(1, len(tags), dtype=torch.double)), [1])[0]
    legal = torch.tensor([not illegal_transitions([tag], scheme) for tag in tags])
    assert ((one == 0) == ~legal).all()


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_what_a_scheme_forbids_is_never_trained(scheme: str) -> None:
    tags = tag_names(["A", "B"], scheme)
    crf = LinearChainCrf(tags, scheme)
    assert all((parameter == 0).all() for parameter in crf.parameters())
    optimizer = torch.optim.AdamW(crf.parameters(), lr=0.5, weight_decay=0.0)
    emissions = torch.randn(40, len(tags), requires_grad=True)
    for _ in range(20):
        scores = crf(emissions)
        gold = path_score(scores, torch.zeros(40, dtype=torch.long), [30, 10])
        (log_partition(scores, [30, 10]) - gold).sum().backward()
        optimizer.step()
    forbidden = (~crf.may_start, ~crf.may_end, ~crf.may_follow)
    assert any(mask.any() for mask in forbidden)
    for parameter, mask in zip(crf.parameters(), forbidden, strict=True):
        assert parameter.isfinite().all()
        assert (parameter[mask] == 0).all()
        assert (parameter[~mask] != 0).any()
    for part, mask in zip(crf(emissions)[1:], forbidden, strict=True):
        assert (part.isinf() == mask).all()


# Numbers


@pytest.mark.parametrize("num_words", [(), (0,), (0, 0)])
def test_no_words_at_all(num_words: tuple[int, ...]) -> None:
    crf = LinearChainCrf(["O", "B-A", "I-A"], "BIO")
    scores = crf(torch.zeros(0, 3, requires_grad=True))
    whole = log_partition(scores, num_words)
    assert whole.tolist() == [0] * len(num_words)
    whole.sum().backward()
    assert all((p.grad == 0).all() for p in crf.parameters() if p.grad is not None)
    assert marginals(scores, num_words).shape == (0, 3)
    assert best_path(scores, num_words).shape == (0,)
    none = torch.zeros(0, dtype=torch.long)
    assert path_score(scores, none, num_words).tolist() == [0] * len(num_words)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_computed_in_float32_at_least(dtype: torch.dtype) -> None:
    """Also under autocast, whatever the emissions come in."""
    crf = LinearChainCrf(tag_names(["A"], "BIO"), "BIO")
    with torch.no_grad():
        crf.transitions.normal_()
    emissions = torch.randn(12, 3).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    num_words, tags = (7, 5), torch.zeros(12, dtype=torch.long)

    def all_of(emissions: torch.Tensor) -> list[torch.Tensor]:
        emissions = emissions.clone().requires_grad_()
        scores = crf(emissions)
        whole = log_partition(scores, num_words)
        gold = path_score(scores, tags, num_words)
        (gradient,) = torch.autograd.grad(whole.sum(), crf.transitions)
        return [whole, gold, gradient.to(wide)]

    expected = all_of(emissions.to(wide))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = all_of(emissions)
    for mine, plain in zip(found, expected, strict=True):
        assert mine.dtype == wide
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)


def test_a_loss_in_inference_mode_hinders_no_training() -> None:
    num_words = (3, 1, 2)
    for case in (Case(seed, 3, [*num_words]) for seed in (0, 1)):
        with torch.inference_mode():
            log_partition(case.scores(), num_words)
        scores = case.scores(grad=True)
        log_partition(scores, num_words).sum().backward()
        assert scores.emissions.grad is not None


def test_extreme_scores_are_no_nan() -> None:
    crf = LinearChainCrf(tag_names(["A"], "BIO"), "BIO")
    emissions = (torch.randn(50, 3) * 1e4).requires_grad_()
    scores = crf(emissions)
    whole = log_partition(scores, [50])
    whole.sum().backward()
    assert whole.isfinite().all()
    for gradient in (emissions.grad, *(p.grad for p in crf.parameters())):
        assert gradient.isfinite().all()
    assert marginals(scores, [50]).isfinite().all()


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
    assert chances == pytest.approx(marginals(own, [40])[range(40), tags].tolist(), abs=1e-9)


def decoded(
    scores: CrfScores, batch: Batch, rows: slice = slice(None)
) -> tuple[list[int], tuple[float, ...]]:
    """The classes and scores of one sentence; its windows are some sequences of a batch."""
    emissions, transitions = plain(scores)
    decoder = TagDecoder.restored(
        {"labels": ("O", "B-A", "I-A"), "scheme": "BIO", "temperature": None}
    )
    lengths = batch.word_lengths.numpy()
    values = decoder.windows(emissions, batch.num_words, lengths, transitions)
    outputs = list(map(WindowOutput, batch.window, values))[rows]
    example = TokenExample(0, ("a",) * sum(batch.num_words[rows]))
    found = decoder.postprocess(example, outputs)
    return [decoder.labels.id(tag) for tag in found.tags], found.scores


def test_long_sentences_keep_their_precision() -> None:
    """Emissions far from 0 would cost float32 digits that the loss needs."""
    scores = scores_of(2000)
    scores = scores._replace(emissions=scores.emissions + 40)
    tags, _ = decoded(scores, pack([target_of([0] * 2000, True)]))
    made = [target_of(tags, True)]
    batch = pack(made, targets_of(made))
    exact, _ = chain_loss(scores, batch)
    single, _ = chain_loss(CrfScores(*(part.float() for part in scores)), batch)
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(float(exact), rel=2e-5)
