"""Tags in whatever scheme a data set has -> BIO for the whole of it, and the spans they spell."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from finetune.align import (
    convert_tags,
    detect_scheme,
    illegal_transitions,
    spans_to_tags,
    tags_to_spans,
)
from finetune.data.dataset import DataError
from finetune.data.units import Unit
from finetune.nesting import overlapping


def in_bio(units: Mapping[str, list[Unit]]) -> tuple[dict[str, list[Unit]], list[str]]:
    """Tags of all splits in BIO with their spans, and notes on what was found and done.

    Spans get tags too, unless some spans of the data set overlap.
    """
    everything = [unit for rows in units.values() for unit in rows]
    layers = [layer for unit in everything for layer in unit.layers]
    prefixed = not _bare_types(layers)
    if not prefixed:
        units = {split: [_prefixed(unit) for unit in rows] for split, rows in units.items()}
        layers = [layer for rows in units.values() for unit in rows for layer in unit.layers]
    scheme = detect_scheme(layers)
    if layers and all(tag.isdecimal() for layer in layers for tag in layer):
        return dict(units), ["tags are numbers without names: put names in their place"]
    notes = _scheme_notes(scheme, prefixed) + _repair_notes(scheme, units)
    if scheme is None and any(len(unit.layers) > 1 for unit in everything):
        unit = next(unit for unit in everything if len(unit.layers) > 1)
        raise DataError(
            f"{unit.where}: several columns of tags, but they spell no spans (B-TYPE, I-TYPE, O): "
            "name the one column to read, for instance --columns tags=1."
        )
    if scheme is not None:
        units = {s: [_spelled(unit, scheme) for unit in rows] for s, rows in units.items()}
    nested = any(overlapping(unit.spans or ()) for rows in units.values() for unit in rows)
    if nested:
        notes.append("nested spans: examples have spans, no tags")
    return {split: [tagged(u, nested) for u in rows] for split, rows in units.items()}, notes


def tagged(unit: Unit, nested: bool) -> Unit:
    """The unit with BIO tags for its spans, unless it has tags, or ``nested`` forbids them."""
    if nested or unit.layers or unit.spans is None:
        return unit
    return unit._replace(layers=(tuple(spans_to_tags(unit.spans, len(unit.words), "BIO")),))


def _bare_types(layers: Iterable[Sequence[str]]) -> bool:
    """Whether tags are O and types without a prefix (Few-NERD): O on at least half of the words.

    The share tells them from part-of-speech sets that have an ``O`` of their own.
    """
    counts = Counter(itertools.chain.from_iterable(layers))
    bare = all("-" not in tag[:2] for tag in counts)
    return bare and len(counts) > 1 and counts["O"] * 2 >= counts.total()


def _prefixed(unit: Unit) -> Unit:
    layers = tuple(tuple(t if t == "O" else f"I-{t}" for t in layer) for layer in unit.layers)
    return unit._replace(layers=layers)


def _scheme_notes(scheme: str | None, prefixed: bool) -> list[str]:
    if not prefixed:
        return ["tags have no B- or I- before the type: read as spans of equal tags, now in BIO"]
    if scheme is None or scheme == "BIO":
        return []
    return [f"tag scheme {scheme} found, converted to BIO"]


def _repair_notes(scheme: str | None, units: Mapping[str, Sequence[Unit]]) -> list[str]:
    """How many tags the conversion to BIO repaired, and where the first of them is."""
    if scheme in (None, "BIO"):
        return []
    everything = (unit for rows in units.values() for unit in rows)
    broken = [(u.where, sum(len(illegal_transitions(layer, scheme)) for layer in u.layers))
              for u in everything]  # fmt: skip
    total = sum(count for _, count in broken)
    first = next((where for where, count in broken if count), "")
    what = "tags stood where they may not and were read as the start of a span"
    return [f"{total:,} {what}, first in {first}"] * bool(total)


def _spelled(unit: Unit, scheme: str) -> Unit:
    """The unit with the spans its tags spell; one layer of tags in BIO."""
    if not unit.layers:
        return unit
    found = {span for layer in unit.layers for span in tags_to_spans(layer, scheme)}
    spans = tuple(sorted(found)) if unit.spans is None else unit.spans
    if len(unit.layers) > 1:
        return unit._replace(layers=(), spans=spans)
    if scheme == "BIO":
        return unit._replace(spans=spans)
    return unit._replace(layers=(tuple(convert_tags(unit.layers[0], scheme, "BIO")),), spans=spans)
