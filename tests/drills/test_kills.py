"""Runs that are killed at any moment continue to the same bytes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from finetune.config.tasks import TagConfig
from finetune.tasks import load_task
from finetune.training.trainer import fit
from tests import small_data as data
from tests.drills.faults import Server, assert_same, content, serving
from tests.tiny import save_tiny_checkpoint

pytestmark = pytest.mark.slow

TASKS = {
    "classify": ("classify", "--data", "sentiment", "--calibrate", "temperature"),
    "nli": ("nli", "--data", "pairs"),
    "tag": ("tag", "--data", "entities"),
    "crf": ("tag", "--data", "entities", "--crf"),
    "ner": ("ner", "--data", "entities"),
    "relations": ("relations", "--data", "relations"),
    "qa": ("qa", "--data", "questions"),
    "choice": ("choice", "--data", "choices"),
    "pretrain": ("pretrain", "--data", "text"),
    "sentence": ("sentence", "--data", "numbers", "--objective", "cosine"),
    "multitask": ("run", "both.yaml"),
    "distill": ("distill", "teacher", "--model", "narrow", "--unlabeled", "entities/test.jsonl"),
}
BOTH = """task: multitask
model: bert
epochs: 1
eval_every: 4
save_every: 2
max_length: 48
precision: fp32
tasks:
  mood: {task: classify, data: sentiment}
  names: {task: tag, data: entities, batch_size: 6}
"""
KILLS = 24
"""Kills of each task."""
SEVERAL = {
    "distill": ("distill", "teacher", "--layers", "1", "--baseline"),
    "seeds": ("classify", "--data", "sentiment", "--seeds", "2", "--per-class", "8"),
    "search": ("search", "classify", "--data", "sentiment", "--trials", "3", "--keep-models"),
}
"""Commands that train several models one after the other."""
KILLS_OF_SEVERAL = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("kills")
    save_tiny_checkpoint(directory / "bert", "bert", dropout=0.1)
    data.sentiment(directory / "sentiment")
    data.pairs(directory / "pairs")
    data.entities(directory / "entities", words=3)
    data.running_text(directory / "text")
    data.numbers(directory / "numbers")
    data.relations(directory / "relations")
    data.questions(directory / "questions")
    data.choices(directory / "choices")
    (directory / "both.yaml").write_text(BOTH, "utf-8")
    save_tiny_checkpoint(directory / "narrow", "bert", hidden_size=16, num_hidden_layers=2)
    settings = {"data": str(directory / "entities"), "max_length": 48, "precision": "fp32"}
    config = TagConfig(
        model=str(directory / "bert"), out=str(directory / "teacher"), steps=2, **settings
    )
    fit(*load_task(config, "tag"), config)
    with serving(directory, directory / "run") as started:
        yield started


def command(server: Server, name: str) -> list[str]:
    """The command of a task, which starts a run or continues it."""
    if name == "multitask":
        return [*TASKS[name], "--out", "run", "--resume", "auto"]
    fixed = ["--out", "run", "--steps", "9", "--eval-every", "4", "--save-every", "2"]
    if name != "distill":
        fixed += ["--model", "bert", "--max-length", "48", "--precision", "fp32"]
    return [*TASKS[name], *fixed, "--resume", "auto"]


@pytest.mark.parametrize("name", TASKS)
def test_killed_runs_end_with_the_same_bytes(name: str, server: Server) -> None:
    shutil.rmtree(server.folder, ignore_errors=True)
    whole = server.run(command(server, name), kills=True)
    assert whole.code == 0, whole.error
    expected = content(server.folder)
    random_numbers, killed = random.Random(f"kills of {name}"), 0
    while killed < KILLS:
        shutil.rmtree(server.folder)
        when = []
        for _ in range(random_numbers.choice((1, 1, 2, 3))):  # also while it continues
            number, seconds = 0, 0.0
            if random_numbers.random() < 0.75:
                number = random_numbers.randint(1, whole.count)
            else:
                seconds = random_numbers.uniform(0.01, whole.seconds)
            ended = server.run(command(server, name), number=number, kills=True, seconds=seconds)
            assert ended.code in (0, -9), (when, ended)
            killed += ended.code == -9
            when.append(f"operation {number}" if number else f"{seconds:.2f} s")
        ended = server.run(command(server, name))
        assert ended.code == 0, (when, ended.error)
        assert_same(content(server.folder), expected, f"killed at {', '.join(when)}")


@pytest.mark.parametrize("name", ["classify", "tag", "pretrain"])
def test_killed_runs_of_data_on_disk_end_as_in_memory(name: str, server: Server) -> None:
    """Killed while rows are read, the cache is written or a run continues from the cache."""
    cache = server.folder.with_name(f"{server.folder.name}-kept")
    shutil.rmtree(server.folder, ignore_errors=True)
    in_memory = server.run(command(server, name))
    assert in_memory.code == 0, in_memory.error
    expected = content(server.folder)
    for folder in (server.folder, cache):
        shutil.rmtree(folder, ignore_errors=True)
    whole = server.run(command(server, name), kills=True, on_disk=True)
    assert whole.code == 0, whole.error
    kept = content(cache)
    assert any("examples" in file for file in kept) and any("encodings" in file for file in kept)
    random_numbers, killed = random.Random(f"kills of {name} on disk"), 0
    while killed < KILLS:
        shutil.rmtree(server.folder)
        if random_numbers.random() < 0.7:
            shutil.rmtree(cache)
        when = []
        for _ in range(random_numbers.choice((1, 1, 2, 3))):
            number, seconds = 0, 0.0
            if random_numbers.random() < 0.75:
                number = random_numbers.randint(1, whole.count)
            else:
                seconds = random_numbers.uniform(0.01, whole.seconds)
            ended = server.run(
                command(server, name), number=number, kills=True, seconds=seconds, on_disk=True
            )
            assert ended.code in (0, -9), (when, ended)
            killed += ended.code == -9
            when.append(f"operation {number}" if number else f"{seconds:.2f} s")
        ended = server.run(command(server, name), on_disk=True)
        assert ended.code == 0, (when, ended.error)
        assert_same(content(server.folder), expected, f"killed at {', '.join(when)}")
        left = {file for file in content(cache) if "/.lock-" not in file}  # removed in a month
        assert left == {*kept}, (when, "leftovers in the cache")


def command_of_several(server: Server, name: str) -> list[str]:
    """The same command begins and continues; ``distill`` is told to."""
    fixed = ["--out", "run", "--steps", "5", "--eval-every", "2", "--save-every", "2"]
    if name != "distill":
        fixed += ["--model", "bert", "--max-length", "48", "--precision", "fp32"]
    return [*SEVERAL[name], *fixed, *(["--resume", "auto"] if name == "distill" else [])]


def folders(server: Server) -> list[Path]:
    return sorted(server.directory.glob(f"{server.folder.name}*"))


def weights(server: Server) -> dict[str, bytes]:
    """The weights of all models of a command."""
    return {
        str(path.relative_to(server.directory)): path.read_bytes()
        for folder in folders(server)
        for path in folder.rglob("*.safetensors")
    }


@pytest.mark.parametrize("name", SEVERAL)
def test_killed_commands_of_several_models_end_with_the_same_weights(
    name: str, server: Server
) -> None:
    for folder in folders(server):
        shutil.rmtree(folder)
    whole = server.run(command_of_several(server, name), kills=True)
    assert whole.code == 0, whole.error
    expected = weights(server)
    assert len(expected) >= 2 and any("best" in path for path in expected)
    random_numbers, killed = random.Random(f"kills of {name}"), 0
    while killed < KILLS_OF_SEVERAL:
        for folder in folders(server):
            shutil.rmtree(folder)
        number = random_numbers.randint(1, whole.count)
        ended = server.run(command_of_several(server, name), number=number, kills=True)
        assert ended.code in (0, -9), (number, ended)
        killed += ended.code == -9
        ended = server.run(command_of_several(server, name))
        assert ended.code == 0, (number, ended.error)
        assert weights(server) == expected, f"killed at operation {number}"
        left = [p for folder in folders(server) for p in folder.rglob(".*.new")]
        assert not left, (number, left)


def test_killed_merges_end_with_the_same_bytes(server: Server) -> None:
    shutil.rmtree(server.folder, ignore_errors=True)
    for seed in ("1", "2"):
        shutil.rmtree(server.directory / f"parent-{seed}", ignore_errors=True)
        model = ("classify", "--data", "sentiment", "--model", "bert", "--max-length", "48")
        out = ("--steps", "2", "--seed", seed, "--out", f"parent-{seed}")
        trained = server.run([*model, *out])
        assert trained.code == 0, trained.error
    merge = ["merge", "parent-1", "parent-2", "--out", "run"]
    whole = server.run(merge, kills=True)
    assert whole.code == 0, whole.error
    expected = content(server.folder)
    for number in range(1, whole.count, max(1, whole.count // KILLS)):
        shutil.rmtree(server.folder)
        ended = server.run(merge, number=number, kills=True)
        assert ended.code == -9, (number, ended)
        ended = server.run(merge)
        assert ended.code == 0, (number, ended.error)
        assert_same(content(server.folder), expected, f"killed at operation {number}")


PREDICT = ("predict", "model", "--file", "new", "--out", "run/", "--part-rows", "7")
KILLS_OF_PREDICT = 40


def test_killed_predictions_end_with_the_same_parts(server: Server) -> None:
    """Two jobs of an array share the parts; both are killed, also while they continue."""
    directory = server.directory
    for folder in (server.folder, directory / "new", directory / "model"):
        shutil.rmtree(folder, ignore_errors=True)
    model = ("classify", "--data", "sentiment", "--model", "bert", "--max-length", "48")
    trained = server.run([*model, "--steps", "2", "--out", "model"])
    assert trained.code == 0, trained.error
    for name in ("train", "test"):
        rows = (directory / "sentiment" / f"{name}.jsonl").read_bytes()
        (directory / "new").mkdir(exist_ok=True)
        (directory / "new" / f"{name}.jsonl").write_bytes(rows)
    jobs = [[*PREDICT, "--format", "jsonl", "--shard", f"{number}/2"] for number in (0, 1)]
    whole = [server.run(job, kills=True) for job in jobs]
    assert [each.code for each in whole] == [0, 0], whole
    expected = content(server.folder)
    assert len(expected) == 17  # 52 rows: 8 parts, each with its digest, and the manifest
    random_numbers, killed = random.Random("kills of predict"), 0
    while killed < KILLS_OF_PREDICT:
        shutil.rmtree(server.folder)
        when = []
        for _ in range(random_numbers.choice((1, 2, 3, 4))):
            job = random_numbers.choice((0, 1))
            number, seconds = 0, 0.0
            if random_numbers.random() < 0.5:
                number = random_numbers.randint(1, max(each.count for each in whole))
            else:
                seconds = random_numbers.uniform(0.01, whole[job].seconds)
            ended = server.run(jobs[job], number=number, kills=True, seconds=seconds)
            assert ended.code in (0, -9), (when, ended)
            killed += ended.code == -9
            when.append(f"operation {number}" if number else f"{seconds:.2f} s")
        for job in random_numbers.sample(jobs, 2):
            ended = server.run(job)
            assert ended.code == 0, (when, ended.error)
        assert_same(content(server.folder), expected, f"killed at {', '.join(when)}")
