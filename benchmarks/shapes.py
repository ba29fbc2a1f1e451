"""Training and prediction with random weights of well-known shapes, relative to BERT-base's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.measure import Arm, Case, seconds
from benchmarks.subject import Settings, Subject, model_of, subject_of
from benchmarks.synthetic import SHAPES
from benchmarks.training import training_seconds
from finetune.inference.loop import predict


def cases_of(settings: Settings) -> Iterator[Case]:
    """Yield training and prediction of the same texts with an arm for each shape."""
    with ExitStack() as stack:
        subjects = {}
        for shape in SHAPES:
            own = replace(settings, shape=shape)
            subjects[shape] = stack.enter_context(
                subject_of(own, stack.enter_context(model_of(own)))
            )
        for phase, arm_of in (("train", _training), ("predict", _prediction)):
            arms = [replace(arm_of(subject), name=shape) for shape, subject in subjects.items()]
            yield Case(phase, next(iter(subjects.values())).case, arms)


def _training(subject: Subject) -> Arm:
    steps: Callable[..., float] = partial(training_seconds, subject, subject.precision)
    turn, first = partial(steps, subject.mixed), partial(steps, subject.mixed[:1])
    return Arm("", subject.precision, subject.work_of(subject.mixed), turn, first)


def _prediction(subject: Subject) -> Arm:
    texts = [subject.texts[place] for batch in subject.mixed for place in batch]
    run = partial(
        predict,
        subject.task,
        subject.head,
        texts,
        subject.accelerator,
        precision=subject.precision,
    )
    turn = partial(seconds, run, subject.device)
    return Arm("", subject.precision, subject.work_of(subject.mixed), turn, run)
