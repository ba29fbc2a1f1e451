"""Words in context: do two uses of a word have the same sense? By a threshold on their cosine.

Pilehvar & Camacho-Collados 2019, "WiC: the Word-in-Context dataset for evaluating context-sensitive
meaning representations". The threshold is chosen on training pairs and saved; cosines of other
models, layers or normalizations do not compare with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.values import conforms
from finetune.data.json_files import read_object
from finetune.embeddings.data.similarity_pairs import SimilarityPair
from finetune.embeddings.evaluation.standardization import Standardizer
from finetune.embeddings.inference.cosines import compare_pairs
from finetune.inference.embed import Embedder, WordSettings
from finetune.runtime.progress import Reporter
from finetune.types import TextPrediction, UserError

THRESHOLD_FILE = "threshold.json"
STANDARDIZER_FILE = "standardizer.safetensors"


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
        order = np.argsort(cosines, kind="stable")
        values, above = cosines[order], is_second[order]
        cuts = np.flatnonzero(np.diff(values)) + 1  # between different cosines only
        below_right = np.concatenate([[0], np.cumsum(~above)])
        above_right = above.sum() - np.concatenate([[0], np.cumsum(above)])
        candidates = np.concatenate([[0], cuts, [len(values)]])
        best = int(candidates[np.argmax((below_right + above_right)[candidates])])
        if best == len(values):  # all pairs have the label of lower cosines
            value = float(np.nextafter(values[-1], np.inf))
        else:
            value = float(values[max(best - 1, 0) : best + 1].mean())
        return cls(value, names[1], names[0])

    def predict(self, index: int, cosine: float) -> TextPrediction:
        """Return the prediction for a pair."""
        return TextPrediction(index, self.above if cosine >= self.value else self.below)


class WordInContext:
    """Predicts whether a word has the same sense in two contexts. Use ``fit`` or ``load``."""

    def __init__(
        self,
        settings: PairSettings,
        threshold: Threshold,
        standardizer: Standardizer | None,
        embedder: Embedder,
    ) -> None:
        self.settings, self.threshold = settings, threshold
        self.standardizer, self.embedder = standardizer, embedder

    @classmethod
    def fit(
        cls,
        settings: PairSettings,
        train: Sequence[SimilarityPair],
        *,
        reporter: Reporter | None = None,
        **options: Any,
    ) -> WordInContext:
        """Choose the threshold on pairs that all have labels.

        With ``settings.standardize``, all words of their texts give mean and deviation.
        """
        labeled = [pair for pair in train if pair.example.label is not None]
        if not labeled:
            raise UserError("no training pair has a label.")
        embedder = settings.embedder(**options)
        standardizer = None
        if settings.standardize:
            texts = (text for pair in labeled for text in pair.texts)
            standardizer = Standardizer.fit(
                (each.vectors for each in embedder.encode(texts)), embedder.settings
            )
        cosines = _cosines(embedder, labeled, standardizer, reporter)
        threshold = Threshold.fit(cosines, [label_name(pair) for pair in labeled])
        return cls(settings, threshold, standardizer, embedder)

    def predict(
        self, pairs: Sequence[SimilarityPair], *, reporter: Reporter | None = None
    ) -> list[tuple[TextPrediction, float]]:
        """Return the prediction and the cosine of each pair."""
        cosines = _cosines(self.embedder, pairs, self.standardizer, reporter).tolist()
        return [(self.threshold.predict(i, cosine), cosine) for i, cosine in enumerate(cosines)]

    def save(self, folder: Path) -> None:
        """Write the threshold and the settings of its cosines into a folder."""
        weights = self.embedder.settings["weights"]
        content = {
            "threshold": asdict(self.threshold),
            "settings": asdict(self.settings),
            "weights": weights,
        }
        (folder / THRESHOLD_FILE).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        if self.standardizer is not None:
            self.standardizer.save(folder / STANDARDIZER_FILE)

    @classmethod
    def load(cls, folder: Path, **options: Any) -> WordInContext:
        """Load a folder that ``save`` wrote; ``options`` are more arguments of ``Embedder``."""
        path = folder / THRESHOLD_FILE
        content = read_object(path, {"threshold": dict, "settings": dict, "weights": str})
        try:
            threshold = Threshold(**content["threshold"])
            settings = PairSettings.restored(content["settings"])
        except TypeError as error:
            raise UserError(f"{path}: damaged ({error}): choose the threshold again.") from error
        if not conforms(threshold.value, float):
            raise UserError(f"{path}: damaged, the threshold is {threshold.value!r}.")
        embedder = settings.embedder(**options)
        if embedder.settings["weights"] != content["weights"]:
            raise UserError(f"{folder}: {settings.model} has other weights than the threshold's.")
        standardizer = None
        if settings.standardize:
            standardizer = Standardizer.load(folder / STANDARDIZER_FILE)
        return cls(settings, threshold, standardizer, embedder)


def label_name(pair: SimilarityPair) -> str:
    """Return the label of a pair as a name: 1.0 is ``1``."""
    label = pair.example.label
    return f"{label:g}" if isinstance(label, float) else str(label)


def _cosines(
    embedder: Embedder,
    pairs: Sequence[SimilarityPair],
    standardizer: Standardizer | None,
    reporter: Reporter | None,
) -> np.ndarray:
    for pair in pairs:
        if pair.targets is None:
            raise UserError(
                f"{pair.example.where}: no column names the word of each text: write index and "
                "index_pair (words between blanks, from 0), or start, end, start_pair, end_pair."
            )
    found = compare_pairs(embedder, pairs, standardizer=standardizer, reporter=reporter)
    return np.asarray(found[-1].values, dtype=np.float64)
