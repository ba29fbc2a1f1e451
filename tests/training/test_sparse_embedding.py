"""Training only the rows that occur changes no other weight: step by step, saved, resumed."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import finetune
from finetune.config.tasks import TrainConfig
from finetune.models import sparse_embedding
from finetune.models.encoder import Encoder
from finetune.models.sparse_embedding import SparseEmbeddings
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import EncodedExamples
from finetune.types import UserError
from tests import fixtures as fx
from tests import tiny
from tests.models.parity import encodings, gradients
from tests.training.same_weights import weights_after
from tests.training.test_trajectory import config_of

FAMILIES = ("bert", "roberta", "albert", "modernbert", "deberta-v2")
FAST = {("roberta", "tag windows"), ("albert", "classify")}
TRAINED = [
    pytest.param(*case, marks=() if case in FAST else pytest.mark.slow)
    for case in itertools.product(FAMILIES, ("classify", "tag windows", "ner windows"))
]
EVERYTHING = {"weight_decay": 0.3, "clip": 0.5, "warmup": 0.2, "layer_decay": 0.8, "steps": 4}


def table_of(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return next(v for n, v in weights.items() if "word_embeddings" in n or "tok_embeddings" in n)


@pytest.mark.parametrize(("family", "setup"), TRAINED)
def test_the_trajectory_is_that_of_the_whole_table(
    setup: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision: weights in memory and what is saved."""
    monkeypatch.setattr(sparse_embedding, "MOST_OCCURRING", 0.0)
    whole = config_of(setup, tmp_path / "off", family, **EVERYTHING)
    expected = weights_after(whole)
    monkeypatch.setattr(sparse_embedding, "MOST_OCCURRING", 1.0)
    compact = replace(whole, out=str(tmp_path / "on"))
    found = weights_after(compact)
    absent = unread(compact)
    fresh = table_of(load_file(fx.checkpoint(family, dropout=0.0) / "model.safetensors"))
    check_equal(found, expected, fresh.double(), absent)
    for folder in ("best", "last"):
        ours, theirs = (
            load_file(str(tmp_path / n / folder / "model.safetensors")) for n in ("on", "off")
        )
        check_equal(ours, theirs, fresh.to(table_of(ours).dtype), absent)


def check_equal(
    ours: dict[str, torch.Tensor],
    theirs: dict[str, torch.Tensor],
    fresh: torch.Tensor,
    absent: list[int],
) -> None:
    """Weights equal those of training all, and rows that never occur are as they were."""
    assert list(ours) == list(theirs)
    expected = table_of(theirs).clone()
    assert len(absent) > 20 and not torch.equal(expected[absent], fresh[absent])
    expected[absent] = fresh[absent]
    for name, value in ours.items():
        other = expected if value is table_of(ours) else theirs[name]
        torch.testing.assert_close(value, other, rtol=0, atol=1e-12, msg=name)


def unread(config: TrainConfig) -> list[int]:
    """Ids that occur in no training or validation example."""
    task, dataset = fx.load(config)
    seen = {
        piece
        for split in ("train", "validation")
        for windows in task.encode(dataset.splits[split])
        for encoding in windows
        for piece in encoding.input_ids
    }
    head = task.model()
    return sorted(set(range(head.encoder.vocabulary_size)) - seen - {head.encoder.pad_id})


class Whole(torch.nn.Module):
    """The least of a head: an encoder."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.model = tiny.model(family).double()
        self.__dict__["encoder"] = Encoder(self.model)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_reads_its_rows_through_the_embedding(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden states and gradients, with padding where the family has it; then whole again."""
    monkeypatch.setattr(sparse_embedding, "MOST_OCCURRING", 1.0)
    whole, compact = Whole(family), Whole(family)
    made = encodings(whole.model, (5, 17, 3))
    vocabulary = SparseEmbeddings(compact, [EncodedExamples.of([made]).sequences.ids.values])
    for head in (whole, compact):
        hidden = head.encoder(pack(made))
        weight = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
        (hidden * weight).sum().backward()
    expected, found = gradients(whole), gradients(compact)
    assert vocabulary.embedding is not None
    rows = vocabulary.rows
    name = next(n for n, p in compact.named_parameters() if p is vocabulary.embedding.weight)
    table = expected[name]
    moved = set(table.abs().amax(1).nonzero()[:, 0].tolist())
    assert 20 < len(moved) <= len(rows) <= 26 and moved <= set(rows.tolist())
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found[name], table[rows], rtol=0, atol=1e-12)
    for other in found.keys() - {name}:
        torch.testing.assert_close(found[other], expected[other], rtol=0, atol=1e-12, msg=other)
    with vocabulary.whole():
        weights = compact.state_dict()
    assert len(vocabulary.embedding.weight) == len(rows)
    with vocabulary:
        pass
    for head in (weights, compact.state_dict()):
        assert list(head) == list(whole.state_dict())
        assert all(torch.equal(value, whole.state_dict()[n]) for n, value in head.items())


@pytest.mark.parametrize(
    ("share", "freeze", "rows"),
    [
        (0.59, "none", 177),
        (0.6, "none", 300),
        (0.1, "embeddings", 300),
        (0.1, "1", 300),
        (0.1, "all", 300),
    ],
)
def test_which_rows_are_trained(share: float, freeze: str, rows: int) -> None:
    """The padding row is 0; ids that the model does not have are for the encoder to refuse."""
    task, dataset = fx.load(fx.config("classify"))
    head = task.model()
    head.encoder.model.resize_token_embeddings(300)
    head.encoder.freeze(freeze)
    encoding = replace(
        task.encode(dataset.splits["train"])[0][0],
        input_ids=[*range(1, round(300 * share)), 300, 999],
    )
    vocabulary = SparseEmbeddings(head, [EncodedExamples.of([[encoding]]).sequences.ids.values])
    assert len(table_of(dict(head.named_parameters()))) == rows
    with vocabulary, vocabulary.whole():
        assert len(table_of(head.state_dict())) == 300
    assert len(table_of(dict(head.named_parameters()))) == 300


def test_a_shared_table_is_trained_whole() -> None:
    task, dataset = fx.load(fx.config("classify"))
    head = task.model()
    head.output = torch.nn.Linear(32, 7, bias=False)
    head.output.weight = head.encoder.model.get_input_embeddings().weight
    read = [task.encode(dataset.splits["train"]).sequences.ids.values]
    assert SparseEmbeddings(head, read).embedding is None


@pytest.mark.parametrize("error", [None, "metric", "checkpoint"])
@pytest.mark.parametrize("most", [0.0, 1.0])
def test_a_run_gives_the_model_back_as_it_was(
    most: float, error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules, their types and modes, configuration and names; also after an error."""
    monkeypatch.setattr(sparse_embedding, "MOST_OCCURRING", most)
    metric = "loss" if error == "metric" else None
    config = fx.config("classify", out=tmp_path / "run", metric=metric)
    task, dataset = fx.load(config)
    head = task.model().eval()
    head.model.base_model.encoder.train()
    modules = dict(head.named_modules())
    states = {name: (type(module), module.training) for name, module in modules.items()}
    shapes = {name: value.shape for name, value in head.state_dict().items()}
    model_config = head.model.config.to_dict() | {"architectures": None}
    if error == "checkpoint":
        monkeypatch.setattr("finetune.training.trainer.adamw", lambda *_: 1 / 0)
    refused = pytest.raises((UserError, ZeroDivisionError))
    with refused if error else contextlib.nullcontext():
        finetune.fit(task, dataset, config, model=head)
    assert dict(head.named_modules()) == modules
    assert {name: (type(m), m.training) for name, m in modules.items()} == states
    assert {name: value.shape for name, value in head.state_dict().items()} == shapes
    after = head.model.config.to_dict() | {"architectures": None}  # written by save_pretrained
    assert after == model_config
