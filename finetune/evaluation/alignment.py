"""Align the rows of predictions with gold, and refuse files that do not belong together."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from finetune.data import DataError
from finetune.data.examples import normalized_texts
from finetune.types import Example, SenseTarget, TokenExample, quantity

if TYPE_CHECKING:
    from finetune.evaluation.predictions import Gold, PredictionFile


def ids_of(rows: Sequence[tuple[Any, str]]) -> list[str] | None:
    """Return the ids of rows, given with their ``file:line``, as text; None without ids."""
    missing = [where for id, where in rows if id is None]
    if len(missing) == len(rows):
        return None
    if missing:
        where = next(where for id, where in rows if id is not None)
        raise DataError(f"{missing[0]}: no id, but {where} has one: give each row an id, or none.")
    return [str(id) for id, _ in rows]


def pair_rows(
    file: PredictionFile, gold: Gold, gold_of: Callable[[Any], Any]
) -> tuple[list[tuple[tuple[str, dict[str, Any]], Any]], str]:
    """Return the rows of predictions with their ``file:line``, each with its gold example.

    Rows are aligned by id if both sides have ids, or the ids of predictions are the row numbers of
    a gold file without ids; else by position. Systems may leave out examples without words or gold.
    """
    words = [not isinstance(each, TokenExample) or bool(each.words) for each in gold.examples]
    golds = [gold_of(each) is not None for each in gold.examples]
    needed = list(map(operator.and_, words, golds))
    keys = ids_of([(example.key, example.where) for example in gold.examples])
    own = file.ids
    if keys is not None and own is not None:
        order = align_ids(
            file, own, keys, [each.where for each in gold.examples], gold.name, needed
        )
        pairs = zip(order, gold.examples, strict=True)
        return [(file.rows[i], each) for i, each in pairs if i is not None], "id"
    filters = ([True] * len(golds), words, needed, golds)
    kept = next((some for some in filters if sum(some) == len(file.rows)), None)
    if kept is None:
        raise DataError(
            f"{gold.name}: {quantity(len(gold.examples), 'example')}, but "
            f"{quantity(len(file.rows), 'prediction')} in {file}: "
            f"{_mismatch(gold.examples, len(file.rows))}."
        )
    examples = list(compress(gold.examples, kept))
    numbers = [str(number) for number in range(len(examples))]
    if own is None or {*own} != {*numbers}:
        return list(zip(file.rows, examples, strict=True)), "position"
    order = align_ids(file, own, numbers, [each.where for each in examples], gold.name)
    return [(file.rows[i or 0], each) for i, each in zip(order, examples, strict=True)], "id"


def _mismatch(gold: Sequence[Example | SenseTarget], number: int) -> str:
    """Return why gold has another number of examples than the predictions."""
    examples = [each for each in gold if not isinstance(each, SenseTarget)]
    repeated = len(examples) - len({normalized_texts(example) for example in examples})
    if repeated and number == len(gold) - repeated:
        texts = quantity(repeated, "row has the text of another", "rows have the text of another")
        return f"in gold, {texts}: if by several annotators, keep one annotation of each text"
    return "the files do not belong together, or one was cut"


def align_ids(
    file: PredictionFile,
    own: Sequence[str],
    ids: Sequence[str],
    places: Sequence[str],
    name: str,
    needed: Sequence[object] = (),
) -> list[int | None]:
    """Return the index of the row of each id; None for missing rows that are not needed.

    ``own`` are the ids of the rows; ``places`` are the ``file:line`` of ``ids`` in the file
    ``name``.

    Raises:
        DataError: An id is unknown, missing or occurs twice; not if both sides repeat the same.
    """
    if own == ids:
        return list(range(len(own)))
    rows, known = dict[str, int](), dict[str, str]()
    for index, (id, (where, _)) in enumerate(zip(own, file.rows, strict=True)):
        if id in rows:
            first = file.rows[rows[id]][0]
            raise DataError(
                f"{where}: id {id!r:.40} is also in {first}: write one prediction for each id."
            )
        rows[id] = index
    for id, place in zip(ids, places, strict=True):
        if id in known:
            raise DataError(f"{place}: id {id!r:.40} is also in {known[id]}: ids must differ.")
        known[id] = place
    for id, index in rows.items():
        if id not in known:
            raise DataError(
                f"{file.rows[index][0]}: id {id!r:.40} is not in {name}: the files do not belong "
                "together; or remove the ids of one of them, to align by position."
            )
    missing = [
        id
        for id, need in zip(ids, needed or [True] * len(ids), strict=True)
        if need and id not in rows
    ]
    if missing:
        raise DataError(
            f"{known[missing[0]]}: id {missing[0]!r:.40} has no prediction in {file} (it lacks "
            f"{len(missing):,} of {quantity(len(ids), 'id')}): it was cut, or is of other data."
        )
    return [rows.get(id) for id in ids]
