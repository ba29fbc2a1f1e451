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
    """Predicts labeled spans of characters in texts.

    An entity is ``{"entity": type, "score": probability, "word": text, "start": first character,
    "end": character after the last}``. A text gives a list of entities, a list of texts a list of
    lists, and a generator of texts an iterator over lists. ``batch_size`` changes no result. Long
    texts are read in windows. The model runs in the precision it was loaded in (``dtype``).
    """

    _load_tokenizer: Any = False  # the saved task loads it
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False
    model: SpanNer

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Load the task saved with the model; raise UserError if there is none."""
        super().__init__(*arguments, **named)
        self.model.train(False)
        self.task_of_model: Any = saved_task(str(self.model.name_or_path))

    def _sanitize_parameters(self) -> Any:  # type: ignore[override]  # there are no options
        return {}, {}, {}

    def preprocess(self, input_: Any, **parameters: Any) -> dict[str, Any]:
        """Make examples and their sequences."""
        for text in input_:
            if not isinstance(text, str):
                raise UserError(f"the {TASK} pipeline takes texts, not {text!r:.60}.")
        task = self.task_of_model
        examples = [to_example(task, index, text) for index, text in enumerate(input_)]
        return {"examples": examples, "encoded": task.encode(examples)}

    def _forward(self, input_tensors: Any, **parameters: Any) -> Any:
        """Predict each example. ``forward`` converts named tuples to plain ones."""
        examples, task = input_tensors["examples"], self.task_of_model
        predicted = predict_on_device(
            task, self.model, examples, input_tensors["encoded"], self.device, precision="fp32"
        )
        by_id = {prediction.id: prediction for prediction in predicted}
        return {"predictions": [by_id[example.id] for example in examples]}

    def postprocess(self, model_outputs: Any, **parameters: Any) -> list[list[dict[str, Any]]]:
        """Return the entities of each text."""
        return list(map(_entities, model_outputs["predictions"]))

    def run_single(self, text: str, *parameters: Any) -> list[dict[str, Any]]:
        """Return the entities of one text."""
        return next(self.get_iterator([text], 0, 1))

    def get_iterator(
        self, inputs: Iterable[str], num_workers: int, batch_size: int, *parameters: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the entities of each text, ``batch_size`` texts at a time, without padding."""
        remaining = iter(inputs)
        while texts := list(islice(remaining, batch_size)):
            outputs = self.forward(self.preprocess(texts))  # type: ignore[no-untyped-call]
            yield from self.postprocess(outputs)


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
