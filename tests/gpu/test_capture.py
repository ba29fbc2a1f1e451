"""Recorded steps on a GPU: the trajectory of plain ones, no wait for the device, no silent NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finetune.config.tasks import TrainConfig
from finetune.training import graphs
from finetune.training import trainer as train
from finetune.training.graphs import GraphStep
from finetune.training.recording import CudaRecorder
from finetune.training.trainer import fit
from tests import small_data as data
from tests.tiny import save_tiny_checkpoint
from tests.training.test_graphs import TINY, config_of, logged, task_of

pytestmark = pytest.mark.gpu

LONG: dict[str, Any] = {
    "precision": "bf16", "lr": 1e-3, "epochs": 4.0, "weight_decay": 0.1, "clip": 0.5, "warmup": 0.2
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    for family in ("bert", "roberta", "modernbert", "electra", "albert", "distilbert"):
        save_tiny_checkpoint(folder / family, family, **TINY)
    save_tiny_checkpoint(folder / "means", "modernbert", classifier_pooling="mean", **TINY)
    save_tiny_checkpoint(folder / "dropout", "roberta", **(TINY | {"dropout": 0.1}))
    data.sentiment(folder / "single", (80, 12, 12))
    data.topics(folder / "multi", (60, 12, 12))
    data.numbers(folder / "regression", (60, 12, 12))
    data.entities(folder / "tag", (60, 12, 12))
    return folder


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GraphStep]]:
    """The steps that runs make, each with the number of its replays in ``replays``."""
    made: list[GraphStep] = []

    class Counting(CudaRecorder):
        replays = 0

        def record(self, action: graphs.Action) -> graphs.Action:
            replay = super().record(action)

            def counted() -> None:
                self.replays += 1
                before = torch.cuda.get_sync_debug_mode()
                torch.cuda.set_sync_debug_mode("error")
                replay()
                torch.cuda.set_sync_debug_mode(before)

            return counted

    choose = graphs.choose_step

    def choosing(*arguments: Any) -> Any:
        step = choose(*arguments)
        if isinstance(step, GraphStep):
            made.append(step)
        return step

    monkeypatch.setattr(graphs, "CudaRecorder", Counting)
    monkeypatch.setattr(train, "choose_step", choosing)
    yield made


def run(config: TrainConfig, out: Path, **changes: Any) -> dict[str, torch.Tensor]:
    config = replace(config, out=str(out), **changes)
    fit(task_of(config), config)
    return load_file(str(out / "last/model.safetensors"))


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *((kind, "bert") for kind in ("single", "multi", "regression", "weighted", "windows")),
        *(("tag", f) for f in ("roberta", "modernbert", "electra", "albert", "distilbert")),
        ("single", "means"),
    ],
)
def test_the_trajectory_is_that_of_plain_steps(
    kind: str, family: str, place: Path, tmp_path: Path, engines: list[GraphStep]
) -> None:
    """Without dropout, within the noise of bf16."""
    config = config_of(kind, place, family, **LONG)
    plain = run(config, tmp_path / "off")
    captured = run(config, tmp_path / "on", cuda_graphs="on")
    assert not engines[0].reason and engines[0].recorder.replays > 5  # type: ignore[attr-defined]
    for mine, other in zip(*(logged(tmp_path / n) for n in ("on", "off")), strict=True):
        assert mine["step"] == other["step"]
        if "loss" in other:
            assert mine["loss"] == pytest.approx(other["loss"], rel=0.05, abs=0.02)
            assert mine["lr"] == other["lr"]
    fresh = load_file(str(place / family / "model.safetensors"))
    inner = [n for n in plain if n in fresh and plain[n].shape == fresh[n].shape]
    moved = sum(float((plain[n] - fresh[n]).square().sum()) for n in inner)
    apart = sum(float((plain[n] - captured[n]).square().sum()) for n in inner)
    assert inner and 0 < moved and apart < 0.1 * moved


def test_masks_of_dropout_differ_from_replay_to_replay(
    place: Path, tmp_path: Path, engines: list[GraphStep]
) -> None:
    """Replays after the run, when a compact embedding would be gone: so it is left whole."""
    config = config_of("single", place, "dropout", active_vocabulary="off", **LONG)
    run(config, tmp_path / "run", cuda_graphs="on")
    engine = engines[0]
    recording = next(r for r in engine.recordings.values() if r.replay is not None)
    engine.rates.zero_()
    losses = []
    for _ in range(4):
        assert recording.replay is not None
        recording.replay()
        losses.append(float(engine.loss))
    assert len(set(losses)) == 4


def test_a_loss_that_is_no_number_is_found_at_log_steps(
    place: Path, tmp_path: Path, engines: list[GraphStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("single", place, **LONG)
    step, calls = GraphStep.__call__, 0

    def poisoned(self: GraphStep, *batches: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 31:
            with torch.no_grad():
                self.weights[0].fill_(float("nan"))
        return step(self, *batches, **settings)

    monkeypatch.setattr(GraphStep, "__call__", poisoned)
    with pytest.raises(ValueError, match="the loss is no longer a number"):
        run(config, tmp_path / "run", cuda_graphs="on")
    assert engines[0].recorder.replays > 0 and not engines[0].reason  # type: ignore[attr-defined]


def test_a_broken_capture_leaves_a_run_that_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait for the device inside the capture alone, with dropout after it."""
    config = config_of("single", place, "dropout", **LONG)
    compute = graphs.GraphStep._compute

    def waiting(self: GraphStep, recording: Any) -> None:
        compute(self, recording)
        if torch.cuda.is_current_stream_capturing():
            self.loss.item()

    monkeypatch.setattr(graphs.GraphStep, "_compute", waiting)
    lines: list[str] = []
    monkeypatch.setattr(train.Reporter, "say", lambda self, line: lines.append(line))
    run(config, tmp_path / "run", cuda_graphs="auto")
    assert [line for line in lines if "CUDA graphs: steps run without from here on" in line]
    with pytest.raises(ValueError, match="--cuda-graphs on: steps cannot be captured"):
        run(config, tmp_path / "other", cuda_graphs="on")
