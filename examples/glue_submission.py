"""Write the files for GLUE's server from the runs of `finetune run glue`.

The runs predict the test sets, which have no labels, and the MNLI model the diagnostics. Each task
has the run with the best validation score. The rules (gluebenchmark.com/faq; file names, labels and
formats as in the code of its authors, nyu-mll/jiant, ``evaluate.py``): one TSV file for each test
set with the header ``index`` and ``prediction``, a row for each example in the order of the data,
counted from 0. Numbers have three decimals and are from 0 to 5.

    finetune run glue --model roberta-base --out runs/glue
    python examples/glue_submission.py runs/glue glue.zip
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path

import finetune

NLI = ("entailment", "neutral", "contradiction")
ENTAILED = ("entailment", "not_entailment")
FILES: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "CoLA": ("cola", "test", 1063, ("unacceptable", "acceptable")),
    "SST-2": ("sst2", "test", 1821, ("negative", "positive")),
    "MRPC": ("mrpc", "test", 1725, ("not_equivalent", "equivalent")),
    "STS-B": ("stsb", "test", 1379, ()),
    "QQP": ("qqp", "test", 390_965, ("not_duplicate", "duplicate")),
    "MNLI-m": ("mnli", "test_matched", 9796, NLI),
    "MNLI-mm": ("mnli", "test_mismatched", 9847, NLI),
    "QNLI": ("qnli", "test", 5463, ENTAILED),
    "RTE": ("rte", "test", 3000, ENTAILED),
    "WNLI": ("wnli", "test", 146, ("not_entailment", "entailment")),
    "AX": ("mnli", "test", 1104, NLI),
}
"""The task, split, number of rows and labels (none: numbers from 0 to 5) of each file."""


def best_run(folder: Path) -> Path:
    """Find the finished run of a task with the best scores on validation."""

    def score(run: Path) -> float:
        metrics = json.loads((run / "metrics.json").read_text("utf-8"))
        metric = json.loads((run / "config.json").read_text("utf-8"))["metric"]
        values = (metrics[split] for split in metrics if split.startswith("validation"))
        return sum(scores[metric or next(iter(scores))] for scores in values)

    runs = [path.parent for path in folder.glob("seed-*/metrics.json")]
    if not runs:
        raise SystemExit(f"{folder}: no finished run: train it first.")
    return max(runs, key=score)


def text_of(name: str, run: Path) -> str:
    """Predict a test set, and format the predictions as the server expects them."""
    _, split, number, labels = FILES[name]
    model, config = finetune.load(run), json.loads((run / "config.json").read_text("utf-8"))
    source = "nyu-mll/glue:ax" if name == "AX" else config["data_used"] or config["data"]
    examples = type(model.task).read(model.task.state.config, source).splits[split]
    if len(examples) != number:
        raise SystemExit(f"{name}: {len(examples)} rows, and the server expects {number}.")
    kept = labels in (NLI, ENTAILED)  # other labels are their numbers
    words = {label: label if kept else str(number) for number, label in enumerate(labels)}
    rows = ["index\tprediction"]
    for index, prediction in enumerate(model.predict(examples)):
        label = prediction.value
        word = words[label] if labels else f"{min(max(label, 0.0), 5.0):.3f}"
        rows.append(f"{index}\t{word}")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the archive once all files are complete."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, help="folder of `finetune run glue`")
    parser.add_argument("out", type=Path, help="archive to write, such as glue.zip")
    given = parser.parse_args()
    texts = {name: text_of(name, best_run(given.runs / task)) for name, (task, *_) in FILES.items()}
    with zipfile.ZipFile(given.out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(f"{name}.tsv", text)
    print(f"{given.out}: {len(texts)} files")


if __name__ == "__main__":
    main()
