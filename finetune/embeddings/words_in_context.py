"""`finetune similarity --threshold`: do two uses of a word have the same sense?

Pilehvar & Camacho-Collados 2019, "WiC: the Word-in-Context dataset for evaluating context-sensitive
meaning representations". The threshold on their cosine is chosen on training pairs and saved;
cosines of other models, layers or normalizations do not compare with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import (
    open_records,
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
from finetune.runtime.records import write_records
from finetune.types import TextExample, TextPrediction, UserError

if TYPE_CHECKING:
    from finetune.cli.predict import Predict
    from finetune.embeddings.commands import Similarity

THRESHOLD_FILE = "threshold.json"
SPLITS = ("train", "validation", "test")
USED = (
    *("model", "data", "columns", "encoding", "layers", "pooling", "standardize"),
    *("threshold", "out", "encoder"),
)
"""The options of `similarity` that apply to --threshold."""


@dataclass(frozen=True, kw_only=True)
class PairSettings(WordSettings):
    """The settings of the vectors of words, and whether to standardize them."""

    standardize: bool = False


@dataclass(frozen=True)
class Threshold:
    """Pairs with at least this cosine have the label ``above``, the others ``below``."""

    value: float
    above: str
    below: str

    @classmethod
    def fit(cls, cosines: np.ndarray, labels: Sequence[str]) -> Threshold:
        """Choose the threshold with the highest accuracy on pairs with two labels.

        ``above`` is the label with the higher mean cosine. Of equally good thresholds it is the
        lowest, in the middle between two cosines.

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
        return cls(float(cuts[np.argmax(num_right)]), names[1], names[0])


@dataclass(frozen=True, eq=False)
class WordInContext:
    """Predicts whether a word has the same sense in two contexts. Use ``fit`` or ``load``."""

    settings: PairSettings
    threshold: Threshold
    standardizer: Standardizer | None
    embedder: Embedder

    @classmethod
    def fit(
        cls,
        settings: PairSettings,
        train: Sequence[TextExample],
        *,
        reporter: Reporter | None = None,
        **options: Any,
    ) -> WordInContext:
        """Choose the threshold on pairs that all have labels.

        With ``settings.standardize``, all words of their texts give mean and deviation.
        """
        labeled = [pair for pair in train if pair.label is not None]
        if not labeled:
            raise UserError("no training pair has a label.")
        embedder = settings.embedder(**options)
        standardizer = None
        if settings.standardize:
            texts = (text for pair in labeled for text in (pair.text, pair.pair or ""))
            vectors = (embedding.vectors for embedding in embedder.encode(texts))
            standardizer = Standardizer.fit(vectors, embedder.settings)
        model = cls(settings, Threshold(0.0, "", ""), standardizer, embedder)
        cosines = model.cosines(labeled, reporter)
        return replace(model, threshold=Threshold.fit(cosines, [_label(p) for p in labeled]))

    def cosines(self, pairs: Sequence[TextExample], reporter: Reporter | None = None) -> np.ndarray:
        """Compute the cosine of the words of each pair; UserError if a pair names no words."""
        for pair in pairs:
            if pair.targets is None:
                raise UserError(
                    f"{pair.where}: no column names the word of each text: write index and "
                    "index_pair (words between blanks, from 0), or start, end, start_pair, "
                    "end_pair."
                )
        settings: Any = {"standardizer": self.standardizer, "reporter": reporter}
        return compare_pairs(self.embedder, pairs, **settings)[-1].values

    def predict(
        self, pairs: Sequence[TextExample], *, reporter: Reporter | None = None
    ) -> list[tuple[TextPrediction, float]]:
        """Predict the label of each pair, with the cosine."""
        cosines = self.cosines(pairs, reporter).tolist()
        above, below = self.threshold.above, self.threshold.below
        labels = [above if cosine >= self.threshold.value else below for cosine in cosines]
        predictions = (TextPrediction(index, label) for index, label in enumerate(labels))
        return list(zip(predictions, cosines, strict=True))

    def save(self, folder: Path) -> None:
        """Write the threshold and the settings of its cosines into a folder."""
        content: dict[str, Any] = {
            "threshold": asdict(self.threshold),
            "settings": asdict(self.settings),
            "weights": self.embedder.settings["weights"],
        }
        if self.standardizer is not None:
            content["mean"] = self.standardizer.mean.tolist()
            content["deviation"] = self.standardizer.deviation.tolist()
        write_text(folder / THRESHOLD_FILE, json.dumps(content) + "\n")

    @classmethod
    def load(cls, folder: Path, **options: Any) -> WordInContext:
        """Load a folder that ``save`` wrote; ``options`` are more arguments of ``Embedder``."""
        path = folder / THRESHOLD_FILE
        content = read_object(path, {"threshold": dict, "settings": dict, "weights": str})
        try:
            threshold = Threshold(**content["threshold"])
            settings = PairSettings.restored(content["settings"])
            sides = [np.array(content[name]) for name in ("mean", "deviation") if name in content]
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: damaged ({error}): choose the threshold again.") from error
        if not conforms(threshold.value, float) or len(sides) != 2 * settings.standardize:
            raise UserError(f"{path}: damaged: choose the threshold again.")
        embedder = settings.embedder(**options)
        if embedder.settings["weights"] != content["weights"]:
            raise UserError(f"{folder}: {settings.model} has other weights than the threshold's.")
        standardizer = Standardizer(sides[0], sides[1], 0, embedder.settings) if sides else None
        return cls(settings, threshold, standardizer, embedder)


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
        for split in SPLITS
        if split in files
    }
    reporter = Reporter()
    model = WordInContext.fit(settings, splits["train"], reporter=reporter, **options)
    metrics = {}
    with replace_folder(out) as folder:
        for split, pairs in splits.items():
            rows, metrics[split] = _rows_and_scores(pairs, model.predict(pairs, reporter=reporter))
            write_records(folder / f"predictions.{split}.jsonl", rows)
        model.save(folder)
        config = {"task": "similarity", "data": command.data, **asdict(settings)}
        write_run(folder, config, metrics)
    chosen = model.threshold
    show(f"{chosen.above}: cosine of {chosen.value:.4f} or more")
    table = [
        (split, len(splits[split]), scores.get("accuracy"), scores.get("macro_f1"))
        for split, scores in metrics.items()
    ]
    print_table(("split", "pairs", "accuracy", "macro f1"), table)
    show(f"run folder: {out}")


def predict_pairs(command: Predict) -> None:
    """Write whether the words of each pair of --file have the same sense, by a run's threshold."""
    refuse_options(command, (*PREDICT_OPTIONS, "columns"), "a run of similarity --threshold")
    quiet_libraries()
    run, file = Path(command.folder), command.file or ""
    pairs = read_similarity(file, **command.reading).pairs
    model = WordInContext.load(run, max_tokens=command.max_tokens)
    rows, scores = _rows_and_scores(pairs, model.predict(pairs, reporter=Reporter()))
    with open_records(command.out, [Path(file), *run.glob("*")]) as write:
        for row in rows:
            write(row)
    if scores:
        show(f"accuracy {scores['accuracy']:.4f}", error=True)


def _rows_and_scores(
    pairs: Sequence[TextExample], predicted: Sequence[tuple[TextPrediction, float]]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    rows, gold, labels = [], [], []
    for pair, (prediction, cosine) in zip(pairs, predicted, strict=True):
        rows.append(to_row(prediction, pair) | {"cosine": round(cosine, 6)})
        if pair.label is not None:
            gold.append(_label(pair))
            labels.append(prediction.label)
    return rows, scores_of("label", gold, labels) if gold else {}


def _label(pair: TextExample) -> str:
    label = pair.label
    return f"{label:g}" if isinstance(label, float) else str(label)
