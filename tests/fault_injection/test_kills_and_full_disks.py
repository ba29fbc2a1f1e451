"""Commands that are killed, or meet a full disk, at any operation on files end as others do."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as fx
from tests.fault_injection.faults import Server, assert_same, content, serving
from tests.suites.conftest import write_suite
from tests.training.test_multitask import write_recipe

pytestmark = pytest.mark.slow

MODEL = ("--model", "bert", "--max-length", "48", "--precision", "fp32")
STEPS = ("--steps", "9", "--eval-every", "4", "--save-every", "2")
FEW = ("--steps", "5", "--eval-every", "2", "--save-every", "2")
SENTIMENT = ("classify", "--data", "sentiment")
RUN, RESUME = ("--out", "out"), ("--resume", "auto")
DATA = "sentiment pairs relations questions choices numbers running_text windows".split()
DISTILL = ("distill", "teacher", "--model", "narrow", "--unlabeled", "windows/test.jsonl")
PREDICT = ("predict", "one", "--out", "out/found.jsonl", "--resume")


@dataclass(frozen=True)
class Drill:
    """One or several commands that share the folders ``out*``."""

    commands: tuple[tuple[str, ...], ...]
    kills: int = 24
    on_disk: bool = False
    """Data do not fit in memory; the cache may be lost between a kill and the next command."""
    results_alone: bool = False
    """Logs of several models may differ in the order of their lines."""


def task(*words: str, kills: int = 24, on_disk: bool = False) -> Drill:
    """A training run, whose command starts and continues it."""
    return Drill(((*words, *MODEL, *STEPS, *RUN, *RESUME),), kills, on_disk)


def several(*words: str) -> Drill:
    """A command that trains several models one after the other."""
    return Drill(((*words, *FEW, *RUN),), kills=10, results_alone=True)


DRILLS = {
    "classify": task(*SENTIMENT, "--calibrate", "temperature"),
    "nli": task("nli", "--data", "pairs"),
    "tag": task("tag", "--data", "windows"),
    "crf": task("tag", "--data", "windows", "--crf"),
    "ner": task("ner", "--data", "windows"),
    "relations": task("relations", "--data", "relations"),
    "qa": task("qa", "--data", "questions"),
    "choice": task("choice", "--data", "choices"),
    "pretrain": task("pretrain", "--data", "running_text"),
    "sentence": task("sentence", "--data", "numbers", "--objective", "cosine"),
    "classify on disk": task(*SENTIMENT, "--calibrate", "temperature", on_disk=True),
    "tag on disk": task("tag", "--data", "windows", on_disk=True),
    "pretrain on disk": task("pretrain", "--data", "running_text", on_disk=True),
    "multitask": Drill((("run", "both.yaml", *RUN, *RESUME),)),
    "distill": Drill(((*DISTILL, *STEPS, *RUN, *RESUME),)),
    "seeds": several(*SENTIMENT, *MODEL, "--seeds", "2", "--per-class", "8"),
    "suite": several("run", "suite/tiny.yaml", "--seeds", "2"),
    "predict": Drill(((*PREDICT, "--file", "new"),), kills=40),
}
FULL_DISKS = {
    "run": (*SENTIMENT, *MODEL, "--steps", "6", "--eval-every", "3", *RUN),
    "seeds": (*SENTIMENT, *MODEL, "--steps", "6", "--eval-every", "3", "--seeds", "2", *RUN),
    "predict": (*PREDICT, "--file", "sentiment/train.jsonl"),
}
POINTS = 24
"""Operations of each command at which the disk becomes full."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = fx.copy_checkpoints_and_data(tmp_path_factory.mktemp("faults"), *DATA)
    (directory / "new").mkdir()
    for name in ("train", "test"):
        shutil.copy(directory / "sentiment" / f"{name}.jsonl", directory / "new")
    (directory / "suite").mkdir()
    write_suite(directory / "suite")
    write_recipe(directory, more="eval_every: 4\nsave_every: 2\nmax_length: 48")
    with serving(directory, directory / "out") as started:
        for name, words in {
            "teacher": ("tag", "--data", "windows"),
            "one": (*SENTIMENT, "--seed", "1"),
        }.items():
            trained = started.run([*words, *MODEL, "--steps", "2", "--out", name])
            assert trained.code == 0, trained.error
        yield started


@dataclass
class Folders:
    """What the commands of a drill write."""

    server: Server
    drill: Drill

    @property
    def written(self) -> list[Path]:
        own = self.server.directory.glob(f"{self.server.folder.name}*")
        return [folder for folder in sorted(own) if folder != self.cache]

    @property
    def cache(self) -> Path:
        return self.server.folder.with_name(f"{self.server.folder.name}-kept")

    def remove(self, cache: bool = True) -> None:
        for folder in (*self.written, *[self.cache] * cache):
            shutil.rmtree(folder, ignore_errors=True)
        self.server.folder.mkdir()

    def content(self) -> dict[str, Any]:
        if self.drill.results_alone:
            names = ("*.safetensors", "metrics.json", "seeds.json", "suite.*")
            files = [p for folder in self.written for name in names for p in folder.rglob(name)]
            return {str(path): path.read_bytes() for path in files}
        return content(self.server.folder)


def end_all(run: Callable[..., Any], commands: Any, when: str = "") -> list[Any]:
    """Let all commands come to their end."""
    ended = [run([*command]) for command in commands]
    assert all(each.code == 0 for each in ended), (when, ended)
    return ended


@pytest.mark.parametrize("name", DRILLS)
def test_killed_commands_end_with_the_same_bytes(name: str, server: Server) -> None:
    """Killed at an operation or a moment, also while they continue; started again to the end."""
    drill = DRILLS[name]
    folders, drawn, killed = Folders(server, drill), random.Random(f"kills of {name}"), 0

    def run(command: list[str], **fault: Any) -> Any:
        return server.run(command, on_disk=drill.on_disk, **fault)

    folders.remove()
    if drill.on_disk:  # the same as in memory
        end_all(server.run, drill.commands)
        expected = folders.content()
        folders.remove()
    whole = end_all(lambda command: run(command, kills=True), drill.commands)
    expected = expected if drill.on_disk else folders.content()
    assert_same(folders.content(), expected, "not killed")
    assert expected
    kept = content(folders.cache)
    assert bool(kept) == drill.on_disk
    while killed < drill.kills:
        folders.remove(cache=drawn.random() < 0.7)
        when = []
        for _ in range(drawn.choice((1, 1, 2, 3))):
            command = drawn.choice(drill.commands)
            usual = whole[drill.commands.index(command)]
            number, seconds = 0, 0.0
            if drawn.random() < 0.75:
                number = drawn.randint(1, usual.count)
            else:
                seconds = drawn.uniform(0.01, usual.seconds)
            ended = run([*command], number=number, kills=True, seconds=seconds)
            assert ended.code in (0, -9), (when, ended)
            killed += ended.code == -9
            when.append(f"operation {number}" if number else f"{seconds:.2f} s")
        at = f"killed at {', '.join(when)}"
        end_all(run, drawn.sample(drill.commands, len(drill.commands)), at)
        assert_same(folders.content(), expected, at)
        assert not [p for folder in folders.written for p in folder.rglob(".*.new")], at
        cached = {file for file in content(folders.cache) if "/.lock-" not in file}
        assert cached == {*kept}, (at, "leftovers in the cache")  # locks are removed in a month


@pytest.mark.parametrize("name", FULL_DISKS)
def test_a_full_disk_ends_a_command_in_one_line(name: str, server: Server) -> None:
    """With space again, the same command succeeds."""
    command = [*FULL_DISKS[name]]

    def fresh() -> None:
        shutil.rmtree(server.folder, ignore_errors=True)
        server.folder.mkdir()

    fresh()
    whole = server.run(command)
    assert whole.code == 0, whole.error
    expected = content(server.folder)
    for number in range(1, whole.count + 1, max(1, whole.count // POINTS)):
        fresh()
        when = f"full at operation {number} of {whole.count}"
        ended = server.run(command, number=number)
        if ended.code == 0:  # a finished run whose last report could not be written, or its lock
            assert number > whole.count - 8, (when, ended)
        else:
            assert ended.code == 2, (when, ended)
            lines = [line for line in ended.error.splitlines() if "error" in line]
            assert "No space left on device" in lines[-1], (when, ended.error)
        assert "Traceback" not in ended.error, (when, ended.error)
        again = server.run(command)
        if "add --resume to continue it" in again.error:
            again = server.run([*command, "--resume"])
        assert again.code == 0, (when, again.error)
        assert_same(content(server.folder), expected, when)
