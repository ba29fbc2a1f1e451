"""Training and scores with the votes of annotators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.predictions import align_runs
from finetune.types import DataError, TextExample, TextPrediction
from tests import fixtures as fx
from tests.runs import score_predictions, write_predictions
from tests.small_data import keep_on_disk, read_jsonl, write_jsonl

SPLITS = {"train": 40, "validation": 10, "test": 10}
SOFT = ("soft_cross_entropy", "agreement", "votes_entropy")


def votes_of(index: int) -> dict[str, float]:
    gold, other = ("neg", "pos") if index % 3 else ("pos", "neg")
    return {gold: 4, other: index % 4, "none": index % 2} if index % 5 else {gold: 4}


def written(folder: Path, label: Any) -> str:
    """Data whose labels are what ``label`` makes of the index of a row."""
    for split, size in SPLITS.items():
        rows = [
            {"text": f"{'good' if i % 3 == 0 else 'bad'} text {split} {i}", "label": label(i)}
            for i in range(size)
        ]
        write_jsonl(folder / f"{split}.jsonl", rows)
    return str(folder)


def scores_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def equal_weights(one: Path, other: Path) -> bool:
    weights, theirs = (load_file(run / "best/model.safetensors") for run in (one, other))
    return all(torch.equal(weights[name], theirs[name]) for name in weights)


def same(one: Path, other: Path) -> bool:
    scores, others = scores_of(one), scores_of(other)
    for split in scores:
        for name in {*SOFT} - {*scores[split]} | {*SOFT} - {*others[split]}:
            scores[split].pop(name, None)
            others[split].pop(name, None)
    assert scores == others
    return equal_weights(one, other)


def test_equal_shares_of_votes_train_alike(tmp_path: Path) -> None:
    """One vote is a plain label, a plain label among votes is a vote, and twice the votes too."""

    def plain(index: int) -> Any:
        votes = votes_of(index)
        return votes if len(votes) > 1 else next(iter(votes))

    label, one_vote, votes, mixed, doubled = (
        fx.trained("classify", data=written(tmp_path / str(number), label))
        for number, label in enumerate(
            (
                lambda i: "neg" if i % 3 else "pos",
                lambda i: {"neg": 1} if i % 3 else {"pos": 3},
                votes_of,
                plain,
                lambda i: {name: 2 * number for name, number in votes_of(i).items()},
            )
        )
    )
    assert same(label, one_vote) and same(votes, doubled) and equal_weights(votes, mixed)


def test_a_run_keeps_the_votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(tmp_path / "data", votes_of)
    soft = fx.trained("classify", data=data)
    file = soft / "predictions.test.jsonl"
    lines = read_jsonl(file)
    assert lines[1]["gold"] == "neg" and lines[1]["votes"] == {"neg": 4, "none": 1, "pos": 1}
    assert "votes" in json.loads(file.read_text().splitlines()[0])
    saved = scores_of(soft)["test"]
    assert {*SOFT} <= {*saved}
    for found in (score(align_runs([file])[0]), score_predictions(file, f"{data}/test.jsonl")):
        for name in ("accuracy", *SOFT):
            assert found[name] == pytest.approx(saved[name], abs=1e-12), name
    keep_on_disk(monkeypatch)
    fx.train("classify", on_disk := tmp_path / "disk", data=data).ok()
    assert same(soft, on_disk)


@pytest.mark.parametrize(
    "settings",
    [
        {"class_weights": "auto"},
        {"calibrate": "temperature"},
        {"long_text": "window", "max_length": 6},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_go_with_votes(settings: dict[str, Any], tmp_path: Path) -> None:
    data = written(tmp_path / "data", votes_of)
    scores = scores_of(fx.trained("classify", data=data, **settings))
    assert "soft_cross_entropy" in scores["test"]


def test_no_metric_of_gold_selects_a_model(tmp_path: Path) -> None:
    data = written(tmp_path / "data", votes_of)
    for metric in SOFT:
        found = fx.train("classify", tmp_path / metric, data=data, metric=metric)
        assert f"--metric '{metric}' cannot select a model; legal are accuracy" in found.err
        assert "agreement" not in found.err.partition("legal are")[2]


def predicted(votes: dict[str, int] | None, scores: dict[str, float]) -> tuple[Any, Any]:
    label = max(scores, key=lambda name: scores[name])
    gold = "a" if votes is None else max(sorted(votes), key=lambda name: votes[name])
    known = None if votes is None else tuple(sorted(votes.items()))
    return TextExample(0, "x", None, gold, votes=known), TextPrediction(
        0, label, scores[label], scores
    )


def test_scores_against_votes_are_those_of_scipy() -> None:
    rng = np.random.default_rng(1)
    tables = rng.integers(0, 4, (30, 3)), rng.dirichlet(np.ones(3), 30).round(6)
    tables[0][:, 0] += 1
    pairs = [
        predicted(
            {n: int(v) for n, v in zip("abc", votes, strict=True) if v},
            dict(zip("abc", p.tolist(), strict=True)),
        )
        for votes, p in zip(*tables, strict=True)
    ]
    pairs.append(predicted(None, {"a": 0.5, "b": 0.5, "c": 0.0}))
    found = score(TYPES["label"].tables_of(*map(list, zip(*pairs, strict=True))))
    q = np.vstack([tables[0] / tables[0].sum(1, keepdims=True), [1, 0, 0]])
    p = np.vstack([tables[1], [0.5, 0.5, 0]])
    p /= p.sum(1, keepdims=True)
    torch_loss = torch.nn.functional.cross_entropy(
        torch.from_numpy(np.log(np.maximum(p, 1e-12))), torch.from_numpy(q)
    )
    assert found["soft_cross_entropy"] == pytest.approx(float(torch_loss), rel=1e-6)
    assert found["agreement"] == pytest.approx(q[:-1].max(1).mean())
    assert found["votes_entropy"] <= found["soft_cross_entropy"]


def test_without_probabilities_the_votes_still_bound_the_accuracy(tmp_path: Path) -> None:
    example = TextExample(0, "x", None, "a", votes=(("a", 3), ("b", 1)))
    file = write_predictions(tmp_path / "p.jsonl", [{"label": "a"}], [example])
    found = score(align_runs([file])[0])
    assert found["agreement"] == 0.75 and "soft_cross_entropy" not in found
    (file := tmp_path / "bad.jsonl").write_text(
        '{"label": "a", "text": "x", "gold": "a", "votes": {"a": -1}}\n'
    )
    with pytest.raises(DataError, match=r"bad.jsonl:1: -1 votes for the label 'a'"):
        align_runs([file])
