"""What ``recorded_outputs`` records of vocabularies, perplexity, pretraining and annotation."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import small_data
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint

if TYPE_CHECKING:
    from tests.end_to_end.recorded_outputs import Recorder

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
TABLES = ("table", "csv", "latex", "markdown", "json")
CONVERTED = "jsonl json conll prodigy doccano label-studio brat spacy".split()
SUFFIXES = {"prodigy": "jsonl", "doccano": "jsonl", "label-studio": "json", "spacy": "json"}
TEXTS = EXAMPLES / "text" / "train.txt"
VECTORS = {
    "source.vec": "6 3\nthe 1 0 0\ntrain 0 1 0\nhouse 0 0 1\nwas 1 1 0\nold 0 1 1\nand 1 0 1\n",
    "target.vec": "the 0 1 0\nof 0 0 1\nriver 1 0 0\nand 1 1 0\nwas 0 1 1\n",
    "words.tsv": "the\tthe\nwas\tof\nhouse\triver\n",
}
FILES: dict[str, list[dict[str, Any]]] = {
    "lists-1.jsonl": [{"text": f"t{n}", "label": [*c]} for n, c in enumerate(("xy", "", "x"))],
    "lists-2.jsonl": [{"text": f"t{n}", "label": [*c]} for n, c in enumerate(("x", "y", "x"))],
    "numbers.jsonl": [{"id": n, "text": f"t{n}", "label": n / 2} for n in range(5)],
    "spans-1.jsonl": [
        {"id": 0, "text": "Ann Lee of Rome ran", "spans": [[0, 7, "PER"], [11, 15, "LOC"]]},
        {"id": 1, "text": "Ann Lee of Rome ran", "spans": [[0, 7, "PER"]]},
        {"id": 2, "text": "Ann Lee of Rome ran", "spans": [], "source": "web"},
    ],
    "spans-2.jsonl": [
        {"id": 0, "text": "Ann Lee of Rome ran", "spans": [[0, 7, "PER"], [11, 15, "ORG"]]},
        {"id": 1, "text": "Ann Lee of Rome ran", "spans": [[0, 3, "PER"], [1, 5, "PART"]]},
        {"id": 2, "text": "Ann Lee of Rome ran", "spans": [[11, 15, "LOC"]]},
    ],
    "tags-1.jsonl": [{"tokens": ["a", "b", "c"], "tags": ["N", "V", "N"]}],
    "tags-2.jsonl": [{"tokens": ["a", "b", "c"], "tags": ["N", "V", "A"]}],
    "skipped.jsonl": [
        {"text": "a", "label": "x", "answer": "accept", "_annotator_id": "ann"},
        {"text": "a", "label": "y", "answer": "accept", "_annotator_id": "bob"},
        {"text": "b", "label": "y", "answer": "reject", "_annotator_id": "bob"},
    ],
    "pairs.jsonl": [{"text": "a", "text_pair": "b", "label": "x", "source": "web"}],
}  # fmt: skip


def of_vocabularies(recorder: Recorder, model: Path) -> None:
    """Record vocabularies of each kind, for each way to begin their embeddings."""
    place, record = recorder.place, recorder.command
    for name, content in VECTORS.items():
        (place / name).write_text(content, encoding="utf-8")
    files = place / "source.vec", place / "target.vec"
    sources = f"en={TEXTS},more={EXAMPLES / 'text' / 'validation.txt'}"
    made: dict[str, tuple[str | Path, ...]] = {
        "wordpiece": (TEXTS, "--kind", "wordpiece", "--size", "500"),
        "bpe": (TEXTS, "--kind", "bpe", "--size", "500"),
        "unigram": (TEXTS, "--kind", "unigram", "--size", "300"),
        "sources": (sources, "--size", "400", "--alpha", "0.5", "--lowercase", "True"),
        "overlap": (TEXTS, "--for", model, "--size", "420", "--init", "overlap"),
        "similarity": (TEXTS, "--for", model, "--size", "420"),
        "mean": (TEXTS, "--for", model, "--size", "420", "--init", "mean", "--seed", "3"),
        "bytes for words": (TEXTS, "--for", model, "--kind", "bpe", "--size", "420"),
        "vectors": (TEXTS, "--for", model, "--size", "420", "--vectors", *files),
        "wrong/size": (TEXTS, "--size", "5"),
        "wrong/no size": (TEXTS, "--size", "0"),
        "wrong/alpha": (TEXTS, "--alpha", "2"),
        "wrong/vectors": (TEXTS, "--vectors", *files),
        "wrong/one of vectors": (TEXTS, "--for", model, "--vectors", files[0]),
        "wrong/dimensions": (TEXTS, "--for", model, "--vectors", files[0], place / "words.tsv"),
        "wrong/texts": (place / "none.txt",),
        "wrong/model": (TEXTS, "--for", place / "none"),
        "wrong/out": (TEXTS, "--out", TEXTS),
    }  # fmt: skip
    for number, (name, arguments) in enumerate(made.items()):
        out = place / f"vocabulary-{number}"
        more = () if "--out" in arguments else ("--out", out)
        record(f"vocabulary/{name}", "vocabulary", *arguments, *more)
        if name == "unigram":  # scores differ in their last digits
            exit_code, shown, said = recorder.entries[f"vocabulary/{name}"]
            shown = re.sub(r"fingerprint \w+", "fingerprint", shown)
            recorder.entries[f"vocabulary/{name}"] = [exit_code, shown, said]
        for file in sorted(out.rglob("*")) if out.exists() else ():
            if file.suffix == ".safetensors":
                content: Any = hashlib.sha256(file.read_bytes()).hexdigest()
            else:
                content = json.loads(file.read_text("utf-8"))
            if name == "unigram" and file.name == "tokenizer.json":
                content = sorted(token for token, _ in content["model"]["vocab"])
            elif name == "unigram":
                content.pop("fingerprint", None)
            elif file.name == "tokenizer.json":
                content = hashlib.sha256(file.read_bytes()).hexdigest()
            recorder.entries[f"vocabulary/{name}/{file.name}"] = content


def of_masks(recorder: Recorder, model: Path, run: Path) -> None:
    """Record perplexity, and texts with masks that a run fills."""
    place, record = recorder.place, recorder.command
    texts, pairs = EXAMPLES / "text" / "validation.txt", EXAMPLES / "minimal_pairs" / "test.jsonl"
    blank = place / "with-blank.jsonl"
    write_jsonl(blank, [{"text": t, "id": n} for n, t in enumerate(("Ana saw it.", "", "ጠቅላይ"))])
    scored: dict[str, tuple[str | Path, ...]] = {
        "texts": ("--file", texts),
        "texts by word": ("--file", texts, "--method", "word", "--max-length", "16"),
        "pairs": ("--file", pairs, "--resamples", "50"),
        "one text": ("--text", "Ana saw the river.", "--text", "She slept."),
        "two texts": ("--text", "Ana saw it.", "--text", "Ana see it.", "--pairs"),
        "blank": ("--file", blank),
    }
    for name, arguments in scored.items():
        for form in TABLES:
            record(f"perplexity/{name}/{form}", "perplexity", model, *arguments, "--format", form)
    for name in ("texts by word", "pairs", "two texts", "blank"):
        for suffix in ("jsonl", "csv"):
            out = place / f"scores.{suffix}"
            record(f"perplexity/{name}/{suffix}", "perplexity", model, *scored[name], "--out", out)
            if out.exists():
                recorder.file(f"perplexity/{name}/{suffix}/file", out)
                out.unlink()
    wrong: dict[str, tuple[str | Path, ...]] = {
        "nothing": (),
        "method": ("--text", "a", "--method", "words"),
        "one of two": ("--text", "a", "--pairs"),
        "resamples": ("--text", "a", "--resamples", "0"),
        "suffix": ("--text", "a", "--out", "a.txt"),
        "empty": ("--file", write_jsonl(place / "empty.jsonl", [])),
    }
    for name, arguments in wrong.items():
        record(f"perplexity/wrong/{name}", "perplexity", model, *arguments)
    record("perplexity/of a run", "perplexity", run, "--text", "Ana saw the river.")
    long = "Ana saw the river . " * 12
    for name, text in {
        "two": "Ana saw the [MASK] river near <mask> and the old house .",
        "long": f"{long}[MASK] {long}[MASK]",
        "none": "Ana saw the river .",
        "of a character": "A[MASK]a",
    }.items():
        record(f"masks/{name}", "predict", run, "--text", text)


def of_annotators(recorder: Recorder, runs: dict[str, Path]) -> None:
    """Record conversions and suspects."""
    place, record = recorder.place / "annotated", recorder.command
    for name, rows in FILES.items():
        write_jsonl(place / name, rows)
    kinds = {
        kind: next(folder.glob("predictions.test.jsonl"), folder / "predictions.validation.jsonl")
        for kind, folder in runs.items()
    }
    kinds |= {
        name.removesuffix(".jsonl"): place / name
        for name in FILES
        if name.startswith(("spans", "tags", "lists", "pairs", "skipped", "numbers"))
    }
    for kind, file in kinds.items():
        for to in CONVERTED:
            suffix = SUFFIXES.get(to, to)
            out = place / (f"converted.{suffix}" if to != "brat" else f"brat-{kind}")
            record(f"convert/{kind}/{to}", "convert", file, "--to", to, "--out", out)
            if out.exists():
                recorder.file(f"convert/{kind}/{to}/file", out)
                if out.is_file():
                    out.unlink()
    _suspects(recorder)


def _suspects(recorder: Recorder) -> None:
    """Record suspects of labels, of several labels, of tags and of spans."""
    place = recorder.place
    model = save_tiny_checkpoint(place / "calm", "bert", dropout=0.0, layers=3)
    searched: dict[str, tuple[str, Any, str]] = {
        "label": ("classify", small_data.sentiment, "epochs: 12\n"),
        "labels": ("classify", small_data.topics, "epochs: 12\n"),
        "tags": ("tag", small_data.entities, "epochs: 12\n"),
        "spans": ("ner", small_data.entities, "epochs: 40\nmax_width: 2\nhead_lr: 2e-3\n"),
    }
    for name, (task, make, more) in searched.items():
        folder = make(place / f"suspects-{name}", (80, 8, 8))
        rows = [json.loads(line) for line in (folder / "train.jsonl").open(encoding="utf-8")]
        for row in rows[::9]:  # some labels are wrong
            if isinstance(row.get("label"), str):
                row["label"] = "neg" if row["label"] == "pos" else "pos"
            elif "tags" in row:
                row["tags"] = ["O" if tag == "B-PER" else tag for tag in row["tags"]]
        write_jsonl(folder / "train.jsonl", rows)
        recipe = place / f"suspects-{name}.yaml"
        recipe.write_text(
            f"task: {task}\ndescription: planted\nmodel: {model}\ndata: {folder}\n"
            f"batch_size: 8\nlr: 2e-3\nprecision: fp32\nmax_length: 40\n{more}",
            encoding="utf-8",
        )
        out = place / f"suspects-{name}.jsonl"
        folds = place / f"folds-{name}"
        recorder.command(f"suspects/{name}/folds", "run", recipe, "--folds", "2", "--out", folds)
        del recorder.entries[f"suspects/{name}/folds"]  # the runs are recorded elsewhere
        words = ("check", folds, "--label-errors", "--examples", "3", "--out", out)
        recorder.command(f"suspects/{name}", *words)
        if out.exists():
            recorder.file(f"suspects/{name}/file", out)
