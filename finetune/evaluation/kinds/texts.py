"""The base class of the kinds of predictions of texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from finetune.evaluation.kinds.kind import Answer, Kind, Scored
from finetune.evaluation.kinds.lines import check_names
from finetune.types import TextExample


class OfTexts(Kind):
    """A kind of predictions of texts, of pairs of texts, or of questions."""

    def gold_of_row(self, index: int, where: str, row: Mapping[str, Any]) -> TextExample:
        """Return the text of a line with its gold."""
        gold = row["gold"]
        if gold is not None:
            check_names(where, "gold", gold)
        label = tuple(gold) if isinstance(gold, list) else gold
        text, pair = row.get("text", ""), row.get("text_pair")
        return TextExample(index, text, pair, label, row.get("where", where), row.get("id"))

    def asked(self, example: TextExample) -> tuple[object, ...]:
        """Return the texts and the choices."""
        return tuple(example.texts())

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Return whether a prediction is right."""
        return bool(gold == predicted)

    def confidences(self, scored: Scored) -> list[list[tuple[float, bool]]] | None:
        """Return the probability of each prediction, and whether it is right."""
        if not self.wording.rated:
            return None
        rows = zip(confidence_of(scored), scored.sides, strict=True)
        found = [[(sure, self.is_right(*sides))] for sure, sides in rows if sure is not None]
        return found or None

    def answers(self, scored: Scored) -> list[list[Answer]]:
        """Return the prediction of each text; a blank text has none."""
        if not self.wording.rated:
            return super().answers(scored)
        return [
            [Answer(p.score, self.is_right(gold, predicted), self.name_of(predicted))]
            if p.score is not None and not math.isnan(p.score)
            else []
            for p, (gold, predicted) in zip(scored.predictions, scored.sides, strict=True)
        ]

    def name_of(self, predicted: Any) -> str:
        """Return the class of a prediction; empty where classes differ by example."""
        return ""


def confidence_of(scored: Scored) -> list[float | None]:
    """Return the probability of each prediction; all None where one is not known."""
    found = [prediction.score for prediction in scored.predictions]
    known = bool(found) and not any(score is None or math.isnan(score) for score in found)
    return found if known else [None] * len(scored)
