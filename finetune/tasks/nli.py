"""Natural language inference, and other classification of sentence pairs.

Premise and hypothesis stand in one sequence with a separator between them, and the first token's
vector is classified (Jurafsky & Martin, "Masked Language Models", pairwise sequence
classification; Devlin et al., 2019). Labels are mapped by name, never by number: model hub cards
disagree about the order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from finetune.config.tasks import TextConfig
from finetune.data import Dataset, read_text
from finetune.data.nli_labels import ALIASES, NLI_LABELS, canonical_name
from finetune.tasks.text_classification import Classify
from finetune.types import TextExample


class Nli(Classify):
    """Classes for pairs of texts: entailment in two or three ways, paraphrase, and the like."""

    name = "nli"

    @classmethod
    def open(cls, config: TextConfig) -> Dataset:
        """Read pairs of texts."""
        return read_text(config.data, columns=config.column_map, pair=True)

    @classmethod
    def prepare(cls, config: TextConfig, data: Dataset) -> Dataset:
        """Map label names to the usual ones where all of them are NLI labels."""
        names = {
            example.label
            for examples in data.splits.values()
            for example in examples
            if isinstance(example.label, str)
        }
        renamed = sorted(name for name in names if canonical_name(name) != name)
        if renamed and all(name.strip().lower() in ALIASES for name in names):
            splits = {
                split: [_canonical(example) for example in examples]
                for split, examples in data.splits.items()
            }
            listed = ", ".join(f"{name!r} is {canonical_name(name)}" for name in renamed)
            notes = [*data.notes, f"labels mapped by name: {listed}"]
            data = replace(data, splits=splits, notes=notes)
        return super().prepare(config, data)

    @staticmethod
    def order(labels: Sequence[str] | Counter[str]) -> list[str]:
        """Entailment, neutral, contradiction first; all other labels sorted."""
        usual = [name for name in (*NLI_LABELS, "not_entailment") if name in labels]
        return usual if len(usual) == len(labels) else Classify.order(labels)


def _canonical(example: TextExample) -> TextExample:
    if not isinstance(example.label, str):
        return example
    return replace(example, label=canonical_name(example.label))
