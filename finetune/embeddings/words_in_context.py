"""`finetune similarity --threshold`: do two uses of a word have the same sense?

Pilehvar & Camacho-Collados 2019, "WiC: the Word-in-Context dataset for evaluating context-sensitive
meaning representations". The threshold on their cosine is chosen on training pairs and saved;
cosines of other models, layers or normalizations do not compare with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.cli.output import (
    open_rows,
    print_table,
    quiet_libraries,
    refuse_options,
    require_free,
    show,
    write_run,
)
from finetune.config.values import conforms
from finetune.data.json_files import read_object
from finetune.data.sources import resolve
from finetune.embeddings.commands import PREDICT_OPTIONS, layer_numbers
from finetune.embeddings.similarity import compare_pairs, read_similarity
from finetune.embeddings.vectors import Standardizer
from finetune.evaluation.prediction_types import scores_of
from finetune.evaluation.predictions import to_row
from finetune.inference.embed import Embedder, WordSettings
from finetune.runtime.files import replace_folder, write_text
from finetune.runtime.progress import Reporter
from finetune.runtime.row_files import write_rows
from finetune.types import TextExample, TextPrediction, UserError

if TYPE_CHECKING:
    from finetune.cli.predict import Predict
    from finetune.embeddings.commands import Similarity

THRESHOLD_FILE = "threshold.json"
_SPLITS = ("train", "validation", "test")
USED = (
    *("model", "data", "columns", "encoding", "layers", "pooling", "standardize"),
    *("threshold", "out", "encoder"),
)
"""The options of `similarity` that apply to --threshold."""


@dataclass(frozen=True, kw_only=True)
class PairSettings(WordSettings):
    """The settings of the vectors of words, and whether to standardize them."""

    standardize: bool = False


class Threshold(NamedTuple):
    """Pairs with at least this cosine have the label ``above``, the others ``below``."""

    value: float
    above: str
    below: str


def best_threshold(cosines: np.ndarray, labels: Sequence[str]) -> Threshold:
    """Choose the threshold with the highest accuracy on pairs with two labels.

    ``above`` is the label with the higher mean cosine. Thresholds lie midway between two cosines;
    if several are equally good, the lowest one is chosen.

    Raises:
        UserError: There are not exactly two labels.
    """
    names = sorted({*labels})
    if len(names) != 2:
        raise UserError(
            f"a threshold separates two labels, and the training pairs have {len(names)}: "
            f"{', '.join(names[:5])}."
        )
    is_second = np.array([label == names[1] for label in labels])
    if cosines[is_second].mean() < cosines[~is_second].mean():
        names, is_second = names[::-1], ~is_second
    values = np.unique(cosines)
    cuts = np.concatenate(
        [values[:1], (values[:-1] + values[1:]) / 2, np.nextafter(values[-1:], np.inf)]
    )
    below, above = np.sort(cosines[~is_second]), np.sort(cosines[is_second])
    num_right = np.searchsorted(below, cuts) + len(above) - np.searchsorted(above, cuts)
    return Threshold(float(cuts[np.argmax(num_right)]), names[1], names[0])


def fit_threshold(command: Similarity) -> None:
    """Choose the threshold on the training pairs, score all splits, and write the run folder."""
    refuse_options(command, USED, "--threshold")
    if command.data is None or command.out is None:
        raise UserError("--threshold needs --data with a train split, and --out RUN.")
    if command.standardize not in (None, "train"):
        raise UserError(
            f"--standardize {command.standardize}: with --threshold write --standardize train, for "
            "mean and deviation of the words of the training texts."
        )
    out = require_free(command.out)
    files = resolve(command.data).files
    if "train" not in files:
        raise UserError(
            f"--data {command.data}: no train split: write --data train=FILE,test=FILE."
        )
    options = command.encoder.keywords()
    settings = PairSettings(
        model=command.model,
        layers=layer_numbers(command.layers),
        pooling=command.pooling or "mean",
        standardize=command.standardize is not None,
        max_length=options.pop("max_length"),
    )
    splits = {
        split: read_similarity(command.data, split=split, **command.reading).pairs
        for split in _SPLITS
        if split in files
    }
    train = splits["train"]
    labeled = [index for index, pair in enumerate(train) if pair.label is not None]
    if not labeled:
        raise UserError("no training pair has a label.")
    reporter, embedder, standardizer = Reporter(), settings.embedder(**options), None
    if settings.standardize:
        embeddings = embedder.encode(text for index in labeled for text in train[index].texts())
        standardizer = Standardizer.fit(embedding.vectors for embedding in embeddings)
    cosines = {
        split: _cosines(embedder, pairs, standardizer, reporter) for split, pairs in splits.items()
    }
    threshold = best_threshold(cosines["train"][labeled], [_label(train[n]) for n in labeled])
    content: dict[str, Any] = {
        "threshold": threshold._asdict(),
        "settings": asdict(settings),
        "weights": embedder.settings["weights"],
    }
    if standardizer is not None:
        content["mean"] = standardizer.mean.tolist()
        content["deviation"] = standardizer.deviation.tolist()
    metrics = {}
    with replace_folder(out) as folder:
        for split, pairs in splits.items():
            rows, metrics[split] = _rows_and_scores(pairs, cosines[split], threshold)
            write_rows(folder / f"predictions.{split}.jsonl", rows)
        write_text(folder / THRESHOLD_FILE, json.dumps(content) + "\n")
        write_run(folder, {"task": "similarity", "data": command.data, **asdict(settings)}, metrics)
    show(f"{threshold.above}: cosine of {threshold.value:.4f} or more")
    table = [
        (split, len(splits[split]), scores.get("accuracy"), scores.get("macro_f1"))
        for split, scores in metrics.items()
    ]
    print_table(("split", "pairs", "accuracy", "macro f1"), table)
    show(f"run folder: {out}")


def predict_pairs(command: Predict) -> None:
    """Label each pair of --file by the threshold of a run, and write the predictions."""
    refuse_options(command, (*PREDICT_OPTIONS, "columns"), "a run of similarity --threshold")
    quiet_libraries()
    run, file = Path(command.folder), command.file or ""
    pairs = read_similarity(file, **command.reading).pairs
    path = run / THRESHOLD_FILE
    content = read_object(path, {"threshold": dict, "settings": dict, "weights": str})
    try:
        threshold = Threshold(**content["threshold"])
        settings = PairSettings.restored(content["settings"])
        fitted = [np.array(content[name]) for name in ("mean", "deviation") if name in content]
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}): choose the threshold again.") from error
    if not conforms(threshold.value, float) or len(fitted) != 2 * settings.standardize:
        raise UserError(f"{path}: damaged: choose the threshold again.")
    embedder = settings.embedder(max_tokens=command.max_tokens)
    if embedder.settings["weights"] != content["weights"]:
        raise UserError(f"{run}: {settings.model} has other weights than the threshold's.")
    standardizer = Standardizer(fitted[0], fitted[1], 0) if fitted else None
    cosines = _cosines(embedder, pairs, standardizer, Reporter())
    rows, scores = _rows_and_scores(pairs, cosines, threshold)
    with open_rows(command.out, [Path(file), *run.glob("*")]) as write:
        for row in rows:
            write(row)
    if scores:
        show(f"accuracy {scores['accuracy']:.4f}", error=True)


def _cosines(
    embedder: Embedder,
    pairs: Sequence[TextExample],
    standardizer: Standardizer | None,
    reporter: Reporter,
) -> np.ndarray:
    for pair in pairs:
        if pair.targets is None:
            raise UserError(
                f"{pair.where}: no column names the word of each text: write index and "
                "index_pair (words between blanks, from 0), or start, end, start_pair, end_pair."
            )
    return compare_pairs(embedder, pairs, standardizer=standardizer, reporter=reporter)[-1].values


def _rows_and_scores(
    pairs: Sequence[TextExample], cosines: np.ndarray, threshold: Threshold
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    labels = np.where(cosines >= threshold.value, threshold.above, threshold.below).tolist()
    rows = [
        to_row(TextPrediction(index, label), pair) | {"cosine": round(cosine, 6)}
        for index, (pair, label, cosine) in enumerate(
            zip(pairs, labels, cosines.tolist(), strict=True)
        )
    ]
    labeled = [index for index, pair in enumerate(pairs) if pair.label is not None]
    gold = [_label(pairs[index]) for index in labeled]
    return rows, scores_of("label", gold, [labels[index] for index in labeled]) if gold else {}


def _label(pair: TextExample) -> str:
    label = pair.label
    return f"{label:g}" if isinstance(label, float) else str(label)
