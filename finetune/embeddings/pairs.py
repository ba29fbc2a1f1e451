"""Pairs of texts, of single words, or of words in context, with gold similarity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from finetune.data import texts
from finetune.data.dataset import DataError
from finetune.data.files import UTF_8, ReadOptions
from finetune.data.formats import open_text_table
from finetune.data.sources import canonical_split, open_splits, resolve
from finetune.data.tables import check_columns
from finetune.data.texts import guess_columns, target_columns, text_example
from finetune.types import TextExample, quantity

ROLES = (*texts.ROLES, *texts.TARGET_ROLES)


@dataclass(frozen=True)
class SimilarityData:
    """The pairs of one split; either all have gold, or none.

    A pair has two texts, the gold similarity as its label, and as ``targets`` the characters of the
    compared word in each text, None to compare the texts.
    """

    split: str
    pairs: Sequence[TextExample]
    notes: Sequence[str] = ()

    @property
    def gold(self) -> list[float] | None:
        """The gold similarities; None without gold."""
        gold = [pair.label for pair in self.pairs if isinstance(pair.label, float)]
        return gold if len(gold) == len(self.pairs) else None


def read_similarity(
    spec: str,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    encoding: str = UTF_8,
) -> SimilarityData:
    """Read one split of a data set of pairs.

    Args:
        spec: A file, a folder, ``test=FILE`` or a hub data set, as for training.
        split: The split; unset is the only one, else test.
        columns: Columns by role (``ROLES``) if they have no usual names.
        encoding: Text encoding of the files.

    Raises:
        DataError: If the data cannot be read; the message names file and line.
    """
    columns = check_columns(columns, ROLES)
    options = ReadOptions(columns, texts.HEADER_NAMES)
    source = resolve(spec)
    wanted = [split] if split else None
    opened = open_splits(source, wanted, lambda file: open_text_table(file, options), encoding)
    names = list(opened.splits)
    if len(names) > 1 and "test" not in names:
        raise DataError(f"--data {spec}: choose one split of {', '.join(names)} with --split.")
    chosen = names[0] if len(names) == 1 else "test"
    table = opened.splits[chosen]
    records = table.all()
    if not records:
        raise DataError(f"{table.name}: there is no pair in it.")
    of_texts = {role: name for role, name in columns.items() if role in texts.ROLES}
    read = guess_columns(table, of_texts, True)
    read = read._replace(targets=tuple(target_columns(table, columns).values()))
    rows = [text_example(index, record, read, table) for index, record in enumerate(records)]
    pairs, label_notes = _with_gold(rows)
    known = canonical_split(chosen) or chosen
    split_name = known if source.saved or source.hub or len(source.files) > 1 or "=" in spec else ""
    return SimilarityData(split_name, pairs, (*opened.notes, *table.notes, *label_notes))


def _with_gold(pairs: Sequence[TextExample]) -> tuple[list[TextExample], list[str]]:
    known = [pair for pair in pairs if pair.label is not None]
    numbers = [_number(pair.label) for pair in known]
    if all(number is None for number in numbers):
        notes = [
            f"labels are names such as {p.label!r}: cosines have no correlation" for p in known
        ]
        return list(pairs), notes[:1]
    for pair, number in zip(known, numbers, strict=True):
        if number is None:
            raise DataError(
                f"{pair.where}: the similarity {pair.label!r} is not a finite "
                "number: correct the row, or name the column: --columns label=NAME."
            )
    dropped = len(pairs) - len(known)
    notes = [f"{quantity(dropped, 'pair')} without gold left out"] if dropped else []
    return [replace(p, label=number) for p, number in zip(known, numbers, strict=True)], notes


def _number(label: Any) -> float | None:
    try:
        number = float(label)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
