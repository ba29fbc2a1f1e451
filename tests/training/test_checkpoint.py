"""The state of optimizer, trainer and random numbers, saved and loaded."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from finetune.config.tasks import NerConfig, TagConfig, TrainConfig, settings
from finetune.evaluation.runs import RunFolder
from finetune.runtime import files
from finetune.runtime.files import SaveError
from finetune.training.checkpoint import (
    TrainerState,
    check_files,
    load_checkpoint,
    save_checkpoint,
)
from finetune.training.run_folder import RunLog, open_run, require_free, require_same_run
from finetune.types import UserError
from tests import fixtures as fx
from tests.training.stopping import interrupted


def save_moments(folder: Path, moments: Any) -> None:
    masters: Any = SimpleNamespace(moments=lambda optimizer: moments)
    save_checkpoint(folder, {}, masters, None, TrainerState(step=1))  # type: ignore[arg-type]


def test_damaged_files_are_found(tmp_path: Path) -> None:
    moments = {"weight": {"exp_avg": torch.randn(3, 2), "step": torch.tensor(1.0)}}
    save_moments(tmp_path, moments)
    check_files(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        saved = path.read_bytes()
        half = len(saved) // 2
        flipped = saved[:half] + bytes([saved[half] ^ 1]) + saved[half + 1 :]
        for damaged in (flipped, saved[:half], b"", None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(UserError, match="damaged, changed or missing"):
                check_files(tmp_path)
        path.write_bytes(saved)
    check_files(tmp_path)


@pytest.mark.parametrize("name", ["weight", "0"])
def test_moments_of_other_weights_are_refused(name: str, tmp_path: Path) -> None:
    moments = {name: {"exp_avg": torch.randn(3, 2), "step": torch.tensor(1.0)}}
    save_moments(tmp_path, moments)
    weight = SimpleNamespace(shape=torch.Size([2, 2]))
    masters: Any = SimpleNamespace(weights={"weight": weight})
    with pytest.raises(UserError, match="other names or shapes"):
        load_checkpoint(tmp_path, masters, None)  # type: ignore[arg-type]


def test_a_log_with_a_line_that_was_cut_is_continued(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5}\n{"step": 3, "lo')
    main = SimpleNamespace(is_main_process=True, log_with=[])
    RunLog(path, main, 1)
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n'
    RunLog(path, main, 0)
    assert path.read_text() == ""


@pytest.mark.slow
def test_a_run_may_save_more_often_once_it_was_killed(tmp_path: Path) -> None:
    """Its log may have more steps than the new bound allows without a checkpoint."""
    config = fx.config("classify", out=tmp_path / "run", steps=None, epochs=3)
    with interrupted(6):
        fx.fit(config)
    shutil.rmtree(tmp_path / "run" / "last")
    again = replace(config, resume=True, save_every=1)
    fx.fit(again)
    shutil.rmtree(tmp_path / "run" / "last")
    with pytest.raises(UserError, match="last is missing, but the run had reached it"):
        fx.fit(again)


@pytest.mark.parametrize("line", ['{"step": 1, "step": 2}', "[{}}"])
def test_a_log_that_was_edited_is_refused(line: str, tmp_path: Path):
    (path := tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(UserError, match=r"log\.jsonl:2: .*"):
        RunLog(path, SimpleNamespace(is_main_process=True, log_with=[]), 1)


def test_nothing_is_replaced_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint must not name a best model that is not on disk."""
    sync = files._sync

    def full(folder: Path) -> None:
        if "best" in folder.name:
            raise OSError("full")
        sync(folder)

    monkeypatch.setattr(files, "_sync", full)
    config = TagConfig(out=str(tmp_path / "run"))
    with pytest.raises(SaveError, match="full"), open_run(config) as writer:
        for folder in (writer.adapter, writer.best, writer.last):
            with writer.replacing(folder) as fresh:
                (fresh / "file").touch()
    assert writer.adapter.is_dir() and not writer.last.exists()


def run_of(folder: Path, config: TrainConfig, task: str = "tag", **saved: object) -> RunFolder:
    """A run that was started with a configuration."""
    content = {"task": task, **settings(config), "fingerprint": "f", "num_processes": 2, **saved}
    (folder / "config.json").write_text(json.dumps(content))
    return RunFolder.open(folder)


def test_a_run_continues_with_the_same_settings_and_data(tmp_path: Path) -> None:
    run = run_of(tmp_path, TagConfig(data="d", columns=("words=tokens",)), epochs_used=10.0)
    config = TagConfig(data="d", columns=("words=tokens",), max_tokens=99)
    require_same_run(run, config, "f")
    require_same_run(run, replace(config, data="elsewhere"), "f")
    for arguments, problem in (
        (
            (replace(config, lr=0.1), "f"),
            r"now 0.1: .* \(those in .*config\.json\), or use",
        ),
        ((replace(config, epochs=3), "f"), r"was started with epochs = unset \(10\), now 3"),
        ((config, "g"), "other data than d has now"),
        ((NerConfig(data="d"), "f"), "holds a run of `finetune tag`: continue it with that"),
    ):
        with pytest.raises(UserError, match=problem):
            require_same_run(run, *arguments)


def test_a_model_may_be_named_by_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/bert", "b/bert", "run"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path / "run", TagConfig(model="a/bert"))
    require_same_run(run, TagConfig(model=str(tmp_path / "a" / "bert")))
    with pytest.raises(UserError, match="was started with model = 'a/bert', now 'b/bert'"):
        require_same_run(run, TagConfig(model="b/bert"))
    (tmp_path / "a").rename(tmp_path / "moved")
    require_same_run(run, TagConfig(model="moved/bert"))
    with pytest.raises(UserError, match="now 'moved'"):
        require_same_run(run, TagConfig(model="moved"))


def test_a_new_run_overwrites_nothing_of_others(tmp_path: Path) -> None:
    require_free(RunFolder.open(tmp_path / "absent" / "run"))
    require_free(RunFolder.open(tmp_path))
    (tmp_path / ".lock").touch()
    require_free(RunFolder.open(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "README.md").write_text("mine")
    assert not RunFolder.open(tmp_path).is_run
    with pytest.raises(UserError, match=r"holds other files \(README.md, config.json\)"):
        require_free(RunFolder.open(tmp_path))
    require_free(run := run_of(tmp_path, TagConfig()))
    (tmp_path / "last").mkdir()
    with pytest.raises(UserError, match="holds a run already: add --resume"):
        require_free(run)
