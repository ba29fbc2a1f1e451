"""Zero-shot classification: a model of natural language inference with labels named at prediction.

Each label becomes a hypothesis about the text, and the label whose hypothesis the text entails most
is predicted (Yin et al., 2019, "Benchmarking Zero-shot Text Classification").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from finetune.data.labels import canonical_name
from finetune.tasks.base import Task
from finetune.tasks.text_classification import TextClassificationTask, TextRecord
from finetune.types import (
    Batch,
    Decision,
    Encoding,
    LabelSet,
    Partial,
    TextExample,
    TextPrediction,
    UserError,
    abbreviated,
)

TEMPLATE = "This example is {}."
"""The hypothesis of a label by default, as in the pipeline of transformers."""


@dataclass(eq=False)
class ZeroShotTask(TextClassificationTask):
    """Classification of texts by a model of pairs: of the text and the hypothesis of each label.

    For one label, the probabilities are the softmax of the K logits of entailment. For several
    labels, each is the softmax of its logits of entailment and contradiction.
    """

    record: TextRecord
    _hypotheses: tuple[str, ...] = ()
    """The hypothesis of each label, in the order of ``record.labels``."""
    _entailment: int = 0
    """The class of entailment."""
    _contradiction: int = 1
    """The class of contradiction (of two classes, the other one)."""

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[Encoding]], int]:
        result: list[list[Encoding]] = [[] for _ in examples]
        most_cut = 0
        for index, hypothesis in enumerate(self._hypotheses):
            pairs = [replace(example, pair=hypothesis, label=None) for example in examples]
            encoded, num_cut = super()._sequences(pairs)
            most_cut = max(most_cut, num_cut)
            for found, windows in zip(result, encoded, strict=True):
                for window, encoding in enumerate(windows):
                    number = window * len(self._hypotheses) + index
                    found.append(replace(encoding, part=number))
        return result, most_cut

    @property
    def explained_by(self) -> Sequence[str]:
        """The methods that explain predictions."""
        return super().explained_by[:1]

    def decision_scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of entailment, of whatever label: [N, K]."""
        entailed = logits.log_softmax(-1)[:, self._entailment, None]
        return entailed.expand(-1, len(self._hypotheses))

    def decision_row(self, decision: Decision, sequence: Encoding) -> int | None:
        """Return the only row of a sequence with the hypothesis of a label."""
        return 0 if sequence.part % len(self._hypotheses) == decision.number else None

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[Partial]:
        """Return the logits of entailment and contradiction [2] of each sequence."""
        rows = logits.cpu().double().numpy()[:, [self._entailment, self._contradiction]]
        return batch.partials(rows)

    def finish(
        self, example: TextExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> TextPrediction:
        """Average the windows of each hypothesis; take the best label, or several."""
        logits = np.zeros((len(self._hypotheses), 2))
        counts = np.zeros((len(self._hypotheses), 1))
        for partial in partials:
            logits[partial.part % len(logits)] += partial.values
            counts[partial.part % len(logits)] += 1
        logits /= counts
        if self.record.problem == "multi":
            odds = np.exp(logits - logits.max(1, keepdims=True))
            return self.record.decide(example.id, odds[:, 0] / odds.sum(1))
        odds = np.exp(logits[:, 0] - logits[:, 0].max())
        return self.record.decide(example.id, odds / odds.sum())


def zero_shot(
    task: Task,
    labels: str | Iterable[str] | Mapping[str, str],
    template: str = TEMPLATE,
    *,
    multi_label: bool = False,
) -> ZeroShotTask:
    """Make the task from the task of a trained model of natural language inference.

    Args:
        task: The task of the model.
        labels: The labels; or for each label the words that stand for it in its hypothesis; or
            a string of both, such as ``sports,HUM=a person``.
        template: The hypothesis, with ``{}`` where the words of the label go.
        multi_label: Predict any number of labels: those over their thresholds.

    Raises:
        UserError: The model does not predict entailment; or the labels or template are illegal.
    """
    classes = [canonical_name(name) for name in task.record.labels]
    record = task.record
    if "entailment" not in classes or not isinstance(record, TextRecord):
        names = f" of {abbreviated(record.labels)}" if record.labels else ""
        raise UserError(
            "--labels needs a model of natural language inference, with a label entailment, "
            f"and this is a `{task.name}` model{names}: leave --labels out."
        )
    for setting, models in (("marked_words", "marked words"), ("few_shot", "--few-shot")):
        if getattr(record.config, setting):
            raise UserError(f"--labels does not apply to models of {models}: leave it out.")
    words = _words(labels)
    if len(words) < 2 and not multi_label:
        raise UserError("--labels: give two or more, or --multi-label.")
    if template.count("{}") != 1:
        raise UserError(
            f"--template {template!r}: write {{}} once, where the label goes, as in '{TEMPLATE}'."
        )
    entailment = classes.index("entailment")
    if len(classes) > 2 and "contradiction" not in classes:
        raise UserError(
            "--labels: the model has no class contradiction among its "
            f"{len(classes)} ({abbreviated(classes)}): use a model of entailment, neutral and "
            "contradiction, or of two classes."
        )
    return ZeroShotTask(
        replace(
            record.unfitted(),
            labels=LabelSet(list(words)),
            problem="multi" if multi_label else "single",
            pairs=False,
            positive=None,
        ),
        task.tokenizer,
        _hypotheses=tuple(template.replace("{}", each) for each in words.values()),
        _entailment=entailment,
        _contradiction=classes.index("contradiction") if len(classes) > 2 else 1 - entailment,
    )


def _words(labels: str | Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(labels, Mapping):
        pairs = list(labels.items())
    elif isinstance(labels, str):
        split = [label.partition("=") for label in labels.split(",")]
        pairs = [(name.strip(), (words if sep else name).strip()) for name, sep, words in split]
    else:
        pairs = [(label, label) for label in labels]
    found: dict[str, str] = {}
    for name, words in pairs:
        if not name or not words:
            raise UserError(
                f"--labels {labels!r}: one is empty: write for example sports,politics."
            )
        if name in found:
            raise UserError(f"--labels: {name!r} is given twice: give each label once.")
        found[name] = words
    return found
