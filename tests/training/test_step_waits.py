"""No step of any task and objective waits for a GPU; the meta device stands for one.

Families that cannot run packed do wait: transformers reads the mask of padded rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.models.dropout import fast_dropout
from finetune.tasks import CONFIGS, load_task
from finetune.training.data import training_data
from finetune.training.step import begin_step
from tests import small_data as data
from tests.operators import DEVICE, finding_waits
from tests.small_data import write_jsonl
from tests.tasks.cases import CASES, SLOW
from tests.tiny import save_tiny_checkpoint

PAIRS: dict[str, dict[str, Any]] = {
    "numbers": {"label": [0.5, 1.5, 2.0]},
    "classes": {"label": ["a", "b", "c"]},
    "triples": {"negative": ["the bank", "a man", "this film"]},
}
OBJECTIVES = {
    "mirror": "numbers",
    "simcse": "numbers",
    "prompt": "numbers",
    "ranking": "triples",
    "softmax": "classes",
    "cosine": "numbers",
    "cmlm": "numbers",
}
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{
        f"sentence {name}": ("sentence", rows, {"objective": name})
        for name, rows in OBJECTIVES.items()
    },
    "few-shot": ("classify", "sentiment", {"few_shot": True}),
    "bilstm": ("classify", "sentiment", {"bilstm": True}),
    "class weights": ("classify", "sentiment", {"class_weights": "auto"}),
    "focal": ("classify", "sentiment", {"loss": "focal"}),
    "logit-adjusted": ("classify", "sentiment", {"loss": "logit-adjusted"}),
    "several labels of spans": ("ner", "entities", {"multi_label": True}),
    "deberta": ("classify", "sentiment", {"model": "deberta-v2"}),
    "pretrain": ("pretrain", "text", {}),
    "pretrain spans": ("pretrain", "text", {"mask": "spans", "boundary": True, "nsp": True}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waits")
    for family in ("bert", "deberta-v2"):
        save_tiny_checkpoint(folder / family, family, dropout=0.1, num_hidden_layers=2)
    for name, case in CASES.items():
        for split in ("train", "validation"):
            write_jsonl(folder / name / f"{split}.jsonl", case.rows)
    for name, columns in PAIRS.items():
        rows = [
            {"text": "the bank of a river", "text_pair": f"a man saw {index}"}
            | {key: values[index % 3] for key, values in columns.items()}
            for index in range(9)
        ]
        for split in ("train", "validation"):
            write_jsonl(folder / name / f"{split}.jsonl", rows)
    data.sentiment(folder / "sentiment")
    data.entities(folder / "entities")
    data.running_text(folder / "text", short=True)
    return folder


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in (*CASES, *OTHERS)],
)
def test_a_step_waits_for_nothing(name: str, place: Path) -> None:
    if name in CASES:
        kind, rows, settings = CASES[name].task, name, CASES[name].settings
    else:
        kind, rows, settings = OTHERS[name]
    common = {"max_length": 48, "batch_size": 8, "lr": 1e-3, "precision": "fp32"}
    settings = {**common, **settings, "data": str(place / rows)}
    config = CONFIGS[kind](**{**settings, "model": str(place / settings.get("model", "bert"))})
    task, dataset = load_task(config, kind)
    plain = replace(config, max_tokens=100)
    batches = training_data(task, dataset, plain, Accelerator(cpu=True), print).batch(0)
    head = task.head().to(DEVICE)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, foreach=True)
    for group in optimizer.param_groups:
        group["peak"] = 0.1
    accelerator: Any = SimpleNamespace(
        device=DEVICE, num_processes=1, process_index=0, is_main_process=True
    )
    step = begin_step(task, head, optimizer, config, accelerator, "fp32")
    with fast_dropout(head), finding_waits() as waits:
        step(batches.micro_batches, weight=1.0, lr_factor=1.0)
    assert not waits, "\n".join(waits)
