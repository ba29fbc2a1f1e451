"""A full disk ends a command in one line; with space again, the same command succeeds."""

from __future__ import annotations

import shutil

import pytest

from tests import small_data as data
from tests.drills.faults import Server, assert_same, content, serving
from tests.tiny import save_tiny_checkpoint

pytestmark = pytest.mark.slow

FIXED = ("--model", "bert", "--max-length", "48")
TRAIN = ("classify", "--data", "sentiment", *FIXED, "--steps", "6", "--eval-every", "3")
COMMANDS = {
    "run": (*TRAIN, "--out", "out/run"),
    "seeds": (*TRAIN, "--out", "out/seeds", "--seeds", "2"),
    "label errors": (
        "check",
        "small.yaml",
        "--label-errors",
        "--folds",
        "2",
        "--out",
        "out/errors.jsonl",
    ),
    "merge": ("merge", "model", "other", "--out", "out/merged"),
    "predict": ("predict", "model", "--file", "new.jsonl", "--out", "out/p/", "--part-rows", "7"),
}
POINTS = 24
"""Operations of each command at which the disk becomes full."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("full")
    save_tiny_checkpoint(directory / "bert", "bert", dropout=0.1)
    data.sentiment(directory / "sentiment")
    (directory / "small.yaml").write_text(
        "task: classify\nmodel: bert\ndata: sentiment\nlr: 3e-3\nsteps: 60\neval_every: 30\n"
        "max_length: 48\nbatch_size: 8\n"
    )
    rows = (directory / "sentiment" / "train.jsonl").read_bytes()
    (directory / "new.jsonl").write_bytes(rows)
    with serving(directory, directory / "out") as started:
        for name, seed in (("model", "1"), ("other", "2")):
            trained = started.run([*TRAIN, "--seed", seed, "--out", name])
            assert trained.code == 0, trained.error
        yield started


def fresh(server: Server) -> None:
    shutil.rmtree(server.folder, ignore_errors=True)
    server.folder.mkdir()


@pytest.mark.parametrize("name", COMMANDS)
def test_full_at_every_nth_operation(name: str, server: Server) -> None:
    fresh(server)
    whole = server.run(COMMANDS[name])
    assert whole.code == 0, whole.error
    expected = content(server.folder)
    for number in range(1, whole.count + 1, max(1, whole.count // POINTS)):
        fresh(server)
        when = f"full at operation {number} of {whole.count}"
        ended = server.run(COMMANDS[name], number=number)
        if ended.code == 0:  # a finished run whose last report could not be written, or its lock
            assert number > whole.count - 8, (when, ended)
        else:
            assert ended.code == 2, (when, ended)
            lines = [line for line in ended.error.splitlines() if "error" in line]
            assert "No space left on device" in lines[-1], (when, ended.error)
        assert "Traceback" not in ended.error, (when, ended.error)
        arguments = COMMANDS[name]
        again = server.run(arguments)
        if "add --resume to continue it" in again.error:
            again = server.run([*arguments, "--resume"])
        assert again.code == 0, (when, again.error)
        assert_same(content(server.folder), expected, when)
