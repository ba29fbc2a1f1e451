"""transformers' ``pipeline`` for models with a custom class.

>>> import finetune.inference.pipelines
>>> from transformers import pipeline
>>> pipeline("span-ner", model="runs/x/best")("Anna Smith lives in Paris.")  # doctest: +SKIP

Importing this module registers the task ``span-ner``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from transformers import Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from finetune.inference.loop import predict_on_device
from finetune.inference.predictor import to_example
from finetune.models.heads.span_ner import SpanNer
from finetune.tasks import saved_task
from finetune.types import SpanPrediction, UserError

TASK = "span-ner"


class SpanNerPipeline(Pipeline):
    """Text in, labelled spans of characters out.

    An entity is ``{"entity": type, "score": probability, "word": text, "start": first character,
    "end": character after the last}``. One text gives a list of them, a list of texts a list of
    lists, and a generator of texts an iterator over lists. ``batch_size`` texts go through the
    model together, which changes no result. Long texts are read in windows. As in all of
    transformers' pipelines, the model runs in the precision it was loaded in (``dtype``).
    """

    _load_tokenizer = False  # the saved task loads it
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    model: SpanNer

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Load the task saved beside the model; raise UserError if there is none."""
        super().__init__(*arguments, **named)
        self.model.eval()
        self.task_of_model: Any = saved_task(self.model.name_or_path)

    def _sanitize_parameters(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, {}, {}

    def preprocess(self, texts: list[str]) -> dict[str, Any]:
        """Make examples and their sequences."""
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"the {TASK} pipeline takes texts, not {text!r:.60}.")
        task = self.task_of_model
        examples = [to_example(task, index, text) for index, text in enumerate(texts)]
        return {"examples": examples, "encoded": task.encode(examples)}

    def _forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Predict each example. ``forward`` turns named tuples into plain ones: none may leave."""
        examples, task = inputs["examples"], self.task_of_model
        predicted = predict_on_device(
            task, self.model, examples, inputs["encoded"], self.device, precision="fp32"
        )
        by_id = {prediction.id: prediction for prediction in predicted}
        return {"predictions": [by_id[example.id] for example in examples]}

    def postprocess(self, outputs: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """The entities of each text."""
        return list(map(_entities, outputs["predictions"]))

    def run_single(self, text: str, *parameters: Any) -> list[dict[str, Any]]:
        """The entities of one text."""
        return next(self.get_iterator([text], 0, 1))

    def get_iterator(
        self, inputs: Iterable[str], num_workers: int, batch_size: int, *parameters: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """The entities of each text, from ``batch_size`` at a time.

        transformers would put every text into tensors of its own and pad them.
        """
        remaining = iter(inputs)
        while texts := list(islice(remaining, batch_size)):
            yield from self.postprocess(self.forward(self.preprocess(texts)))


def _entities(prediction: SpanPrediction) -> list[dict[str, Any]]:
    assert prediction.offsets is not None and prediction.text is not None
    entities = []
    for span, score in zip(prediction.spans, prediction.scores, strict=True):
        start, end = prediction.offsets[span.start][0], prediction.offsets[span.end - 1][1]
        word = prediction.text[start:end]
        entities.append(
            {"entity": span.label, "score": score, "word": word, "start": start, "end": end}
        )
    return entities


PIPELINE_REGISTRY.register_pipeline(TASK, pipeline_class=SpanNerPipeline, pt_model=SpanNer)
