"""F1 of entities that tags spell, for the library evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from finetune.data.tag_schemes import detect_scheme
from finetune.evaluation.metrics import class_scores, score
from finetune.evaluation.prediction_types import TYPES

_DESCRIPTION = """
F1 of entities. Predictions and references are tags, one for each word. `span_f1_conll` reads tags
as the script conlleval and seqeval's default mode do; `span_f1_strict` counts only entities that
are spelled as the scheme demands. `scheme` is IO, IOB1, BIO, BIOES, BILOU or BMES; the default is
the scheme of the references. The result also has `span_f1_conll:TYPE` of each type.
"""


class SpanF1(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """Span F1 of tags."""

    def _info(self) -> evaluate.MetricInfo:
        tags = datasets.List(datasets.Value("string"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description="",
            features=datasets.Features({"predictions": tags, "references": tags}),
            reference_urls=["https://aclanthology.org/W00-0726/"],
        )

    def _compute(
        self, predictions: Sequence[Any], references: Sequence[Any], scheme: str | None = None
    ) -> dict[str, float]:
        if scheme is None:
            outside = all(tag == "O" for tags in references for tag in tags)
            scheme = detect_scheme(predictions if outside else references)
        if scheme is None:
            raise ValueError("the tags do not spell entities: expected B-TYPE, I-TYPE and O.")
        tables = TYPES["tags"].of_values(references, predictions, schemes=(scheme, None))
        by_type = class_scores(tables).items()
        return score(tables) | {f"span_f1_conll:{name}": scores["f1"] for name, scores in by_type}
