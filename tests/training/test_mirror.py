"""Copies of run folders at a URL: a machine that goes away, copies that fail."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from finetune.config.tasks import ClassifyConfig
from finetune.runtime.signals import Interrupted
from finetune.tasks import load_task
from finetune.training.checkpoint import checksum
from finetune.training.mirror import MANIFEST, Mirror
from finetune.training.run_folder import open_run, with_run_folder
from finetune.training.trainer import fit
from finetune.types import TemporaryFailure, UserError
from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint
from tests.training.stopping import interrupt_in_step
from tests.training.test_trajectory import same_files

URL = "memory://bucket/run"


@pytest.fixture
def bucket() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/bucket"):
        system.rm("/bucket", recursive=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mirror")
    save_tiny_checkpoint(folder / "bert", "bert", dropout=0.1)
    data.sentiment(folder / "sentiment")
    return folder


def config_of(place: Path, out: Path, **changes: Any) -> ClassifyConfig:
    fixed = {"steps": 8, "eval_every": 4, "batch_size": 8, "max_length": 32, "precision": "fp32"}
    fixed |= {"model": str(place / "bert"), "data": str(place / "sentiment"), "mirror": URL}
    return ClassifyConfig(out=str(out), **{**fixed, **changes})


def failing(self: Any, path: str, value: bytes, **options: Any) -> None:
    raise ConnectionError("the network is down")


def train(config: ClassifyConfig) -> None:
    config = with_run_folder(config, "classify")
    with open_run(config) as folder:
        fit(*load_task(config, "classify"), config, folder)


def test_a_run_continues_on_another_machine(
    bucket: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = config_of(place, tmp_path / "whole", mirror=None)
    train(whole)
    config = config_of(place, tmp_path / "run", resume="auto", keep=2)
    interrupt_in_step(6, monkeypatch)
    with pytest.raises(Interrupted):
        train(config)
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "run")
    train(config)
    same_files(tmp_path / "whole", tmp_path / "run")
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {"step-6"}
    steps = (tmp_path / "run" / "log.jsonl").read_text()
    assert '"step": 1,' in steps and '"step": 8,' in steps
    Mirror(URL).restore(tmp_path / "copy")
    names = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*")}
    assert names == {
        str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")
    }
    same_files(tmp_path / "run", tmp_path / "copy")
    objects = {Path(name).name for name in bucket.find("/bucket/run/objects")}
    assert objects == {*Mirror(URL).files.values()}, "what no file needs any more is removed"
    with pytest.raises(UserError, match="memory://bucket/run holds a run already: add --resume"):
        train(config_of(place, tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_copy_that_fails_leaves_the_one_before_and_the_training(
    bucket: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests, pipe = 0, type(bucket).pipe_file

    def failing(self: Any, path: str, value: bytes, **options: Any) -> None:
        nonlocal manifests
        manifests += path.endswith(MANIFEST)
        if manifests > 1:
            raise PermissionError("the token has expired")
        pipe(self, path, value, **options)

    monkeypatch.setattr(type(bucket), "pipe_file", failing)
    config = config_of(place, tmp_path / "run", resume="auto")
    expired = (
        r"could not be written \(PermissionError: the token has expired\)\. The files in .*run"
    )
    with pytest.raises(UserError, match=expired):
        train(config)
    monkeypatch.undo()
    assert (tmp_path / "run" / "metrics.json").is_file(), "training has ended"
    Mirror(URL).restore(tmp_path / "copy")
    first = tmp_path / "copy" / "last" / "trainer_state.json"
    assert '"step": 4' in first.read_text(), "the first copy is whole"
    train(config)
    assert "metrics.json" in Mirror(URL).files


def test_a_folder_that_cannot_be_renamed(
    bucket: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a volume: empty, with an older checkpoint, or with a part of a copy after a kill."""
    config = config_of(place, tmp_path / "run", resume="auto", save_every=2)
    train(config)
    volume = tmp_path / "volume"
    volume.mkdir()
    monkeypatch.chdir(volume)
    moved, renamed, stop = [], Path.rename, 0

    def rename(path: Path, target: Path) -> Path:
        assert not path.samefile(volume)
        moved.append(target.name)
        if len(moved) == stop:
            raise KeyboardInterrupt
        return renamed(path, target)

    names = {name.split("/")[0] for name in Mirror(URL).files}
    monkeypatch.setattr(Path, "rename", rename)
    for at in (1, 2, 4, 0):
        stop = at
        moved.clear()
        with contextlib.suppress(KeyboardInterrupt):
            train(replace(config, out="."))
    assert moved[0] == "config.json" and moved.index("last") == len(names) - 1
    same_files(tmp_path / "run", volume)


def test_the_test_split_may_change(
    bucket: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(place / "sentiment", tmp_path / "sentiment")
    config = config_of(place, tmp_path / "run", data=str(own), resume="auto", steps=2)
    train(config)
    lines = (own / "test.jsonl").read_text("utf-8").splitlines(keepends=True)
    (own / "test.jsonl").write_text("".join(lines[:-1]), "utf-8")
    with monkeypatch.context() as broken, pytest.raises(TemporaryFailure):
        broken.setattr(type(bucket), "pipe_file", failing)
        train(config)
    train(config)
    assert Mirror(URL).files["config.json"] == checksum(tmp_path / "run" / "config.json")


def test_an_object_that_has_changed_is_refused(bucket: Any, place: Path, tmp_path: Path) -> None:
    config = config_of(place, tmp_path / "run", steps=1)
    train(config)
    weights = Mirror(URL).files["last/model.safetensors"]
    bucket.pipe_file(f"/bucket/run/objects/{weights}", b"other")
    with pytest.raises(UserError, match=r"model\.safetensors has changed since it was"):
        train(replace(config, out=str(tmp_path / "again"), resume=True))
    bucket.rm_file(f"/bucket/run/objects/{weights}")
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read \(FileNotFoundError"):
        train(replace(config, out=str(tmp_path / "again"), resume=True))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_later_checkpoint_wins_and_another_run_is_kept(
    bucket: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(place, tmp_path / "run", resume="auto", save_every=2)
    with monkeypatch.context() as interrupting, pytest.raises(Interrupted):
        interrupt_in_step(3, interrupting)
        train(config)
    shutil.copytree(tmp_path / "run", tmp_path / "old")  # the disk of the first machine
    train(config)
    assert Mirror(URL).step == 8
    train(replace(config, out=str(tmp_path / "old")))
    same_files(tmp_path / "run", tmp_path / "old")
    files = Mirror(URL).files
    other = config_of(place, tmp_path / "other", mirror=None, seed=2)
    train(other)
    with pytest.raises(UserError, match=r"holds another run than .*other \(their data, task or"):
        train(replace(other, mirror=URL, resume=True))
    new = config_of(place, tmp_path / "new", seed=2, resume="auto")
    with pytest.raises(UserError, match="was started with seed = 1, now 2"):
        train(new)
    with pytest.raises(UserError, match="holds a run already: name another URL"):
        direct = replace(new, out=str(tmp_path / "direct"), resume=False)
        fit(*load_task(new, "classify"), direct)
    assert Mirror(URL).files == files, "a refused command copies nothing"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mirror", "nowhere://x", "--out", "run"], "--mirror nowhere://x: cannot be read (Val"),
        (["--mirror", URL], f"--mirror {URL} needs --out: name the run folder"),
        (["--mirror", URL, "--out", "run", "--seeds", "2"], "--mirror copies a single run"),
        (["--mirror", URL, "--out", "run", "--folds", "2"], "--mirror does not go with --folds"),
    ],
)
def test_refusals(
    options: list[str],
    message: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--model", place / "bert", "--data", place / "sentiment"]
    outcome = run("classify", *given, *options)
    assert outcome.code == 2 and message in outcome.err, outcome.err
    assert not list(tmp_path.iterdir())


def test_a_copy_that_fails_ends_with_the_code_of_temporary_failures(
    bucket: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["classify", "--model", place / "bert", "--data", place / "sentiment", "--steps", "2"]
    given += ["--mirror", URL, "--out", tmp_path / "run", "--resume", "auto"]

    with monkeypatch.context() as broken:
        broken.setattr(type(bucket), "pipe_file", failing)
        outcome = run(*given)
    assert outcome.code == 75 and "the network is down" in outcome.err, outcome.err
    outcome = run(*given)
    assert outcome.code == 0, outcome.err
    assert "metrics.json" in Mirror(URL).files


@pytest.mark.slow
def test_a_run_continues_from_a_server_of_s3(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server of the package moto."""
    server_of = pytest.importorskip("moto.server").ThreadedMotoServer
    pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = server_of(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        fsspec.filesystem("s3", endpoint_url=f"http://{host}:{port}").mkdir("s3://bucket")
        whole = config_of(place, tmp_path / "whole", mirror=None)
        train(whole)
        config = config_of(place, tmp_path / "run", resume="auto", mirror="s3://bucket/run")
        with monkeypatch.context() as interrupting, pytest.raises(Interrupted):
            interrupt_in_step(6, interrupting)
            train(config)
        shutil.rmtree(tmp_path / "run")
        train(config)
        same_files(tmp_path / "whole", tmp_path / "run")
        with pytest.raises(UserError, match="--mirror s3://none/run: could not be written"):
            train(replace(config, out=str(tmp_path / "other"), mirror="s3://none/run"))
        assert fsspec.filesystem("s3", endpoint_url=f"http://{host}:{port}").ls("") == ["bucket"]
    finally:
        server.stop()
