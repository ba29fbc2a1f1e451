"""Tags in whatever scheme a data set has -> BIO for the whole of it, and the spans they spell."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from finetune.data.dataset import DataError
from finetune.data.files import TAG
from finetune.data.spans import overlapping
from finetune.data.tag_schemes import (
    SCHEMES,
    convert_tags,
    detect_scheme,
    illegal_transitions,
    spans_to_tags,
    tags_to_spans,
)
from finetune.data.units import Unit

FITTING = ("BIO", "BIOES", "BILOU", "BMES")
"""The schemes that an error names: IO and IOB1 have the prefixes of BIO."""


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
    if scheme is None:
        _refuse_strays(everything)
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


def _refuse_strays(units: Sequence[Unit]) -> None:
    """DataError where most tags spell spans but a few do not: a header, a misprint, a comment.

    Left alone, one such tag would make plain tags of all, without spans and their scores.
    """
    counts = Counter(tag for unit in units for layer in unit.layers for tag in layer)
    spelled = Counter({tag: count for tag, count in counts.items() if TAG.fullmatch(tag)})
    strays = counts - spelled
    inside = spelled.total() - spelled["O"]
    if counts and not strays:
        found = ", ".join(sorted({f"{tag[0]}-" for tag in counts if tag != "O"}))
        raise DataError(
            f"{units[0].where}: the prefixes of the tags ({found}) fit no one scheme: legal are "
            f"{'; '.join(', '.join(f'{p}-' for p in SCHEMES[name]) for name in FITTING)}."
        )
    if not strays or strays.total() * 2 > inside:
        return
    unit, word, tag = next(
        (unit, word, tag)
        for unit in units
        for layer in unit.layers
        for word, tag in zip(unit.words, layer, strict=True)
        if tag in strays
    )
    others = ", ".join(repr(stray) for stray, _ in strays.most_common(6) if stray != tag)
    raise DataError(
        f"{unit.where}: the word {word!r:.60} has the tag {tag!r:.60}, but {inside:,} tags are of "
        f"spans (B-TYPE, I-TYPE, …) and the rest O: correct it, or take the line out if it is a "
        f"header or a comment{f' (also: {others})' if others else ''}."
    )


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
