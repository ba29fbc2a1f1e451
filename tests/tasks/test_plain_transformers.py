"""Plain transformers on a saved folder answers as the task does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from finetune.inference.loop import predict
from finetune.models import attention
from finetune.tasks import save_task
from finetune.types import TextExample
from tests.tasks.cases import Runs


def pipeline_scores(answer: list[dict]) -> dict[str, float]:
    return {item["label"]: item["score"] for item in answer}


@pytest.mark.parametrize("name", ["single", "multi", "pair", "nli 3"])
def test_text_classification_pipeline_agrees(runs: Runs, name: str) -> None:
    run = runs.run(name)
    plain = pipeline("text-classification", model=str(run.folder), top_k=None)
    second = None if name in ("single", "multi") else "a dog"
    examples = [*run.data.splits["validation"], TextExample(8, "what a great story", second)]
    for example, answer in zip(examples, predict(run.task, run.head, examples), strict=True):
        inputs = {"text": example.text} | ({"text_pair": example.pair} if example.pair else {})
        theirs = pipeline_scores(plain(inputs))
        assert theirs == pytest.approx(dict(answer.scores), abs=1e-4)
        if name == "multi":
            assert {n for n, score in theirs.items() if score >= 0.5} == set(answer.label)
        else:
            assert max(theirs, key=theirs.get) == answer.label
    assert plain.model.config.label2id == {n: i for i, n in enumerate(run.task.state.labels)}
    assert attention.NAME not in (run.folder / "config.json").read_text()


def test_regression_model_agrees(runs: Runs) -> None:
    run = runs.run("regression")
    plain = pipeline("text-classification", model=str(run.folder))
    examples = run.data.splits["validation"]
    for example, answer in zip(examples, predict(run.task, run.head, examples), strict=True):
        assert plain(example.text)[0]["score"] == pytest.approx(answer.label, abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", ["bio", "pos"])
def test_token_classification_agrees(runs: Runs, name: str, family: str, tmp_path: Path) -> None:
    """Word for word, by split words and through the pipeline on the running text."""
    task, dataset = runs.task(name, model=str(runs.workdir / family))
    head = task.model().eval()
    head.save_pretrained(tmp_path)
    save_task(task, tmp_path)
    model = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    plain = pipeline("token-classification", model=str(tmp_path), ignore_labels=[])
    examples = dataset.splits["validation"]
    for example, answer in zip(examples, predict(task, head, examples), strict=True):
        inputs = tokenizer(list(example.words), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            chances = model(**inputs).logits[0].softmax(-1)
        owners = inputs.word_ids()
        rows = chances[[owners.index(word) for word in range(len(example.words))]]
        assert tuple(model.config.id2label[int(i)] for i in rows.argmax(-1)) == answer.tags
        assert rows.amax(-1).tolist() == pytest.approx(answer.scores, abs=1e-4)

        pieces, begin = plain(" ".join(example.words)), 0
        for word, tag, score in zip(example.words, answer.tags, answer.scores, strict=True):
            first = next(piece for piece in pieces if piece["start"] >= begin - 1)
            assert first["entity"] == tag
            assert first["score"] == pytest.approx(score, abs=1e-4)
            begin += len(word) + 1
