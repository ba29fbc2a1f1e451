"""What the kinds of predictions of texts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.evaluation.kinds.kind import Kind
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
        where, choices = row.get("where", where), tuple(row.get("choices", ()))
        return TextExample(index, text, pair, label, where, row.get("id"), choices=choices)

    def asked(self, example: TextExample) -> tuple[object, ...]:
        """Return the texts and the choices."""
        return example.text, example.pair, example.choices
