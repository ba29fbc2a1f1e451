"""A BiLSTM between encoder and head: its values, saving and loading."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from finetune.models.encoder import Encoder
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.preprocessing.batching import pack
from finetune.tasks import load_task
from finetune.training.trainer import fit
from finetune.types import UserError
from tests import fixtures as fx
from tests.covering import few
from tests.models.parity import encodings
from tests.tiny import WIDTH
from tests.tiny import model as tiny_model
from tests.training.test_parameter_efficient_tuning import config_of


def test_bilstm_reads_each_sequence_alone() -> None:
    model = tiny_model("bert", bilstm=True).double()
    encoder, made = Encoder(model), encodings(model)
    lstm: nn.LSTM = model.bilstm.lstm
    together = encoder(pack(made)).split([len(each.input_ids) for each in made])
    half = WIDTH // 2
    for each, states in zip(made, together, strict=True):
        expected, (last, _) = lstm(encoder.layers(pack([each]))[-1][:, None])
        torch.testing.assert_close(states[1:], expected[1:, 0], rtol=0, atol=1e-12)
        torch.testing.assert_close(states[0], last[:, 0].flatten(), rtol=0, atol=1e-12)
        assert last.shape == (2, 1, half)


@pytest.mark.parametrize("setup", few(["classify", "crf", "tag", "ner", "bi", "sentence"], "crf"))
def test_saved_and_loaded(setup: str, tmp_path: Path) -> None:
    settings = {"bilstm": True, "tuning": "bitfit", "steps": 4, "eval_every": 2}
    config = config_of(setup, tmp_path / "run", **settings)
    task, dataset = load_task(config, {"bi": "classify", "crf": "tag"}.get(setup, setup))
    head = task.model()
    before = [weight.detach().clone() for weight in head.encoder.model.bilstm.parameters()]
    result = fit(task, dataset, config, model=head)
    best = task.model(tmp_path / "run" / "best").encoder.model
    last = task.model(tmp_path / "run" / "last").encoder.model
    for key, value in head.encoder.model.bilstm.state_dict().items():
        assert torch.equal(last.bilstm.state_dict()[key], value), key
    assert not torch.equal(next(best.bilstm.parameters()), before[0])
    assert result.metrics["test"]
    again = {"model": None, "init_from": str(tmp_path / "run")}
    with pytest.raises(UserError, match="was trained with --bilstm: add --bilstm"):
        load_task(config_of("ner", tmp_path / "next", **again), "ner")
    continued = config_of("ner", tmp_path / "next", **again, bilstm=True)
    started = load_task(continued, "ner")[0].model()
    assert isinstance(started, SpanClassifier)
    for key, value in best.bilstm.state_dict().items():
        assert torch.equal(started.encoder.model.bilstm.state_dict()[key], value), key


def test_refusals(tmp_path: Path) -> None:
    squeezebert = str(fx.checkpoint("squeezebert"))
    with pytest.raises(UserError, match="--bilstm does not work with squeezebert"):
        SequenceClassifier.from_pretrained(squeezebert, labels=["a", "b"], bilstm=True)
