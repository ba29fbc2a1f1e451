"""Training and prediction with random weights of well-known shapes, relative to BERT-base's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.measure import Variant, Workload, seconds
from benchmarks.measured_model import MeasuredModel, Settings, measured_model, model_of
from benchmarks.prediction import models_by_precision
from benchmarks.synthetic import SHAPES
from benchmarks.training import training_seconds
from finetune.inference.loop import predict


def workloads_of(settings: Settings) -> Iterator[Workload]:
    """Yield training and prediction of the same texts with a variant for each shape."""
    with ExitStack() as stack:
        measured_models = {}
        for shape in SHAPES:
            own = replace(settings, shape=shape)
            measured_models[shape] = stack.enter_context(
                measured_model(own, stack.enter_context(model_of(own)))
            )
        for phase, variant_of in (("train", _training), ("predict", _prediction)):
            variants = [
                replace(variant_of(measured), name=shape)
                for shape, measured in measured_models.items()
            ]
            yield Workload(phase, next(iter(measured_models.values())).workload, variants)


def _training(measured: MeasuredModel) -> Variant:
    steps: Callable[..., float] = partial(training_seconds, measured, measured.precision)
    repetition, first = partial(steps, measured.mixed), partial(steps, measured.mixed[:1])
    return Variant("", measured.precision, measured.work_of(measured.mixed), repetition, first)


def _prediction(measured: MeasuredModel) -> Variant:
    texts = [measured.texts[index] for batch in measured.mixed for index in batch]
    model = models_by_precision(measured.head, measured.precision)[measured.precision]
    run = partial(
        predict, measured.task, model, texts, measured.accelerator, precision=measured.precision
    )
    repetition = partial(seconds, run, measured.device)
    return Variant("", measured.precision, measured.work_of(measured.mixed), repetition, run)
