"""The prediction type ``subwords``: masked subwords, which a file holds with their gold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from finetune.data import DataError
from finetune.evaluation.metrics import Items, Metric, item_counts, mean
from finetune.evaluation.prediction_types.labels import text_of_row
from finetune.evaluation.tables import PredictionType, Tables, Wording, read_names, wrong_value
from finetune.types import MaskedPrediction, TextExample


def _with_items(tables: Tables) -> Tables:
    gold: Sequence[Any] = [prediction.gold or () for prediction in tables.predictions]
    gold = gold or tables.gold
    example = np.repeat(np.arange(len(gold)), np.fromiter(map(len, gold), np.int64))
    sides = chain.from_iterable(gold), chain.from_iterable(tables.predicted)
    return replace(tables, items=Items.of(example, *sides))


def _losses(tables: Tables, name: str = "losses") -> np.ndarray:
    # The sum and number of each sequence [N, 2].
    losses = [getattr(prediction, name) or () for prediction in tables.predictions]
    return np.array([(math.fsum(loss), len(loss)) for loss in losses], dtype=float)


def _next_sentence_counts(tables: Tables) -> np.ndarray:
    pairs = [(p.follows, p.follows_score) for p in tables.predictions]
    rows = [(s is not None and f == (s >= 0.5), s is not None) for f, s in pairs]
    return np.array(rows, dtype=np.int64)


def _read_gold(file: str, **reading: Any) -> Sequence[Any]:
    raise DataError(
        "predictions of masked subwords hold their gold, which depends on the masks: use "
        "`finetune report --format table` or `compare` without a file of gold."
    )


def _parse(row: Mapping[str, Any], where: str, example: TextExample) -> MaskedPrediction:
    gold: Any = example.label or ()
    subwords = tuple(row["subwords"])
    if gold and len(gold) != len(subwords):
        raise wrong_value(where, "gold", "a list with one name for each of `subwords`", [*gold])
    further = {name: row[name] for name in ("follows", "follows_score") if name in row}
    if row.get("boundary_losses") is not None:
        further["boundary_losses"] = tuple(row["boundary_losses"])
    losses = tuple(row.get("losses", ()))
    return MaskedPrediction(example.id, subwords, gold=gold, losses=losses, **further)


SUBWORDS = PredictionType(
    name="subwords",
    wording=Wording("subwords", "sequence"),
    metrics={
        "mlm_accuracy": Metric(lambda tables: item_counts(tables)[:, ::2], mean),
        "mlm_loss": Metric(_losses, mean),
        "perplexity": Metric(_losses, lambda sums: np.exp(mean(sums))),
        "sbo_loss": Metric(
            lambda tables: _losses(tables, "boundary_losses"),
            mean,
            lambda tables: any(p.boundary_losses for p in tables.predictions),
        ),
        "nsp_accuracy": Metric(
            _next_sentence_counts,
            mean,
            lambda tables: any(p.follows_score is not None for p in tables.predictions),
        ),
    },
    default="mlm_accuracy",
    gold=attrgetter("label"),
    parse=_parse,
    tables=_with_items,
    read_gold=_read_gold,
    gold_of_row=lambda index, where, row: replace(
        text_of_row(index, where, row), label=read_names(row, "gold", where)
    ),
    sides=None,
)
"""The subwords at masked positions, and the losses there."""
