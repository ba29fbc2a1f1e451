"""The masked language model: chosen positions equal all positions, also in chunks; loading."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForMaskedLM

from finetune.config.tasks import TrainConfig
from finetune.models.heads import masked_lm
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.preprocessing.batching import pack
from finetune.training.optimizer import parameter_groups
from finetune.types import Batch, UserError
from tests import tiny
from tests.covering import few
from tests.models.parity import CLOSE, assert_same_gradients, encodings, plain_inputs

CHOSEN = {0: [1, 3], 1: [0, 30, 61], 3: [2], 5: [5, 21], 8: [39]}
"""Positions in some of the sequences."""


def masked(model) -> tuple[Batch, list]:
    made = encodings(model)
    starts = [0]
    for encoding in made:
        starts.append(starts[-1] + len(encoding.input_ids))
    rows = [starts[n] + p for n, positions in CHOSEN.items() for p in positions]
    tokens = [7 + 3 * index for index in range(len(rows))]
    return pack(made, {"position": torch.tensor(rows), "token": torch.tensor(tokens)}), made


def all_positions_loss(reference, made, batch: Batch) -> torch.Tensor:
    """The summed loss of the Hugging Face class over padded rows and all positions."""
    logits = reference(**plain_inputs(reference, made)).logits
    chosen = [logits[n, p] for n, positions in CHOSEN.items() for p in positions]
    return F.cross_entropy(torch.stack(chosen), batch.targets["token"], reduction="sum")


@pytest.mark.parametrize(
    ("family", "most_logits"), [*zip(tiny.FAMILIES, itertools.cycle([masked_lm.MOST_LOGITS, 1500]))]
)
def test_gradients_equal_those_of_all_positions(
    family: str, most_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the logits do not fit and are computed again, in chunks of two positions or so."""
    monkeypatch.setattr(masked_lm, "MOST_LOGITS", most_logits)
    model = tiny.model(family, AutoModelForMaskedLM).double()
    reference = copy.deepcopy(model)
    head = MaskedLanguageModel(model).train()
    batch, made = masked(model)
    loss = head(batch).loss.sum()
    expected = all_positions_loss(reference, made, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=CLOSE.get(family, 1e-12))
    loss.backward()
    expected.backward()
    assert_same_gradients(model, reference, CLOSE.get(family, 1e-12))


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_own_head_of_deberta(family: str) -> None:
    model = tiny.model(family, AutoModelForMaskedLM, legacy=False).double()
    reference = copy.deepcopy(model)
    batch, made = masked(model)
    loss = MaskedLanguageModel(model)(batch).loss.sum()
    expected = all_positions_loss(reference, made, batch)
    torch.testing.assert_close(loss, expected, rtol=0, atol=CLOSE.get(family, 1e-12))


def test_code_of_a_checkpoint_runs_as_it_is() -> None:
    """Under a listed model type it may have another head."""
    plain = tiny.model("bert", AutoModelForMaskedLM).double()
    own = type("OwnBert", (type(plain),), {"__module__": __name__})(plain.config).eval().double()
    own.bert = type("OwnBase", (type(plain.bert),), {"__module__": __name__})(
        plain.config, add_pooling_layer=False
    ).double()
    own.load_state_dict(plain.state_dict())
    batch, _ = masked(plain)
    with torch.no_grad():
        torch.testing.assert_close(
            MaskedLanguageModel(own)(batch), MaskedLanguageModel(plain)(batch), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    "family",
    few(tiny.FAMILIES, "bert", "roberta", "modernbert", "deberta-v2", "squeezebert", "electra"),
)
def test_new_head_of_an_encoder_saved_and_loaded(
    family: str, tmp_path: Path, warnings_logged: list[str]
) -> None:
    tiny.model(family, AutoModel).save_pretrained(tmp_path / "encoder")
    warnings_logged.clear()
    head = MaskedLanguageModel.from_pretrained(str(tmp_path / "encoder")).eval()
    assert not warnings_logged, "a new head is not worth a warning"
    batch, _ = masked(head.model)
    with pytest.raises(UserError, match="no trained head"):
        MaskedLanguageModel.from_pretrained(str(tmp_path / "encoder"), new_head=False)
    with torch.no_grad():
        loss = head(batch).loss
        head.save_pretrained(tmp_path / "saved")
        again = MaskedLanguageModel.from_pretrained(str(tmp_path / "saved"), new_head=False)
        # weights of files lie elsewhere in memory, which products of a few rows can show
        torch.testing.assert_close(again.eval()(batch).loss, loss, rtol=0, atol=1e-5)
    assert "finetune" not in (tmp_path / "saved" / "config.json").read_text("utf-8")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_tied_matrix_has_one_learning_rate(family: str) -> None:
    head = MaskedLanguageModel(tiny.model(family, AutoModelForMaskedLM))
    names = [name for name, _ in head.named_parameters()]
    groups = parameter_groups(head, TrainConfig(layer_decay=0.5, head_lr=1.0, lr=1e-3))
    trained = [weight for group in groups for weight in group["params"]]
    assert len(trained) == len(names) == len({id(weight) for weight in trained})
    embeddings = head.model.get_input_embeddings().weight
    output = head.model.get_output_embeddings().weight
    assert (output is embeddings) == (family != "eurobert" or head.model.config.tie_word_embeddings)
    (group,) = [g for g in groups if any(w is embeddings for w in g["params"])]
    depth = head.encoder.top_depth
    assert group["lr"] == pytest.approx(1e-3 * 0.5**depth)
