"""Students of every task: their losses, resuming, other tokenizers, and what is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import finetune
from finetune.api import distill
from finetune.inference.predictor import Predictor
from finetune.models.encoder import Encoder
from finetune.models.fewer_layers import with_layers
from finetune.models.master_weights import MasterWeights
from finetune.preprocessing.batching import pack
from finetune.runtime.progress import Reporter
from finetune.training.distillation import (
    Distillation,
    DistillationLoss,
    load_student,
    load_teacher,
    student_config,
)
from finetune.training.optimizer import adamw
from finetune.training.run_folder import open_run
from finetune.training.scoring import Scorer
from finetune.training.step import Step
from finetune.types import UserError
from tests import fixtures as fx
from tests.covering import few
from tests.small_data import read_jsonl

QUIET = {"reporter": Reporter(quiet=True)}
SETUPS: dict[str, dict[str, Any]] = {
    "classify": {},
    "several labels": {},
    "numbers": {},
    "bi": {},
    "tag windows": {"label_subwords": "all"},
    "ner windows": {},
    "multi ner": {},
}


def teacher_of(setup: str, dropout: float = 0.0) -> Path:
    """The folder of a teacher, trained for a step."""

    def train_teacher(out: Path) -> None:
        settings = {"steps": 1, "lr": 1e-2, "warmup": 0, "max_length": 48, **SETUPS[setup]}
        model = fx.checkpoint(dropout=dropout, layers=3)
        fx.fit(fx.config(setup, model=model, out=out, **settings))
        if not dropout:  # of the head of spans
            saved = out / "best" / "config.json"
            saved.write_text(saved.read_text("utf-8").replace('"dropout": 0.1', '"dropout": 0.0'))

    return fx.made("teacher", (setup, dropout), train_teacher)


def unlabeled(setup: str) -> str:
    return str(fx.data(fx.SETUPS[setup][1]) / "test.jsonl")


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_jsonl(folder / "log.jsonl") if "loss" in line]


@pytest.mark.parametrize("setup", few(SETUPS, "classify"))
def test_a_student_with_the_weights_of_its_teacher_has_no_loss(setup: str, tmp_path: Path) -> None:
    teacher = teacher_of(setup)
    weights = Distillation(hard_weight=0.0, unlabeled=unlabeled(setup))
    out = str(tmp_path / "run")
    settings = {"layers": 3, "out": out, "steps": 1, **QUIET}
    found = distill(teacher, distillation=weights, **settings)
    (loss,) = losses(tmp_path / "run")
    assert abs(loss) < 1e-5
    assert found.models["student"].parameters == found.models["teacher"].parameters
    assert len(Predictor(tmp_path / "run").labels) == len(Predictor(teacher).labels)
    assert f"layers of the encoder, and head, from {teacher}" in found.run.notes
    assert not (tmp_path / "run" / "teacher").exists()
    assert json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))["lr"] == 6e-4


def test_blank_lines_of_unlabeled_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a good film\n\na bad film\n")
    weights = Distillation(unlabeled=str(tmp_path / "texts.txt"))
    settings = {"layers": 1, "out": str(tmp_path / "run"), "steps": 1, **QUIET}
    found = distill(teacher_of("classify"), distillation=weights, **settings)
    assert "train: 2 unlabeled examples more, which the teacher labels" in found.run.notes


@contextlib.contextmanager
def prepared(
    setup: str, out: Path, weights: Distillation, model: str | None, dropout: float, **settings: Any
) -> Iterator[tuple[Any, Any, DistillationLoss]]:
    """The arguments of a run of a student in double precision, its model and its loss."""
    loaded = load_teacher(teacher_of(setup, dropout))
    folder, settings = str(loaded.folder.parent), {"out": str(out), "lr": 1e-2, **settings}
    config = student_config(loaded.task.state.config, model, folder, **settings)
    task, data = load_student(loaded, config)
    if model is None:
        head = with_layers(task.model(loaded.folder), [1, 3], task.model)
    else:
        torch.manual_seed(3)
        head = task.model()
    with open_run(config) as folder:
        loss = DistillationLoss(task, loaded, weights)
        yield (task, data, config, folder, Reporter(quiet=True)), head.double(), loss


def test_losses_and_gradients_are_those_of_plain_torch(tmp_path: Path) -> None:
    weights = Distillation(
        temperature=3.0, hard_weight=0.3, hidden_weight=0.7, unlabeled=unlabeled("classify")
    )
    with prepared("classify", tmp_path / "run", weights, None, 0.1) as (run, head, loss):
        student = Scorer(*run)
        teacher = loss.teacher.model.double()
        student.begin()
        student.model = head
        loss.prepare(student, contextlib.ExitStack())
        config, accelerator = student.config, student.folder.accelerator
        masters = MasterWeights(head, student.parameter_groups(), "fp32")
        optimizer = adamw(masters.groups, config)
        step = Step(student.task, head, masters, optimizer, config, accelerator, loss=loss)
        without_dropout(head)
        micro_batches = student.data.batch(1).micro_batches
        (taught,), counts = loss.to_device(micro_batches, torch.device("cpu"))
        sums, numbers = loss(step._forward, taught)
        found, batch = (sums / counts).sum(), taught[0]
        assert numbers[0] == counts[0]

        with torch.no_grad():
            goal, target = teacher.eval().with_states(batch, [1, 3])
        logits, states = head.with_states(batch, [1, 2])
        labeled = batch.targets["weight"] > 0
        assert 0 < labeled.sum() < len(labeled)
        ours, theirs = (logits / 3).log_softmax(-1), (goal / 3).softmax(-1)
        soft = 9 * functional.kl_div(ours, theirs, reduction="batchmean")
        hard = functional.cross_entropy(logits[labeled], batch.targets["label"][labeled])
        hidden = sum(
            functional.mse_loss(state, each) for state, each in zip(states, target, strict=True)
        )
        expected = 0.7 * soft + 0.3 * hard + 0.7 * hidden / 2
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        parameters = list(head.parameters())
        ours, theirs = (
            torch.autograd.grad(each, parameters, retain_graph=True, allow_unused=True)
            for each in (found, expected)
        )
        for one, other in zip(ours, theirs, strict=True):
            if one is not None:
                torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def narrow() -> str:
    return str(fx.checkpoint(hidden_size=16))


def without_dropout(head: nn.Module) -> None:
    for module in head.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


@pytest.mark.parametrize(
    "setup", few([k for k in SETUPS if k != "numbers"], "classify", "ner windows")
)
def test_sequences_without_gold_have_no_loss(setup: str) -> None:
    loaded = load_teacher(teacher_of(setup))
    _, data = load_student(loaded, loaded.task.state.config)
    examples = data.splits["train"][:7]
    gold = {*examples[0].GOLD} - {"misaligned"}
    bare = [replace(example, **dict.fromkeys(gold)) for example in examples]
    encoded = loaded.task.encode(bare, for_training=True).sequences
    assert set(encoded.targets) == set(loaded.task.encode(examples).sequences.targets)
    batch = pack(encoded, loaded.task.collate(encoded))
    logits = loaded.model(batch)
    loss, count = loaded.task.loss(logits, batch)
    assert abs(loss.item()) < 1e-4
    assert count == 0


def test_a_student_continues_with_its_teacher_and_its_losses_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"layers": 1, "steps": 1, "out": str(tmp_path / "run"), **QUIET}
    teacher = teacher_of("classify")
    distill(teacher, **settings)
    with pytest.raises(UserError, match=r"started with temperature = 2\.0, now 3\.0"):
        distill(teacher, resume=True, distillation=Distillation(temperature=3.0), **settings)
    config = replace(finetune.saved_task(tmp_path / "run").state.config, resume=True)
    with pytest.raises(UserError, match="`finetune distill` was started with"):
        fx.fit(config)


def test_a_student_with_another_tokenizer(tmp_path: Path) -> None:
    teacher, student = teacher_of("ner windows"), str(fx.checkpoint("roberta"))
    settings: dict[str, Any] = {"out": str(tmp_path / "run"), "steps": 2, **QUIET}
    with pytest.raises(UserError, match="different tokenizers, so that long examples"):
        distill(teacher, student, **settings)
    long = read_jsonl(fx.data("windows") / "train.jsonl")
    rows = [{name: values[:8] for name, values in row.items()} for row in long]
    settings["data"] = {"train": rows, "validation": rows[:5], "test": rows[5:9]}
    with pytest.raises(UserError, match="--hidden-weight 1: teacher and student have different"):
        distill(teacher, student, distillation=Distillation(hidden_weight=1.0), **settings)
    settings["out"] = str(tmp_path / "short")
    assert list(distill(teacher, student, **settings).models) == ["teacher", "student"]


@pytest.mark.parametrize(("weight", "compared"), [(0.0, False), (1.0, True)])
def test_hidden_states_are_kept_only_to_be_compared(
    weight: float, compared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the teacher and of the student, in training and in evaluations."""
    teacher = teacher_of("classify")
    run, asked = Encoder._run, []

    def watched(self: Encoder, batch: Any, layers: Any, vectors: Any = None) -> Any:
        asked.append(bool(layers))
        return run(self, batch, layers, vectors)

    monkeypatch.setattr(Encoder, "_run", watched)
    settings: dict[str, Any] = {"layers": 1, "steps": 2, "out": str(tmp_path / "run"), **QUIET}
    distill(teacher, distillation=Distillation(hidden_weight=weight), **settings)
    assert asked and any(asked) == compared and not all(asked)


def test_settings_of_training_are_defaults_and_those_of_the_task_the_teachers() -> None:
    training = {
        "batch_size": 7,
        "warmup": 3,
        "weight_decay": 0.3,
        "adam_beta2": 0.9,
        "adam_epsilon": 1e-5,
        "clip": 0.5,
        "tuning": "bitfit",
        "layer_decay": 0.9,
    }
    described = {
        "data": str(fx.data("sentiment")),
        "validation": "0.2",
        "limit": 20,
        "max_length": 32,
        "max_tokens": 77,
        "precision": "fp32",
        "metric": "macro_f1",
        "loss": "focal:2",
        "calibrate": "temperature",
    }
    model = {"model": str(fx.checkpoint())}
    teacher = finetune.ClassifyConfig(**training, **described, **model)
    found = vars(student_config(teacher, narrow(), "teacher"))
    default = finetune.ClassifyConfig(**model)
    assert {name: found[name] for name in training} == {n: getattr(default, n) for n in training}
    assert {name: found[name] for name in described} == described
    with pytest.raises(UserError, match="--layers does not work with a teacher with --bilstm"):
        student_config(replace(teacher, bilstm=True), None, "teacher")
    given = vars(student_config(teacher, narrow(), "teacher", batch_size=5, limit=9))
    assert (given["batch_size"], given["limit"]) == (5, 9)


def test_settings_have_the_names_that_training_knows(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"layers": 1, "quiet": True, "out": str(tmp_path / "run")}
    with pytest.raises(UserError, match="classify has no setting 'stepz'"):
        finetune.distill(teacher_of("classify"), stepz=1, **settings)
    small = finetune.distill(teacher_of("classify"), steps=1, learning_rate=1e-5, **settings)
    assert json.loads((small.run.folder / "config.json").read_text())["lr"] == 1e-5
