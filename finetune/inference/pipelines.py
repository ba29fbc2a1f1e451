"""transformers' ``pipeline`` for saved models of ``ner`` (``span-ner``) and ``tag --crf``.

>>> import finetune.inference.pipelines
>>> from transformers import pipeline
>>> pipeline("span-ner", model="runs/x/best")("Anna Smith lives in Paris.")  # doctest: +SKIP
>>> pipeline("crf-tagger", model="runs/y/best")("Anna Smith lives in Paris.")  # doctest: +SKIP

Importing this module registers both tasks of ``pipeline``, and the models with ``AutoConfig`` and
``AutoModel``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from transformers import Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from finetune.inference.loop import predict
from finetune.models.heads.crf import CrfTagger
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.tasks import saved_task
from finetune.types import Span, TokenPrediction, UserError

MODELS: dict[str, Any] = {"span-ner": SpanClassifier, "crf-tagger": CrfTagger}


class SpanPipeline(Pipeline):
    """Predicts labeled spans of characters in texts; tags that encode no spans label each word.

    An entity is ``{"entity": type, "score": probability, "word": text, "start": first character,
    "end": character after the last}``. A text gives a list of entities, a list of texts a list of
    lists, and a generator of texts an iterator over lists. ``batch_size`` changes no result. Long
    texts are read in windows. The model runs in the precision it was loaded in (``dtype``).
    """

    _load_tokenizer: Any = False  # the saved task loads it
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False
    model: SpanClassifier | CrfTagger

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Load the task saved with the model; raise UserError if the model has no task."""
        super().__init__(*arguments, **named)
        self.model.train(False)
        self.task_of_model: Any = saved_task(str(self.model.name_or_path))

    def _sanitize_parameters(self) -> Any:  # type: ignore[override]  # there are no options
        return {}, {}, {}

    def preprocess(self, input_: Any, **parameters: Any) -> dict[str, Any]:
        """Make an example of each text."""
        for text in input_:
            if not isinstance(text, str):
                raise UserError(f"the {self.task} pipeline takes texts, not {text!r:.60}.")
        state = self.task_of_model.state
        return {"examples": [state.example(index, text) for index, text in enumerate(input_)]}

    def _forward(self, input_tensors: Any, **parameters: Any) -> Any:
        options: dict[str, Any] = {"precision": "fp32", "device": self.device}
        examples = input_tensors["examples"]
        return {"predictions": predict(self.task_of_model, self.model, examples, **options)}

    def postprocess(self, model_outputs: Any, **parameters: Any) -> list[list[dict[str, Any]]]:
        """The entities of each text."""
        entities_of_texts: list[list[dict[str, Any]]] = []
        for prediction in model_outputs["predictions"]:
            spans, scores = prediction.spans, prediction.scores
            if spans is None:
                spans = [Span(n, n + 1, tag) for n, tag in enumerate(prediction.tags)]
            elif isinstance(prediction, TokenPrediction):
                scores = prediction.span_scores
            entities_of_texts.append([])
            for span, score in zip(spans, scores, strict=True):
                a, b = prediction.offsets[span.start][0], prediction.offsets[span.end - 1][1]
                entity = {"entity": span.label, "score": score, "word": prediction.text[a:b]}
                entities_of_texts[-1].append({**entity, "start": a, "end": b})
        return entities_of_texts

    def run_single(self, text: str, *parameters: Any) -> list[dict[str, Any]]:
        """The entities of one text."""
        return next(self.get_iterator([text], 0, 1))

    def get_iterator(
        self, inputs: Iterable[str], num_workers: int, batch_size: int, *parameters: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the entities of each text, ``batch_size`` texts at a time, without padding."""
        remaining = iter(inputs)
        while texts := list(islice(remaining, batch_size)):
            outputs = self.forward(self.preprocess(texts))  # type: ignore[no-untyped-call]
            yield from self.postprocess(outputs)


for _task, _model in MODELS.items():
    PIPELINE_REGISTRY.register_pipeline(_task, pipeline_class=SpanPipeline, pt_model=_model)
