"""One trajectory, however it is computed: packed, padded, cut into micro-batches, in processes,
interrupted and continued."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import FlaubertConfig, FlaubertWithLMHeadModel

from finetune.config.tasks import TrainConfig
from finetune.models.dropout import FastDropout
from finetune.runtime import files
from finetune.runtime.files import SaveError
from finetune.training.checkpoint import check_files
from tests import fixtures as fx
from tests import tiny
from tests.command import in_two_processes, run
from tests.training.same_weights import (
    same_files,
    same_weights,
    train_in_two_processes,
    weights_after,
)
from tests.training.stopping import at_step, interrupt_in_step, interrupted
from tests.training.test_multitask import write_recipe

SLOW = pytest.mark.slow
SUMS_OF_PARTS = [(setup, "bert", {}) for setup in ("crf", "ner windows", "context", "choice")]
SUMS_OF_PARTS += [
    ("balanced", "roberta", {"loss": "focal:2", "class_weights": "auto"}),
    ("ner windows", "squeezebert", {"representation": "ffn"}),
    ("multi ner", "bert", {"loss": "focal", "class_weights": "auto"}),
]
EXACT: dict[str, Any] = {"lr": 1e-2, "epochs": 2.0, "steps": None, "max_length": 32}


def settings_of(family: str = "bert", dropout: float = 0.0, **changes: Any) -> dict[str, Any]:
    return {**EXACT, "model": fx.checkpoint(family, dropout=dropout), **changes}


def config_of(
    setup: str, out: Path, family: str = "bert", dropout: float = 0.0, **changes: Any
) -> TrainConfig:
    return fx.config(setup, out=out, **settings_of(family, dropout, **changes))


@pytest.mark.parametrize(
    ("setup", "family", "changes"),
    [
        ("classify", "bert", {}),
        ("tag windows", "deberta-v2", {"label_smoothing": 0.1, "label_subwords": "all"}),
        ("pretrain", "bert", {"data": "short_text", "mask": "words"}),
        # losses of parts are those of the whole: tests/tasks/test_tasks.py
        *(pytest.param(*case, marks=SLOW) for case in SUMS_OF_PARTS),
    ],
)
def test_the_layout_does_not_matter(
    setup: str,
    family: str,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Packed or padded, in one pass or several, without dropout."""
    monkeypatch.setattr(FastDropout, "forward", lambda self, input: input)  # of span heads
    if "data" in changes:
        changes = {**changes, "data": fx.data(changes["data"])}
    settings = {"steps": 2, **changes}
    base = config_of(setup, tmp_path / "a", family, **settings)
    expected = weights_after(base)
    for number, is_padded in enumerate([False, True] if setup == "classify" else [True]):
        other = replace(base, out=str(tmp_path / f"b{number}"), max_tokens=100)
        with fx.padded_rows(is_padded):
            weights = weights_after(other)
        for name, value in weights.items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9, msg=name)
    if setup == "classify":
        found = weights_after(replace(base, out=str(tmp_path / "c"), seed=2))
        assert any((value - expected[name]).abs().max() > 1e-4 for name, value in found.items())


@pytest.mark.parametrize(
    ("setup", "changes", "atol"),
    [
        ("tag windows", {}, 2e-4),
        ("ranking", {"max_tokens": 40}, 2e-4),
        pytest.param("nsp", {}, 2e-4, marks=SLOW),
        pytest.param("context", {}, 2e-4, marks=SLOW),
        pytest.param("choice", {}, 2e-4, marks=SLOW),
        # batches of 9, then of 1, for 2 processes
        pytest.param("softmax", {"batch_size": 9, "max_tokens": 40}, 2e-4, marks=SLOW),
        pytest.param("classify", {"precision": "bf16", "lr": 1e-3, "steps": 4}, 2e-3, marks=SLOW),
        pytest.param("multitask", {}, 2e-4, marks=SLOW),
    ],
)
def test_number_of_processes_does_not_matter(
    setup: str, changes: dict[str, Any], atol: float, tmp_path: Path
):
    if setup == "multitask":
        recipe = write_recipe(tmp_path)
        text = recipe.read_text().replace(str(fx.checkpoint()), str(fx.checkpoint(dropout=0.0)))
        recipe.write_text(text)
        commands = [["run", recipe, "--out", tmp_path / name] for name in ("one", "two")]
    else:
        settings = settings_of(**changes)
        commands = [fx.words(setup, tmp_path / name, **settings) for name in ("one", "two")]
    run(*commands[0]).ok()
    train_in_two_processes(*commands[1], fresh=False)
    parts = ("mood", "names") if setup == "multitask" else (".",)
    free = ("key.bias", "classifier.bias") if setup == "choice" else ("key.bias",)
    for part in parts:  # the bias of a choice is that of all others
        same_weights(tmp_path / "one/last" / part, tmp_path / "two/last" / part, atol, free)
    answers = {"nsp": "subwords", "choice": "choice", "tag windows": "tags", "context": "tags"}
    if name := answers.get(setup):  # bf16 rounds labels that are close
        one, two = (
            [json.loads(line)[name] for line in (tmp_path / n / "predictions.test.jsonl").open()]
            for n in ("one", "two")
        )
        assert one == two


def test_a_layer_may_have_no_gradient_in_one_of_two_processes(tmp_path: Path):
    """FlauBERT skips layers by chance, and each process has random numbers of its own."""
    model, tokenizer = tmp_path / "flaubert", tiny.tokenizer("roberta")
    FlaubertWithLMHeadModel(
        FlaubertConfig(emb_dim=32, n_heads=4, n_layers=2, layerdrop=0.5, vocab_size=len(tokenizer))
    ).save_pretrained(model)
    tokenizer.save_pretrained(model)
    words = fx.words("classify", tmp_path / "run", model=model, steps=8)
    train_in_two_processes(*words, fresh=False)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert all(0 < line["loss"] < 2 for line in map(json.loads, lines) if "loss" in line)


@pytest.mark.slow
def test_a_signal_to_one_of_two_processes_stops_both(tmp_path: Path):
    words = fx.words("classify", tmp_path / "run", **settings_of(epochs=1000.0))
    command = [sys.executable, "-m", "finetune", *words, "--eval-every", "100000"]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    processes = in_two_processes(command)
    signal.signal(signal.SIGHUP, before)
    log, deadline = tmp_path / "run" / "log.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and log.read_text()):
        assert [process.poll() for process in processes] == [None, None], "ended too early"
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGHUP)  # not the one that writes
    outputs = [process.communicate(timeout=120) for process in processes]
    codes = [128 + signal.SIGTERM, 128 + signal.SIGHUP]
    assert [process.returncode for process in processes] == codes, outputs
    step = _step(tmp_path / "run")
    assert step > 0 and f"stopped at step {step} of" in outputs[0][1]


@pytest.mark.slow
def test_what_cannot_be_saved_ends_both_of_two_processes(tmp_path: Path):
    words = fx.words("classify", tmp_path / "run", **settings_of())
    limited = ["bash", "-c", 'ulimit -f 40; exec "$@"', "bash"]  # KiB of a file
    processes = in_two_processes([*limited, sys.executable, "-m", "finetune", *words])
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [2, 2], outputs
    assert all("best: could not be written (" in said for _, said in outputs), outputs


@pytest.mark.slow
def test_another_number_of_processes_continues_the_trajectory(tmp_path: Path):
    """One process is interrupted, two are killed, two others end the run."""
    out, settings = tmp_path / "parts", settings_of(lr=1e-3, epochs=20.0)
    fx.fit(fx.config("tag windows", out=tmp_path / "whole", **settings))
    parts = fx.config("tag windows", out=out, **settings)
    with interrupted(5):
        fx.fit(parts)
    words = [*fx.words("tag windows", out, **settings), "--save-every", "1", "--resume", "auto"]
    processes = in_two_processes([sys.executable, "-m", "finetune", *words])
    step = 0
    while step < 8 and processes[0].poll() is None:
        time.sleep(0.01)
        with contextlib.suppress(FileNotFoundError):  # a new checkpoint replaces the last one
            step = _step(out)
    for process in processes:
        process.kill()
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2, outputs
    note = "the run had 1 process, and now has 2: the weights will differ by"
    assert note in outputs[0][1] and 8 <= step < 80
    train_in_two_processes(*words, fresh=False)
    same_weights(tmp_path / "whole" / "last", out / "last")
    assert json.loads((out / "config.json").read_text())["num_processes"] == 2
    fx.fit(replace(parts, resume=True))  # and back


def test_auto_starts_and_continues(tmp_path: Path):
    settings = settings_of(dropout=0.1)
    fx.train("classify", tmp_path / "whole", **settings).ok()
    requeued = [*fx.words("classify", tmp_path / "parts", **settings), "--resume", "auto"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_in_step(5, patch)
        outcome = run(*requeued)
    assert outcome.code == 128 + signal.SIGINT and "stopped at step 5" in outcome.err
    again = outcome.err.partition("Continue with: ")[2]
    assert again.count("--resume") == 1 and again.rstrip().endswith("--resume")
    (notes := tmp_path / "parts" / ".notes.txt.new").touch()
    assert "continuing from step 5" in run(*requeued).ok().err
    same_files(tmp_path / "whole", tmp_path / "parts")
    assert notes.exists()
    run(*requeued).ok()  # a finished run is scored again
    same_files(tmp_path / "whole", tmp_path / "parts")
    (other := tmp_path / "other").mkdir()
    (other / "notes.txt").write_text("mine")
    fx.train("classify", other, "--resume=auto").refused("holds other files (notes.txt)")


def _step(run_folder: Path) -> int:
    return json.loads((run_folder / "last" / "trainer_state.json").read_text())["step"]


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A disk that fails meanwhile ends the run; the checkpoint before stays."""
    config = config_of("classify", tmp_path / "run", steps=8, save_every=2, eval_every=8)
    sync, third_step, saves = files._sync, threading.Event(), []

    def slow(folder: Path) -> None:
        assert third_step.wait(60), "training waits for the disk"
        saves.append(folder)
        if len(saves) == 2:
            raise OSError(28, "No space left on device", str(folder))
        sync(folder)

    at_step(3, third_step.set, monkeypatch)
    monkeypatch.setattr(files, "_sync", slow)
    with pytest.raises(SaveError, match=r"last: could not be written \(No space left"):
        fx.fit(config)
    check_files(tmp_path / "run" / "last")
    assert _step(tmp_path / "run") == 2 and len(saves) == 2, "nothing is written after an error"
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"config.json", "last", "log.jsonl"}
