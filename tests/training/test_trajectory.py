"""One trajectory, however it is computed: packed, padded, cut into micro-batches, in processes,
interrupted and continued."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from finetune.config.tasks import ChoiceConfig, ClassifyConfig, NerConfig, TagConfig, TrainConfig
from finetune.pretraining.settings import PretrainConfig
from finetune.runtime import files
from finetune.runtime.files import SaveError
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import Interrupted
from finetune.tasks import load_task
from finetune.training.checkpoint import check_files, write_checkpoint_checksums
from finetune.training.step import Step
from finetune.training.trainer import fit
from tests import small_data as data
from tests.command import in_two_processes, run
from tests.forks import in_two_forks
from tests.tiny import save_tiny_checkpoint
from tests.training.stopping import interrupt_in_step

EXACT = {"lr": 1e-2, "epochs": 2.0, "batch_size": 8, "precision": "fp32", "max_length": 32}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trajectory")
    save_tiny_checkpoint(folder / "bert", "bert", dropout=0.0)
    save_tiny_checkpoint(folder / "dropout", "bert", dropout=0.1)
    for family in ("deberta-v2", "roberta", "mpnet"):
        save_tiny_checkpoint(folder / f"{family}-dropout", family, dropout=0.1)
    save_tiny_checkpoint(folder / "modernbert", "modernbert", dropout=0.0)
    data.sentiment(folder / "sentiment")
    data.entities(folder / "entities", words=3)
    data.documents(folder / "documents")
    data.choices(folder / "choices")
    data.running_text(folder / "text", short=True)
    return folder


def config_of(kind: str, place: Path, out: Path, **changes) -> TrainConfig:
    model = str(place / changes.pop("model", "bert"))
    settings = {**EXACT, "model": model, "out": str(out), **changes}
    if kind in ("tag", "crf"):
        crf = {"crf": True, **settings} if kind == "crf" else settings
        return TagConfig(data=str(place / "entities"), overlap=8, **crf)
    if kind == "ner":
        return NerConfig(data=str(place / "entities"), overlap=8, **settings)
    if kind == "choice":
        return ChoiceConfig(data=str(place / "choices"), **settings)
    if kind == "context":
        return TagConfig(data=str(place / "documents"), context="doc", overlap=8, **settings)
    if kind == "balanced":
        settings["sampling"] = "balanced:0.5"
    if kind == "pretrain":
        objectives = {"mask": "spans", "boundary": True, "nsp": "modernbert" not in model}
        return PretrainConfig(data=str(place / "text"), **{**objectives, **settings})
    return ClassifyConfig(data=str(place / "sentiment"), **settings)


def task_of(kind: str) -> str:
    return {"crf": "tag", "context": "tag", "balanced": "classify"}.get(kind, kind)


def weights_after(kind: str, config: TrainConfig) -> dict[str, torch.Tensor]:
    """Train in double precision (differences are then rounding alone) and return the weights."""
    task, dataset = load_task(config, task_of(kind))
    torch.manual_seed(7)
    head = task.head()
    fit(task, dataset, config, head=head.double())
    return {name: value.detach().clone() for name, value in head.named_parameters()}


@pytest.mark.parametrize(
    "kind, model, changes",
    [
        ("classify", "dropout", {}),
        ("classify", "roberta-dropout", {}),
        ("tag", "deberta-v2-dropout", {}),
        ("classify", "mpnet-dropout", {}),
        ("crf", "dropout", {}),
        ("ner", "dropout", {}),
        ("ner", "dropout", {"representation": "biaffine"}),
        ("context", "dropout", {}),
        ("choice", "dropout", {}),
        ("pretrain", "dropout", {"mask": "words", "boundary": False, "nsp": False}),
        ("balanced", "dropout", {"loss": "focal:2", "class_weights": "auto"}),
        ("tag", "dropout", {"label_smoothing": 0.1, "word_score": "mean"}),
        pytest.param(
            "ner",
            "dropout",
            {"loss": "focal", "class_weights": "auto", "multi_label": True},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_dropout_does_not_depend_on_the_layout(
    kind: str, model: str, changes: dict, place: Path, tmp_path: Path
):
    """Masks follow from seed, step and example, packed or padded."""
    settings = {"model": model, "steps": 2, "limit_eval": 1, **changes}
    base = config_of(kind, place, tmp_path / "a", **settings)
    expected = weights_after(kind, base)
    layouts = [{"batching": "padded", "max_tokens": 40}]
    layouts += [{"max_tokens": 40}] if kind == "classify" else []
    for number, changes in enumerate(layouts):
        other = replace(base, out=str(tmp_path / f"b{number}"), **changes)
        for name, value in weights_after(kind, other).items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9, msg=name)
    if kind != "classify":
        return
    other = replace(base, out=str(tmp_path / "c"), seed=2)
    found = weights_after(kind, other)
    assert any((value - expected[name]).abs().max() > 1e-4 for name, value in found.items())


def command(config: TrainConfig, kind: str, *more: str) -> list[str]:
    names = ("model", "data", "out", "lr", "epochs", "precision", "batch_size", "max_length")
    flags = [f"--{name.replace('_', '-')}={getattr(config, name)}" for name in names]
    own = ["--overlap", "8"] if task_of(kind) == "tag" else []
    own += ["--context", "doc"] if kind == "context" else []
    own += ["--mask", "spans", "--boundary", "--nsp"] if kind == "pretrain" else []
    return [sys.executable, "-m", "finetune", task_of(kind), *flags, *own, *more]


@pytest.mark.parametrize(
    "kind, model, changes",
    [
        ("tag", "dropout", {}),
        pytest.param("tag", "bert", {"sparse_embeddings": "on"}, marks=pytest.mark.slow),
        pytest.param("pretrain", "dropout", {}, marks=pytest.mark.slow),
        pytest.param("context", "bert", {}, marks=pytest.mark.slow),
        pytest.param("choice", "dropout", {}, marks=pytest.mark.slow),
    ],
)
def test_number_of_processes_does_not_matter(
    kind: str, model: str, changes: dict, place: Path, tmp_path: Path
):
    one = config_of(kind, place, tmp_path / "one", model=model)
    fit(*load_task(one, task_of(kind)), one)
    two = config_of(kind, place, tmp_path / "two", model=model, batch_size=8)
    more = [f"--{name.replace('_', '-')}={value}" for name, value in changes.items()]
    processes = in_two_forks(command(two, kind, *more))
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (
        load_file(str(tmp_path / n / "last" / "model.safetensors")) for n in ("one", "two")
    )
    if kind == "pretrain":
        first, second = (
            model | load_file(str(tmp_path / n / "last" / "boundary.safetensors"))
            for n, model in (("one", first), ("two", second))
        )
    for name, value in first.items():
        if kind == "choice" and name == "classifier.bias":
            continue  # the same for all choices: as below
        if not name.endswith("key.bias"):  # no gradient but rounding, which AdamW blows up
            torch.testing.assert_close(second[name], value, rtol=0, atol=2e-4, msg=name)
    lines = [
        (tmp_path / n / "predictions.test.jsonl").read_text().splitlines() for n in ("one", "two")
    ]
    names = {"pretrain": "subwords", "choice": "choice"}.get(kind, "tags")
    assert [json.loads(x)[names] for x in lines[0]] == [json.loads(x)[names] for x in lines[1]]


@pytest.mark.slow
def test_a_signal_to_one_of_two_processes_stops_both(place: Path, tmp_path: Path):
    config = config_of("classify", place, tmp_path / "run", epochs=1000.0)
    processes = in_two_processes(command(config, "classify", "--eval-every", "100000"))
    log, deadline = tmp_path / "run" / "log.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and log.read_text()):
        assert [process.poll() for process in processes] == [None, None], "ended too early"
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGHUP)  # not the one that writes
    outputs = [process.communicate(timeout=120) for process in processes]
    codes = [128 + signal.SIGTERM, 128 + signal.SIGHUP]
    assert [process.returncode for process in processes] == codes, outputs
    step = _step(tmp_path / "run" / "last" / "trainer_state.json")
    assert step > 0 and f"stopped at step {step} of" in outputs[0][1]


@pytest.mark.slow
def test_what_cannot_be_saved_ends_both_of_two_processes(place: Path, tmp_path: Path):
    config = config_of("classify", place, tmp_path / "run")
    limited = ["bash", "-c", 'ulimit -f 40; exec "$@"', "bash"]  # KiB of a file
    processes = in_two_processes([*limited, *command(config, "classify")])
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [2, 2], outputs
    assert all("best: could not be written (" in said for _, said in outputs), outputs


def same_files(one: Path, other: Path) -> None:
    for name in (
        "last/model.safetensors",
        "last/optimizer.safetensors",
        "best/model.safetensors",
        "metrics.json",
        "predictions.test.jsonl",
    ):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_another_number_of_processes_continues_the_trajectory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = {"model": "dropout", "batch_size": 8}
    whole = config_of("tag", place, tmp_path / "whole", **settings)
    fit(*load_task(whole, "tag"), whole)
    parts = replace(whole, out=str(tmp_path / "parts"))
    interrupt_in_step(5, monkeypatch)
    with pytest.raises(Interrupted, match="stopped at step 5"):
        fit(*load_task(parts, "tag"), parts)
    monkeypatch.undo()
    processes = in_two_forks(command(parts, "tag", "--resume", "auto"))
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "the run had 1 process, and now has 2: the weights will differ by" in outputs[0][1]
    first, second = (
        load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parts")
    )
    for name, value in first.items():
        if not name.endswith("key.bias"):  # no gradient but rounding, which AdamW blows up
            torch.testing.assert_close(second[name], value, rtol=0, atol=2e-4, msg=name)
    assert json.loads((tmp_path / "parts" / "config.json").read_text())["num_processes"] == 2
    resumed = replace(parts, resume=True)  # and back
    fit(*load_task(resumed, "tag"), resumed)


def test_auto_starts_and_continues(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = config_of("classify", place, tmp_path / "whole", model="dropout")
    fit(*load_task(whole, "classify"), whole)
    parts = replace(whole, out=str(tmp_path / "parts"))
    requeued = command(parts, "classify", "--resume", "auto")[3:]
    interrupt_in_step(5, monkeypatch)
    outcome = run(*requeued)
    monkeypatch.undo()
    assert outcome.code == 128 + signal.SIGINT and "stopped at step 5" in outcome.err
    again = outcome.err.partition("Continue with: ")[2]
    assert again.count("--resume") == 1 and again.rstrip().endswith("--resume")
    outcome = run(*requeued)
    assert outcome.code == 0 and "continuing from step 5" in outcome.err
    same_files(tmp_path / "whole", tmp_path / "parts")
    assert run(*requeued).code == 0, "a finished run is scored again"
    same_files(tmp_path / "whole", tmp_path / "parts")
    (other := tmp_path / "other").mkdir()
    (other / "notes.txt").write_text("mine")
    parts = replace(parts, out=str(other))
    outcome = run(*command(parts, "classify", "--resume=auto")[3:])
    assert outcome.code == 2 and "holds other files (notes.txt)" in outcome.err


def _step(state: Path) -> int:
    try:
        return json.loads(state.read_text())["step"]
    except (OSError, ValueError):
        return -1


def test_training_goes_on_while_a_checkpoint_is_written(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A disk that fails meanwhile ends the run; the checkpoint before stays."""
    config = config_of("classify", place, tmp_path / "run", steps=8, save_every=2, eval_every=8)
    step, sync = Step.__call__, files._sync
    number, third_step, saves = 0, threading.Event(), []

    def counted(self, batches, **settings):
        nonlocal number
        number += 1
        if number == 3:
            third_step.set()
        return step(self, batches, **settings)

    def slow(folder: Path) -> None:
        assert third_step.wait(60), "training waits for the disk"
        saves.append(folder)
        if len(saves) == 2:
            raise OSError(28, "No space left on device", str(folder))
        sync(folder)

    monkeypatch.setattr(Step, "__call__", counted)
    monkeypatch.setattr(files, "_sync", slow)
    with pytest.raises(SaveError, match=r"last: could not be written \(No space left"):
        fit(*load_task(config, "classify"), config)
    check_files(last := tmp_path / "run" / "last")
    assert _step(last / "trainer_state.json") == 2
    assert sorted(path.name for path in last.parent.iterdir()) == [
        "config.json",
        "last",
        "log.jsonl",
    ]


def test_resume_reports_another_number_of_threads(place: Path, tmp_path: Path):
    config = config_of("classify", place, tmp_path / "run", steps=2)
    fit(*load_task(config, "classify"), config)
    state = tmp_path / "run" / "last" / "trainer_state.json"
    saved = json.loads(state.read_text())
    threads = torch.get_num_threads()
    assert saved["num_threads"] == threads
    resumed, note = replace(config, resume=True), "the run was started with 96 CPU threads"
    for before, noted in ((96, True), (threads, False), (None, False)):
        state.write_text(json.dumps({**saved, "num_threads": before}))
        write_checkpoint_checksums(state.parent)
        stream = io.StringIO()
        fit(*load_task(resumed, "classify"), resumed, reporter=Reporter(stream=stream))
        assert (note in stream.getvalue()) == noted


def test_early_stopping_survives_resume(place: Path, tmp_path: Path):
    config = config_of("classify", place, tmp_path / "run", lr=1e-9, patience=2, epochs=20.0)
    result = fit(*load_task(config, "classify"), config)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    assert sum("split" in line for line in log) == 3  # the first is the best, then two no better
    again = fit(*load_task(config, "classify"), replace(config, resume=True))
    assert again.metrics == result.metrics


def test_the_saved_model_must_score_as_the_trained_one(place: Path, tmp_path: Path):
    config = config_of("tag", place, tmp_path / "run", lr=3e-3, epochs=8.0)
    fit(*load_task(config, "tag"), config)
    path = tmp_path / "run" / "best" / "model.safetensors"
    weights = load_file(path)
    save_file({name: torch.zeros_like(value) for name, value in weights.items()}, path)
    config = replace(config, resume=True)
    with pytest.raises(RuntimeError, match=r"the saved model scores 0\.0000 on validation, but"):
        fit(*load_task(config, "tag"), config)
