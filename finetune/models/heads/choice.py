"""ChoiceScorer: one score for each sequence, to choose among the sequences of a question.

Radford et al., 2018, "Improving Language Understanding by Generative Pre-Training", section 3.3;
the classes of transformers for multiple choice. Each family has its own head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForMultipleChoice
from transformers.modeling_outputs import MultipleChoiceModelOutput

from finetune.models.heads.pretrained import PaddedRows, PretrainedHead
from finetune.types import UserError

SCORE = "score"
"""The label of the one number that the model computes for a sequence."""


class ChoiceScorer(PretrainedHead):
    """A score [N, 1] for each of N sequences, of a context with a question and one choice.

    The softmax is over the sequences of a question. ``PretrainedHead`` explains arguments and
    attributes. Padded rows are [Q, C, L] of Q questions with C choices, ``labels`` are [Q], and the
    output is a ``MultipleChoiceModelOutput`` with logits [Q, C].

    Examples:
        >>> from finetune import Encoding, pack
        >>> from finetune.models.heads.choice import ChoiceScorer
        >>> load = ChoiceScorer.from_pretrained
        >>> model = load("roberta-base", labels=["score"])  # doctest: +SKIP
        >>> model(pack([Encoding(0, [0, 713, 2]), Encoding(0, [0, 2])])).shape  # doctest: +SKIP
        torch.Size([2, 1])
    """

    auto_class = AutoModelForMultipleChoice
    output_class = MultipleChoiceModelOutput
    per_token = False

    def _output(self, rows: PaddedRows, labels: Tensor | None) -> Any:
        if rows.input_ids is None or rows.input_ids.ndim != 3:
            raise UserError(
                "a head of multiple choice takes a Batch (finetune.pack), or input_ids "
                "[questions, choices, tokens]."
            )
        sequences = PaddedRows(*(None if each is None else each.flatten(0, 1) for each in rows))
        logits = self._logits_of_rows(sequences).view(rows.input_ids.shape[:2])
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return self.output_class(loss=loss, logits=logits)

    @property
    def _whole_model(self) -> Any:
        def one_choice(**inputs: Tensor) -> Any:
            positions = inputs.pop("position_ids", None)
            shown = {name: value[:, None] for name, value in inputs.items()}
            if positions is not None:
                shown["position_ids"] = positions[:, None]
            return self.model(**shown)

        return one_choice
