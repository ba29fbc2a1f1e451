"""What people should know about how words were read: rows left out, spans widened, no gold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from finetune.data.dataset import DataError
from finetune.data.units import Unit


def checked_rows(
    split: str, name: str, found: Sequence[Unit], standoff: bool
) -> tuple[list[Unit], list[str]]:
    """The rows to keep, and notes on the others; DataError where nothing is left to learn from."""
    kept = [unit for unit in found if unit.words and not unit.left_out]
    answers = Counter(unit.left_out for unit in found if unit.left_out)
    if not kept:
        why = "every row was rejected or ignored" if answers else "add sentences or leave it out"
        raise DataError(f"{name}: the {split} split is empty: {why}.")
    bare = [unit for unit in kept if not unit.has_gold]
    if split == "train" and len(bare) == len(kept):
        raise _no_gold(name, standoff)
    notes = []
    if answers:
        counted = ", ".join(f"{answer} {count:,}" for answer, count in answers.most_common())
        notes.append(f"{split}: {answers.total():,} rows left out (answer: {counted})")
    if empty := len(found) - len(kept) - answers.total():
        notes.append(f"{split}: {empty:,} rows without words skipped")
    if files := [unit for unit in bare if unit.unannotated]:
        notes.append(
            f"{split}: {len(files):,} of {len(kept):,} documents have no .ann file and so no gold, "
            f"first {files[0].where}"
        )
    if len(bare) > len(files):
        notes.append(f"{split}: {len(bare) - len(files):,} of {len(kept):,} rows have no tags")
    return kept, notes


def _no_gold(name: str, standoff: bool) -> DataError:
    if standoff:
        return DataError(
            f"{name}: no text is annotated: training needs a NAME.ann beside each NAME.txt (an "
            "empty one where nothing is to be found)."
        )
    return DataError(
        f"{name}: there are words but no tags: training needs a tag for each word "
        "(word<TAB>tag in columns, or a list of tags in JSON Lines)."
    )


def span_notes(units: Mapping[str, Sequence[Unit]]) -> list[str]:
    """How many spans were widened or enveloped, and how many standoff lines were not read."""
    rows = [unit for each in units.values() for unit in each]
    notes = []
    if widened := sum(unit.num_widened for unit in rows):
        notes.append(f"{widened:,} spans began or ended inside a word: widened to whole words")
    if places := [place for unit in rows for place in unit.enveloped]:
        notes.append(
            f"{len(places):,} discontinuous spans: read from the first start to the last end, with "
            f"what is between; first in {places[0]}"
        )
    if unread := sum(unit.num_unread for unit in rows):
        notes.append(
            f"{unread:,} lines of .ann files annotate no text (relations, events, attributes, "
            "notes) and are not used"
        )
    return notes
