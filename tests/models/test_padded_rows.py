"""Heads on padded rows give the outputs of transformers, and its Trainer trains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from finetune import SequenceClassifier, TokenClassifier, UserError
from tests import laboratory as lab
from tests.tiny import save_tiny_checkpoint

LABELS = ["a", "b", "c"]
FAMILIES = ("bert", "roberta", "modernbert", "mpnet")


def rows(pad: int, left: bool = False) -> dict[str, torch.Tensor]:
    """Rows of 6, 3 and 1 tokens."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(6, 60, (3, 6), generator=generator)
    lengths = torch.tensor([[6], [3], [1]])
    mask = torch.arange(6) < lengths
    if left:
        mask = mask.flip(1)
    return {"input_ids": ids.masked_fill(~mask, pad), "attention_mask": mask.long()}


@pytest.mark.parametrize("problem", ["single", "multi", "regression"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sequence_classifier(family: str, problem: Any, tmp_path: Path) -> None:
    source = str(lab.checkpoint(family))
    labels = ["score"] if problem == "regression" else LABELS
    head = SequenceClassifier.from_pretrained(source, labels=labels, problem=problem).eval()
    inputs = rows(head.encoder.pad_id)
    gold = {
        "single": torch.tensor([0, 2, 1]),
        "multi": torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0]]),
        "regression": torch.tensor([0.5, -1.0, 2.0]),
    }[problem]
    found, expected = head(**inputs, labels=gold), head.model(**inputs, labels=gold)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_token_tagger(family: str, tmp_path: Path) -> None:
    source = str(lab.checkpoint(family))
    head = TokenClassifier.from_pretrained(source, labels=LABELS).eval()
    inputs = rows(head.encoder.pad_id)
    real = inputs["attention_mask"].bool()
    gold = torch.where(real, inputs["input_ids"] % 3, -100)
    found, expected = head(**inputs, labels=gold), head.model(**inputs, labels=gold)
    torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-5)
    assert not found.logits[~real].any()
    left = head(**rows(head.encoder.pad_id, left=True), labels=gold.flip(1))
    assert torch.isfinite(left.loss)


def test_trainer_trains_and_evaluates(tmp_path: Path) -> None:
    source = str(save_tiny_checkpoint(tmp_path / "bert", "bert", dropout=0.0))
    head = TokenClassifier.from_pretrained(source, labels=LABELS)
    columns = rows(0) | {"labels": torch.where(rows(0)["attention_mask"].bool(), 1, -100)}
    data = [{name: value[i].tolist() for name, value in columns.items()} for i in range(3)] * 4
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=20,
        learning_rate=5e-3,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=4,
    )
    trainer = Trainer(model=head, args=arguments, train_dataset=data, eval_dataset=data)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2


def test_refuses(tmp_path: Path) -> None:
    head = TokenClassifier.from_pretrained(str(lab.checkpoint()), labels=LABELS)
    with pytest.raises(UserError, match="takes a Batch"):
        head()
    inputs = rows(0)
    with pytest.raises(UserError, match="every row needs a token"):
        head(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"] * 0)
