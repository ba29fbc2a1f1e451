"""Tell texts of other domains from test texts, by the distance of `--ood` and by the logits.

python examples/other_domains.py               # MODEL, STEPS and OUT in the environment override
python examples/other_domains.py RUN DATA …    # a run of `classify` or `nli`, and other data
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

import finetune
from finetune.inference.loop import values_of_examples
from finetune.inference.vectors import TrainingVectors, decision_vectors
from finetune.tasks.definition import run_data
from finetune.types import Example


def logits_of(model: finetune.Predictor, examples: Sequence[Example]) -> np.ndarray:
    """Return the logits of short texts [N, C]."""
    logits = values_of_examples(
        model.model,
        model.task.encode(examples),
        lambda logits, _: logits.cpu().numpy(),
        device=model.accelerator.device,
    )
    return np.array([of_text for _, (of_text,) in sorted(logits)], dtype=float)


run, *others = sys.argv[1:] or [os.environ.get("OUT", "runs/example-domains")]
if not others:
    finetune.train(
        "classify",
        data="examples/data/sentiment",
        model=os.environ.get("MODEL", "minilm"),
        steps=int(os.environ.get("STEPS", "0")) or None,
        out=run,
    )
    others = ["examples/data/topics"]
model = finetune.load(run)
data = run_data(model.task, Path(model.folder), "the example compares with its training data")
training = decision_vectors(model.task, model.model, list(data.splits["train"][:4000]))
known = TrainingVectors.fit(training)


def scores_of(examples: Sequence[Example]) -> dict[str, np.ndarray]:
    """Return scores that are high for texts unlike the training data [N]."""
    logits = logits_of(model, examples)
    energy = -np.logaddexp.reduce(logits, axis=1)  # Liu et al. 2020
    vectors = decision_vectors(model.task, model.model, examples)
    highest = -(logits.max(axis=1) + energy)  # minus the log of the highest probability
    return {"distance": known.distances(vectors), "energy": energy, "probability": highest}


own = scores_of(list(data.splits["test"][:1000]))
for name in others:
    splits = finetune.read_text(name).splits
    texts = list(next(s for n, s in sorted(splits.items()) if n in ("test", "validation"))[:500])
    if not model.task.state.pairs:
        texts = [replace(each, pair=None) for each in texts]
    found = scores_of([replace(each, id=i, label=None) for i, each in enumerate(texts)])
    areas = {}
    for score, values in own.items():  # Mann and Whitney: the mean rank of the other texts
        ranks = rankdata(np.concatenate([values, found[score]]))[len(values) :]
        areas[score] = (ranks.mean() - (len(ranks) + 1) / 2) / len(values)
    print(name, *(f"{score} {area:.3f}" for score, area in areas.items()))
