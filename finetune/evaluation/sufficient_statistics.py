"""What each example counts towards a metric, by name: the sufficient statistics of its score.

F1 is a function of three counts, Matthews of the counts of each label, Pearson of five moments.
The values are those of `metrics`, `span_metrics` and `error_analysis` on a
resample itself, repeated examples counting as often as drawn; names that do not occur in it are
left out of means, as `finetune score` would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from finetune.data.spans import inner_spans
from finetune.evaluation import item_counts, number_counts
from finetune.evaluation.alignment import AlignedPredictions, with_probabilities
from finetune.evaluation.counts import Ranks, Sums
from finetune.evaluation.group_counts import calibration_error, group_counters, matched, nested_f1
from finetune.evaluation.item_counts import by_name, items_of, kind_of, share
from finetune.evaluation.span_matching import WAYS
from finetune.evaluation.subgroups import TrainingVocabulary
from finetune.types import UserError, perhaps, shortened

LOWER_IS_BETTER = frozenset({"mse", "hamming_loss", "ece"})
"""Metrics of which the smaller value is the better."""


def default_metric(run: AlignedPredictions) -> str:
    """The metric that selects models of this kind in training."""
    usual = {"label": "accuracy", "labels": "micro_f1", "number": "pearson", "plain": "accuracy"}
    return usual.get(kind_of(run), "span_f1_conll" if run.kind == "tags" else "span_f1_strict")


def count(
    metric: str, runs: Sequence[AlignedPredictions], train: TrainingVocabulary | None = None
) -> list[Sums] | list[Ranks]:
    """What each example of each run counts towards a metric.

    The runs answer the same examples in the same form. ``metric`` is a name that `finetune score`
    or `finetune analyze` prints; the precision, recall or F1 of one label, tag or type, such as
    ``f1:NAME`` and ``span_f1_strict:TYPE``; or the score of a group in a table of the analysis
    (``group_counters``), for some of which ``train`` must be known. Raises ValueError for one that
    does not fit the answers, naming those that do.
    """
    kind, names = kind_of(runs[0]), _seen(runs)
    if metric in _WHOLE[kind] and _fits(metric, runs, names):
        return [_WHOLE[kind][metric](run, names) for run in runs]
    base, _, name = metric.partition(":")
    if base in _SHARES[kind] and name in names:
        rate, reading = _SHARES[kind][base]
        return [share(run, names, rate, reading, name) for run in runs]
    groups = group_counters(runs, train)
    if metric in groups:
        counts = [groups[metric](run) for run in runs]
        if any(each.rows.any() for each in counts):  # the group occurs
            return counts
    raise UserError(_refusal(metric, runs, names, groups, train))


def _refusal(
    metric: str,
    runs: Sequence[AlignedPredictions],
    names: Sequence[Any],
    groups: Collection[str],
    train: TrainingVocabulary | None,
) -> str:
    kind, usual = kind_of(runs[0]), default_metric(runs[0])
    legal = [
        *(name for name in _WHOLE[kind] if _fits(name, runs, names)),
        *(f"{each}:{name}" for each in _SHARES[kind] for name in names),
        *groups,
    ]
    near = perhaps(metric, [usual] if usual.startswith(metric) else legal)
    asked = "in_training" in metric or "unseen" in metric
    if asked and train is None and runs[0].kind in ("tags", "spans"):
        near = " Training data are not known: name them with --train FILE."
    return f"--metric {metric} does not fit these predictions: choose {shortened(legal, 16)}.{near}"


def _seen(runs: Sequence[AlignedPredictions]) -> list[Any]:
    """All names in gold or answers of any run, sorted; of numbers all answers."""
    if runs[0].kind == "number":
        return number_counts.answers_of(runs)
    sides = [side for run in runs for side in items_of(run)[1:]]
    return sorted({name for side in sides for names in side for name in names})


def _fits(metric: str, runs: Sequence[AlignedPredictions], names: Sequence[Any]) -> bool:
    """Whether a metric of this kind of answers is told of these."""
    if metric == "f1":
        return len(names) == 2
    if metric in _NESTED:
        return any(inner_spans(spans) for spans in runs[0].gold)
    return metric != "ece" or all(with_probabilities(run) for run in runs)


_RATES = {"precision": item_counts.precision, "recall": item_counts.recall, "f1": item_counts.f1}
_READINGS = {"tags": ("conll", "strict"), "spans": ("strict",)}
_PLAIN = {name: (rate, "") for name, rate in _RATES.items()}
_SHARES: dict[str, dict[str, tuple[Any, str]]] = {
    "number": {}, "label": _PLAIN, "labels": _PLAIN, "plain": _PLAIN,
    **{
        kind: {f"span_{name}_{reading}": (rate, reading)
               for reading in readings for name, rate in _RATES.items()}
        for kind, readings in _READINGS.items()
    },
}  # fmt: skip
"""What may be followed by a name, by kind: the rate, and how tags are read."""

_MICRO = {"micro_f1": partial(share, rate=item_counts.f1)}
_ACCURACY = {"accuracy": partial(share, rate=item_counts.recall)}
_MACRO = partial(by_name, score=item_counts.macro_f1)
_MEANS = {"macro_f1": _MACRO, "weighted_f1": partial(by_name, score=item_counts.weighted_f1)}
_MATTHEWS = {"matthews": partial(by_name, score=item_counts.matthews)}
_ECE = {"ece": calibration_error}
_NESTED = {
    "span_f1_outermost": partial(nested_f1, inner=False),
    "span_f1_inner": partial(nested_f1, inner=True),
}
_MATCHED = {
    f"span_{name}_{way}": partial(matched, way=way, rate=rate)
    for way in WAYS if way != "strict"
    for name, rate in _RATES.items()
}  # fmt: skip
_SPANS = {
    kind: {
        name: partial(share, rate=rate, reading=reading)
        for name, (rate, reading) in _SHARES[kind].items()
    }
    for kind in _READINGS
}
_WHOLE: dict[str, dict[str, Callable[..., Any]]] = {
    "label": {**_ACCURACY, **_MICRO, **_MEANS, **_MATTHEWS, "f1": item_counts.positive_f1, **_ECE},
    "labels": {**_MICRO, **_MEANS, "subset_accuracy": item_counts.subset_accuracy,
               "hamming_loss": item_counts.hamming_loss, **_ECE},
    "number": {"pearson": number_counts.pearson, "spearman": number_counts.spearman,
               "mse": number_counts.squared_error},
    "plain": {**_ACCURACY, **_MEANS, **_MATTHEWS, **_ECE},
    "tags": {**_SPANS["tags"], "span_f1_macro": _MACRO, "tag_accuracy": item_counts.tag_accuracy,
             **_MATCHED, **_ECE},
    "spans": {**_SPANS["spans"], "span_f1_macro": _MACRO, **_NESTED, **_MATCHED, **_ECE},
}  # fmt: skip
"""How each metric is counted, by kind of answers."""
