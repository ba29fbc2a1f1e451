"""Make small fixed runs of every kind and compare what they compute with an earlier recording.

A change of structure must not change a single bit. Record before it, check after it, on the same
machine and with the same versions:

    python -m tests.end_to_end.recorded_runs record /tmp/before.json
    python -m tests.end_to_end.recorded_runs check /tmp/before.json

The recording holds a hash of every saved weight, the metrics of every split, and what was
predicted for every example. Recordings depend on the processor and are not kept in the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint

PREDICTION_KEYS = (
    "id",
    "label",
    "score",
    "scores",
    "tags",
    "spans",
    "offsets",
    "relations",
    "answer",
    "no_answer_score",
    "best",
    "log_likelihood",
)
"""What a line of predictions says about the prediction (and not about the gold)."""

RECIPE = """\
task: classify
model: {model}
data: {data}
lr: 0.001
steps: 6
batch_size: 8
max_length: 48
expected:
  - {{split: test, metric: accuracy, value: 0.5, tolerance: 0.5, source: "a fixed run"}}
"""


SENSES = Path(__file__).parents[2] / "examples" / "data" / "senses"


def runs(folder: Path) -> dict[str, list[list[str | Path]]]:
    """The arguments of the commands of each run, by name; ``OUT`` is where the run writes."""
    model = save_tiny_checkpoint(folder / "tiny", "bert", layers=3)
    deberta = save_tiny_checkpoint(folder / "deberta", "deberta-v2", layers=3)
    roberta = save_tiny_checkpoint(folder / "roberta", "roberta", layers=3)
    common = ["--lr", "1e-3", "--batch-size", "8", "--max-length", "48", "--eval-every", "4"]

    def train(task: str, checkpoint: Path, make: Callable[[Path], Path], *more: str) -> list[Any]:
        data = make(folder / f"{task}-{make.__name__}")
        steps = [] if "--steps" in more else ["--steps", "12"]
        return [task, "--model", checkpoint, "--data", data, *common, *steps, *more]

    recipe = folder / "recipe.yaml"
    sentiment = data.sentiment(folder / "recipe-data")
    recipe.write_text(RECIPE.format(model=model, data=sentiment), encoding="utf-8")
    texts = data.running_text(folder / "text") / "test.txt"
    short = data.running_text(folder / "short-text", short=True)
    (folder / "runs" / "perplexity").mkdir(parents=True)
    one = [*train("classify", model, data.sentiment, "--steps", "4"), "--out", "OUT/one"]
    into: list[str | Path] = ["--out", "OUT"]
    few = ["--few-shot", "--per-class", "6", "--steps", "4", "--validation", "none"]
    trials = ["--trials", "3", "--steps", "4", "--space", "lr=1e-4:1e-2:log", "batch_size=4,8"]
    student: list[str | Path] = ["distill", "OUT/one", "--layers", "1", "--batch-size", "8"]
    student += ["--steps", "4", "--out", "OUT/student"]
    senses: list[str | Path] = ["wsd", "--model", model, "--data", SENSES, "--layers", "1"]
    single = {
        "classify": train("classify", model, data.sentiment, "--calibrate", "temperature"),
        "multi_label": train("classify", roberta, data.topics, "--class-weights", "auto"),
        "regression": train("classify", model, data.numbers),
        "nli": train("nli", deberta, data.pairs, "--max-tokens", "120"),
        "tag": train("tag", roberta, data.entities, "--label-subwords", "all"),
        "tag_crf": train("tag", model, data.documents, "--crf", "--context", "8"),
        "ner": train("ner", model, data.entities, "--calibrate", "one"),
        "relations": train("relations", model, data.relations),
        "qa": train("qa", model, data.questions),
        "choice": train("choice", model, data.choices),
        "sentence": train("sentence", model, data.numbers, "--steps", "4"),
        "pretrain": train("pretrain", roberta, data.running_text, "--steps", "4"),
        "few_shot": train("classify", model, data.sentiment, *few),
        "lora": train("classify", model, data.sentiment, "--tuning", "lora", "--steps", "4"),
        "folds": train("classify", model, data.sentiment, "--folds", "2", "--steps", "4"),
        "search": ["search", *train("classify", model, data.sentiment, *trials)],
        "wsd": [*senses, "--inventory", SENSES / "wordnet", "--glosses", "0.5"],
        "recipe": ["run", recipe, "--seeds", "2"],
    }
    for objective, more in {
        "spans": ("--mask", "spans", "--boundary", "--nsp"),
        "boundary": ("--mask", "spans", "--boundary"),
        "nsp": ("--nsp",),
        "words": ("--mask", "words", "--explore", "--packing", "full-sentences"),
        "frequency": ("--replacement", "unigram", "--mask-probability", "0.3"),
    }.items():
        given = train("pretrain", model, data.running_text, "--steps", "4", *more)
        given[given.index("--data") + 1] = short
        single[f"pretrain_{objective}"] = given
    sources = f"en={short},more={texts.parent}"
    new = ["--config", "small", "--tokenizer", model, "--steps", "2", "--alpha", "0.2"]
    single["pretrain_new"] = ["pretrain", "--data", sources, *common, *new]
    for objective, make in {
        "mirror": data.running_text,
        "simcse": data.sentiment,
        "prompt": data.sentiment,
        "cmlm": data.running_text,
        "ranking": data.pairs,
        "softmax": data.pairs,
    }.items():
        arguments = train("sentence", model, make, "--objective", objective, "--steps", "4")
        single[f"sentence_{objective}"] = arguments
    return {name: [[*arguments, *into]] for name, arguments in single.items()} | {
        "distill": [one, student],
        "export": [one, ["export", "OUT/one", "--out", "OUT/graph", "--int8", "--max-loss", "50"]],
        "perplexity": [["perplexity", model, "--file", texts, "--out", "OUT/predictions.jsonl"]],
    }


def recorded(folder: Path) -> dict[str, Any]:
    """Everything that one run folder (and the runs in it) computed."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix in (".safetensors", ".onnx"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "metrics.json":
            found[name] = json.loads(path.read_text(encoding="utf-8"))
        elif path.name.startswith("predictions."):
            lines = path.read_text(encoding="utf-8").splitlines()
            found[name] = [
                {key: row[key] for key in PREDICTION_KEYS if key in row}
                for row in map(json.loads, lines)
            ]
        elif path.name == "log.jsonl":
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            timed = ("examples_per_second", "tokens_per_second", "seconds")
            found[name] = [{k: v for k, v in row.items() if k not in timed} for row in rows]
    return found


def record(only: str | None = None) -> dict[str, Any]:
    """Make the runs (or one of them) and return what they computed."""
    with tempfile.TemporaryDirectory() as workdir:
        result = {}
        for name, commands in runs(Path(workdir)).items():
            if only not in (None, name):
                continue
            out = Path(workdir) / "runs" / name
            for arguments in commands:
                outcome = run(*(str(argument).replace("OUT", str(out)) for argument in arguments))
                if outcome.code:
                    raise SystemExit(f"{name}: {outcome.err}")
            result[name] = recorded(out)
            if not result[name]:
                raise SystemExit(f"{name}: nothing that could be compared in {out}")
        return json.loads(json.dumps(result))


def differences(before: Any, now: Any, workdir: str = "") -> list[str]:
    """Where two recordings differ, one line each."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for key in sorted({*before, *now})
            for line in differences(before.get(key), now.get(key), f"{workdir}/{key}")
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{workdir}[{i}]")]
    return [] if before == now else [f"{workdir}: {_change(str(before), str(now))}"]


def _change(*texts: str) -> str:
    """Both texts from where they begin to differ."""
    pairs = enumerate(zip(*texts, strict=False))
    position = next((i for i, (a, b) in pairs if a != b), min(map(len, texts)))
    return " -> ".join(text[max(0, position - 60) : position + 100] for text in texts)


def main(record: Callable[[str | None], dict[str, Any]]) -> None:
    """Write a recording, or print where it differs from an earlier one."""
    parser = argparse.ArgumentParser(description="Record small runs, or check a recording.")
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", help="the name of one run")
    parser.add_argument("--show", type=int, default=40, help="differences to print")
    asked = parser.parse_args()
    now = record(asked.only)
    if asked.action == "record":
        asked.file.write_text(json.dumps(now, indent=1), encoding="utf-8")
        print(f"{len(now)} entries")
        return
    before = json.loads(asked.file.read_text(encoding="utf-8"))
    if asked.only is not None:
        before = {asked.only: before[asked.only]}
    lines = differences(before, now)
    print(*lines[: asked.show], f"{len(lines)} differences in {len(now)} entries", sep="\n")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main(record)
