"""A folder is the old one or the new one, whatever happens while it is written."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from finetune.config.tasks import TagConfig
from finetune.training import checkpoint
from finetune.training.checkpoint import (
    SaveError,
    TrainerState,
    is_disk_error,
    load_random_state,
    load_training_state,
    recover_folder,
    replace_folder,
    save_random_state,
    save_training_state,
    write_text,
)
from finetune.training.run_folder import RunLog
from finetune.types import UserError


def fill(folder: Path, content: str) -> None:
    """A complete folder: two files, one of them in a subfolder."""
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text(content)
    (folder / "inner" / "b.txt").write_text(content)


def content(folder: Path) -> str:
    """What a complete folder holds."""
    first, second = ((folder / name).read_text() for name in ("a.txt", "inner/b.txt"))
    assert first == second
    return first


def write(folder: Path, text: str) -> None:
    with replace_folder(folder) as fresh:
        assert list(fresh.iterdir()) == []
        shutil.rmtree(fresh)
        fill(fresh, text)


def test_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "best"
    write(folder, "one")
    assert content(folder) == "one"
    (folder / "extra").touch()
    write(folder, "two")
    assert content(folder) == "two"
    assert not (folder / "extra").exists(), "replaced, not merged"
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("error", [RuntimeError("ours"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("before", [True, False])
def test_an_error_inside_changes_nothing(error, before: bool, tmp_path: Path) -> None:
    folder = tmp_path / "last"
    if before:
        fill(folder, "old")
    with pytest.raises(type(error)) as caught, replace_folder(folder) as fresh:
        (fresh / "a.txt").write_text("half")
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == ([folder] if before else [])
    assert not before or content(folder) == "old"


def full_disk() -> list[Exception]:
    """ENOSPC as Python says it, and as safetensors' own error says it."""
    return [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ]


@pytest.mark.parametrize("error", full_disk(), ids=["python", "safetensors"])
def test_a_full_disk_is_said_and_harmless(error: Exception, tmp_path: Path) -> None:
    folder = tmp_path / "last"
    fill(folder, "old")
    with pytest.raises(SaveError) as caught, replace_folder(folder):
        raise error
    message = str(caught.value)
    assert message.startswith(f"{folder}: could not be saved (")
    assert "No space left on device" in message
    assert "Free disk space and continue with --resume." in message
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, ValueError), "the command line shows it as one line"
    assert content(folder) == "old"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_disk_that_fails_at_the_last_moment(tmp_path: Path, monkeypatch) -> None:
    fill(tmp_path / "last", "old")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoint.os, "fsync", fail)
    with pytest.raises(SaveError, match="Input/output error"):
        write(tmp_path / "last", "new")
    assert content(tmp_path / "last") == "old"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError), replace_folder(tmp_path / "file" / "last"):
        pass


def test_real_safetensors_error_is_a_disk_error(tmp_path: Path) -> None:
    with pytest.raises(Exception) as caught:
        save_file({"x": torch.zeros(2)}, str(tmp_path / "absent" / "file"))
    assert is_disk_error(caught.value)
    assert not is_disk_error(ValueError("os error 28"))


@pytest.mark.parametrize("kept", [*product([False, True], repeat=3)])
def test_recovery_from_every_state(kept: tuple[bool, bool, bool], tmp_path: Path) -> None:
    """The states that a crash can leave: `.new` is whole only where the folder is moved away."""
    folder, fresh, old = (tmp_path / name for name in ("last", "last.new", "last.old"))
    here, new, moved = kept
    if here:
        fill(folder, "folder")
    if moved:
        fill(old, "old")
    if new and moved and not here:
        fill(fresh, "new")
    elif new:
        fresh.mkdir()
        (fresh / "a.txt").write_text("ha")
    expected = "folder" if here else ("new" if new else "old") if moved else None
    recover_folder(folder)
    assert list(tmp_path.iterdir()) == ([folder] if expected else [])
    assert expected is None or content(folder) == expected
    recover_folder(folder)
    assert expected is None or content(folder) == expected


class Crash(BaseException):
    """The process is gone: no handler may run, so cleaning up is switched off too."""


def test_a_crash_at_any_step_leaves_a_whole_folder(tmp_path: Path, monkeypatch) -> None:
    """Every call that changes the disk is once the last one before the crash."""
    outcomes, number = [], 0
    while not outcomes or outcomes[-1] != "done":
        number += 1
        place = tmp_path / str(number)
        fill(place / "last", "old")
        with monkeypatch.context() as patched:
            _crash_after(patched, number)
            try:
                write(place / "last", "new")
                outcomes.append("done")
            except Crash:
                outcomes.append("crash")
        recover_folder(place / "last")
        assert content(place / "last") in ("old", "new")
        assert list(place.iterdir()) == [place / "last"]
    assert len(outcomes) >= 7
    assert content(tmp_path / str(number) / "last") == "new"


def _crash_after(patched, number: int) -> None:
    """After so many operations, nothing more reaches the disk."""
    count = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count > number - 1:
                raise Crash
            return function(*arguments, **options)

        return call

    patched.setattr(checkpoint.shutil, "rmtree", counted(shutil.rmtree))
    for name in ("mkdir", "rename"):
        patched.setattr(Path, name, counted(getattr(Path, name)))
    patched.setattr(checkpoint.os, "fsync", counted(checkpoint.os.fsync))


def test_write_text(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "metrics.json"
    write_text(path, "one — é\n")
    assert path.read_text(encoding="utf-8") == "one — é\n"
    with path.open(encoding="utf-8") as reader:
        write_text(path, "two")
        assert reader.read() == "one — é\n", "moved into place: nobody reads half a file"
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]

    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", fail)
    with pytest.raises(SaveError, match=r"metrics\.json: could not be written \(No space"):
        write_text(path, "three")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def trained(steps: int):
    """A small model and its optimizer after some steps; the gradients depend on the step."""
    torch.manual_seed(3)
    weights = [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(4))]
    groups = [
        {"params": [w], "lr": rate, "peak": rate}
        for w, rate in zip(weights, (0.1, 0.01), strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    advance(weights, optimizer, 0, steps)
    return weights, optimizer


def advance(weights, optimizer, start: int, end: int) -> None:
    for step in range(start, end):
        generator = torch.Generator().manual_seed(step)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()


def test_optimizer_continues_exactly(tmp_path: Path) -> None:
    whole, _ = trained(9)
    weights, optimizer = trained(5)
    before = TrainerState(step=5, best_score=0.1, settings={"lr": 0.1})
    save_training_state(tmp_path, optimizer, before)
    fresh, other = trained(0)
    with torch.no_grad():
        for new, old in zip(fresh, weights, strict=True):
            new.copy_(old)
    assert load_training_state(tmp_path, other) == before
    for new, old in zip(fresh, weights, strict=True):
        assert other.state[new].keys() == optimizer.state[old].keys() == {
            "step", "exp_avg", "exp_avg_sq",
        }  # fmt: skip
        for name, value in optimizer.state[old].items():
            assert torch.equal(other.state[new][name], value)
            assert other.state[new][name].dtype == value.dtype
    assert [g["peak"] for g in other.param_groups] == [0.1, 0.01]
    advance(fresh, other, 5, 9)
    assert all(torch.equal(a, b) for a, b in zip(fresh, whole, strict=True))


def test_optimizer_before_the_first_step(tmp_path: Path) -> None:
    _, optimizer = trained(0)
    save_training_state(tmp_path, optimizer, TrainerState())
    assert load_training_state(tmp_path, trained(0)[1]) == TrainerState()


def test_random_state_continues_exactly(tmp_path: Path) -> None:
    save_random_state(tmp_path, 0)
    expected = torch.rand(5)
    torch.rand(17)
    load_random_state(tmp_path, 0)
    assert torch.equal(torch.rand(5), expected)
    with pytest.raises(ValueError, match="no random state for process 1"):
        load_random_state(tmp_path, 1)


def test_a_log_with_a_line_that_was_cut_is_continued(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5}\n{"step": 3, "lo')
    main = SimpleNamespace(is_main_process=True, log_with=[])
    RunLog(path, main, 1)
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n'
    RunLog(path, main, 0)
    assert path.read_text() == ""


def test_settings_of_a_checkpoint_may_have_their_old_names(tmp_path: Path) -> None:
    _, optimizer = trained(1)
    state = TrainerState(settings={"label_pieces": "all"}, fingerprint="f")
    save_training_state(tmp_path, optimizer, state)
    state.check_resumable(tmp_path, TagConfig(label_subwords="all"))
    with pytest.raises(UserError, match=r"label_subwords = 'all', now 'first'"):
        state.check_resumable(tmp_path, TagConfig())


@pytest.mark.parametrize(("name", "value"), [("fingerprint", "g"), ("num_processes", 2)])
def test_a_run_continues_with_the_same_data_and_processes(
    name: str, value: object, tmp_path: Path
) -> None:
    _, optimizer = trained(1)
    state = TrainerState(fingerprint="f")
    save_training_state(tmp_path, optimizer, state)
    state.check_resumable(tmp_path, TagConfig())
    with pytest.raises(UserError, match=f"{name} .*, now {value!r}"):
        replace(state, **{name: value}).check_resumable(tmp_path, TagConfig())


def test_runs_that_start_from_a_run_and_saved_the_default_model_go_on(tmp_path: Path) -> None:
    state = TrainerState(settings={"init_from": "runs/x", "model": "roberta-base"}, fingerprint="f")
    save_training_state(tmp_path, trained(0)[1], state)
    state.check_resumable(tmp_path, TagConfig(init_from="runs/x"))
    with pytest.raises(UserError, match="model = None, now 'bert-base'"):
        state.check_resumable(tmp_path, TagConfig(init_from="runs/x", model="bert-base"))
