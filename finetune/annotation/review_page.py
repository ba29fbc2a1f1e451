"""A page to decide on suspected and suggested labels, tags and spans: one file without network.

Its input are the suspects of `finetune check --label-errors`, the output of `finetune suggest` or
`predict`, or the predictions of a run; of a run, the page shows predictions that differ from gold.
Decisions are lines of JSON, which ``finetune.annotation.decisions`` describes and applies.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.annotation.annotations import text_and_pair
from finetune.cli.output import show
from finetune.config.tasks import column_map
from finetune.config.values import conforms
from finetune.data.files import read_lines
from finetune.data.json_files import parse_json
from finetune.data.spans import chars_to_words, overlapping, words_to_chars
from finetune.data.tables import check_columns
from finetune.data.word_splitting import UNSPACED
from finetune.evaluation.kinds import KINDS
from finetune.reporting.rendering import inlined, render
from finetune.runtime.files import replace_file
from finetune.types import Span, UserError, abbreviated, did_you_mean, quantity

if TYPE_CHECKING:
    from finetune.annotation.commands import Review

Row = Mapping[str, Any]


PACKAGE = "finetune.annotation"
"""The package whose templates make the page."""


def page(rows: Sequence[Row], title: str, labels: Iterable[str] = ()) -> tuple[str, int]:
    """Return the page on rows of suspects, suggestions or predictions, and the number of its items.

    It offers ``labels`` besides the labels of the rows.

    Raises:
        UserError: The rows are none of these, or nothing differs from gold.
    """
    items: list[dict[str, Any]] = []
    sentences: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(rows, 1):
        row = _with_withheld(row)
        if row.get("label", "") is None and "given" not in row:  # a blank text
            continue
        _check_row(row, f"{title}:{number}")
        place = row.get("file"), row.get("line"), row.get("text")
        if row.get("worst") is False and place in sentences:  # another suspect of a sentence
            sentences[place]["facts"].append(_suspicion(row))
            continue
        item = _item(row, f"{title}:{number}")
        if items and item["kind"] != items[0]["kind"]:
            raise UserError(f"{title}:{number}: {item['kind']} after {items[0]['kind']}.")
        if "worst" in row:
            sentences[place] = item
        if "gold" not in row or "worst" in row or item["given"] != _bare(item):
            items.append(item)
    if not items:
        raise UserError(f"{title}: every prediction is as labeled: there is nothing to decide on.")
    names = {*labels, *(name for item in items for name in item.pop("labels"))}
    data: dict[str, Any] = {"items": items, "labels": sorted(names), "kind": items[0]["kind"]}
    if data["kind"] == "spans":
        sides = (side for item in items for side in (item["given"] or (), _bare(item)))
        data["overlap"] = any(overlapping([Span(*span) for span in side]) for side in sides)
    dumped = json.dumps(data, default=str)
    data["key"] = hashlib.sha256(dumped.encode()).hexdigest()[:16]
    inside = inlined("review.js", "review.css", package=PACKAGE)
    html = render("review.html", PACKAGE, **inside, title=title, data=data)
    return html, len(items)


TEXTS = {"text": "text", "pair": "text_pair"}
"""The columns of texts by role."""
_Number = float | None
_TYPES: Mapping[str, Any] = {
    "text": str | None,
    "text_pair": str | None,
    "file": str | None,
    "where": str | None,
    "line": int | None,
    "worst": bool,
    "kind": str,
    "confidence": float,
    "given_confidence": float,
    "uncertainty": _Number,
    "words": list[str],
    "tags": list[str],
    "offsets": list[list[int]] | None,
    "scores": dict[str, float] | list[float] | None,
}
"""The types of the fields that the page shows."""


def _with_withheld(row: Row) -> Row:
    left_out = row.get("withheld")
    if isinstance(left_out, str) and "label" in row:
        return {**row, "label": left_out}
    if not isinstance(left_out, list):
        return row
    for name in ("label", "spans"):
        if isinstance(row.get(name), list):
            return {**row, name: [*row[name], *left_out]}
    if isinstance(row.get("tags"), list) and conforms(left_out, list[dict[str, Any]]):
        names = iter(each.get("label") for each in left_out)
        return {**row, "tags": [next(names, tag) if tag is None else tag for tag in row["tags"]]}
    return row


def _check_row(row: Row, where: str) -> None:
    for name, value, legal in _checks(row):
        if not legal:
            raise UserError(
                f"{where}: `{name}` cannot be {value!r:.60} here: write the file again, with "
                "`finetune check --label-errors --out`, `finetune suggest` or `finetune predict "
                "--keep-columns`."
            )


def _checks(row: Row) -> Iterator[tuple[str, Any, bool]]:
    for name, kind in _TYPES.items():
        if name in row:
            yield name, row[name], conforms(row[name], kind)
    for name in ("given", "suggested", "text") if {"worst", "suggested"} & row.keys() else ():
        yield name, row.get(name), isinstance(row.get(name), str)
    gold, scores, label = (row.get(name) for name in ("gold", "scores", "label"))
    if "words" not in row or not (isinstance(row.get("spans"), list) or "tags" in row):
        kind = str | list[str] | float | None
        if isinstance(label, str | list):  # the gold of a text is as its predicted label
            kind = str | None if isinstance(label, str) else list[str] | None
        yield "gold", gold, conforms(gold, kind)
        yield "scores", scores, "words" in row or not isinstance(scores, list)
        return
    yield "gold", gold, gold is None or isinstance(gold, dict)
    words, text, offsets = row["words"], row.get("text"), row.get("offsets")
    for side in (row, gold or {}):
        if "tags" in side:
            tags = side["tags"]
            yield "tags", tags, conforms(tags, list[str]) and len(tags) == len(words)
        if (spans := side.get("spans")) is not None:
            yield "spans", spans, isinstance(spans, list)
            yield from (("spans", span, _is_span(span, len(words))) for span in spans)
    unreachable = (gold or {}).get("unreachable", [])
    yield "unreachable", unreachable, isinstance(unreachable, list)
    for span in unreachable:
        listed = isinstance(span, list) and len(span) == 3 and text is not None
        named = dict(zip(Span._fields, span, strict=False)) if listed else None
        yield "unreachable", span, _is_span(named, len(text or ""))
    if offsets is not None and text is not None:
        edges = [0, *(position for each in offsets for position in each), len(text)]
        ordered = all(one <= other for one, other in pairwise(edges))
        paired = len(offsets) == len(words) and all(len(each) == 2 for each in offsets)
        yield "offsets", offsets, ordered and paired


def _is_span(span: Any, size: int) -> bool:
    if not isinstance(span, dict) or not isinstance(span.get("label"), str):
        return False
    start, end = span.get("start"), span.get("end")
    if not (type(start) is int and type(end) is int and 0 <= start < end <= size):
        return False
    return conforms(span.get("score"), _Number)


def _bare(item: Row) -> Any:
    suggested = item["suggested"]
    return [span[:3] for span in suggested] if item["kind"] == "spans" else suggested


def _item(row: Row, where: str) -> dict[str, Any]:
    annotated = isinstance(row.get("spans", row.get("tags")), list) and "relations" not in row
    if annotated and isinstance(row.get("words"), list):
        return _sentence(row, where)
    if "given" in row and "suggested" in row and row.get("kind", "label") == "label":
        given, suggested = row["given"], row["suggested"]
        binary = f"not {given}" == suggested or f"not {suggested}" == given  # one of several labels
        return {
            "kind": "label",
            **{name: row[name] for name in ("text", "given", "suggested")},
            "labels": () if binary else (given, suggested),
            "facts": [_suspicion(row)],
            "source": {name: row.get(name) for name in ("id", "file", "line", "text")},
        }
    label = row.get("label")
    names = label if isinstance(label, list) else [label]
    if isinstance(row.get("text"), str) and all(isinstance(name, str) for name in names):
        scores, given = row.get("scores") or {}, row.get("gold")
        text = text_and_pair(row["text"], row.get("text_pair"))
        known = sorted(scores.items(), key=lambda each: -each[1])[:3]
        of_gold = given if isinstance(given, list) else [given] if given else []
        if isinstance(label, list):
            label, given = sorted(names), None if given is None else sorted(given)
        return {
            "kind": "labels" if isinstance(label, list) else "label",
            "text": text,
            "given": given,
            "suggested": label,
            "labels": (*names, *of_gold, *scores),
            "facts": [", ".join(f"{name} {value:.3f}" for name, value in known)],
            "source": _location(row) | {"text": text},
        }
    if label is not None and "text" not in row and all(isinstance(name, str) for name in names):
        raise UserError(
            f"{where}: no column is known to hold the text (columns found: "
            f"{abbreviated(list(row))}): name it: --columns text=NAME."
        )
    raise UserError(
        f"{where}: nothing to review: the page shows labels of texts, tags and spans: suspects of "
        "`finetune check --label-errors --out`, the output of `finetune suggest` or `predict "
        "--keep-columns`, or the predictions of a run. Labels that are numbers, relations, senses "
        "and vectors are not shown."
    )


def _location(row: Row) -> dict[str, Any]:
    found = {"id": row.get("id")} | {name: row[name] for name in ("file", "line") if name in row}
    file, _, line = str(row.get("where") or "").rpartition(":")
    return found | ({"file": file, "line": int(line)} if file and line.isdecimal() else {})


def _suspicion(row: Row) -> str:
    line = "" if row.get("line") is None else f":{row['line']}"
    kind = row.get("kind", "label")
    return (
        f"{row.get('file', '')}{line}: {'' if kind in ('label', 'word') else f'{kind}: '}"
        f"{row['given']} has probability {row.get('given_confidence', 0):.3f}, "
        f"{row['suggested']} {row.get('confidence', 0):.3f}"
    )


def _sentence(row: Row, where: str) -> dict[str, Any]:
    words, offsets, text = row["words"], row.get("offsets"), row.get("text")
    read_as = KINDS["spans" if "spans" in row else "tags"]
    gold = read_as.gold_of_row(0, where, {"gold": None, **row})
    predicted = read_as.parse(row, where, gold)
    facts = [_suspicion(row)] if "suggested" in row else []
    if "uncertainty" in row:
        facts = [f"uncertainty {row['uncertainty']:.3f}"]
    source = _location(row)
    item: dict[str, Any] = {"facts": facts, "source": source}
    if "spans" not in row:
        shown = {
            "kind": "tags",
            "given": gold.tags,
            "suggested": predicted.tags,
            "labels": (*(gold.tags or ()), *predicted.tags),
        }
    else:
        scores = [None if math.isnan(score) else score for score in predicted.scores]
        found, given = list(zip(predicted.spans, scores, strict=True)), gold.spans
        if offsets is not None and gold.unreachable:
            offsets, found, given = _split(offsets, found, given or (), gold.unreachable)
        both = [*(given or ()), *(span for span, _ in found)]
        shown = {
            "kind": "spans",
            "given": given and [[*span] for span in sorted(given)],
            "suggested": sorted([*span, score] for span, score in found),
            "labels": [span.label for span in both],
        }
    if offsets is None:
        unspaced = sum(bool(UNSPACED.match(word)) for word in words)
        blank = "" if 2 * unspaced > len(words) else " "  # as the script of the words
        gaps = ["", *[blank] * (len(words) - 1), ""]
        return item | shown | {"words": words, "gaps": gaps}
    if not isinstance(text, str):
        raise UserError(
            f"{where}: offsets without a text: write the predictions with --keep-columns."
        )
    edges = [0, *(position for each in offsets for position in each), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    return item | shown | {"words": pieces[1::2], "gaps": pieces[::2], "offsets": offsets}


def _split(
    offsets: Iterable[Sequence[int]],
    found: Sequence[tuple[Span, Any]],
    given: Sequence[Span],
    unreachable: Sequence[Span],
) -> tuple[list[list[int]], list[tuple[Span, Any]], list[Span]]:
    places = [(start, end) for start, end in offsets]
    edges = sorted({position for span in unreachable for position in span[:2]})
    parts = [
        part
        for start, end in places
        for part in pairwise([start, *(edge for edge in edges if start < edge < end), end])
    ]
    gold = [*words_to_chars(places, given), *unreachable]
    spans = chars_to_words(parts, words_to_chars(places, [span for span, _ in found]))[0]
    scores = [score for _, score in found]
    return (
        [[*part] for part in parts],
        list(zip(spans, scores, strict=True)),
        chars_to_words(parts, gold)[0],
    )


def write_page(command: Review) -> None:
    """Read the rows of a file and write the page."""
    path = Path(command.file)
    rows = [parse_json(line, f"{path}:{number}") for number, line in read_lines(str(path), path)]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: no lines of suspects or suggestions.")
    columns = check_columns(column_map(command.columns), tuple(TEXTS))
    for number, row in enumerate(rows, 1):
        for role, name in columns.items():
            if name not in row:
                found, hint = abbreviated(list(row)), did_you_mean(name, list(row))
                raise UserError(
                    f"{path}:{number}: no column {name!r}; columns found: {found}.{hint}"
                )
            row[TEXTS[role]] = row[name]
    html, number = page(rows, path.name, command.labels)
    with replace_file(Path(command.out), follow=True) as file:
        file.write(html)
    show(f"wrote {quantity(number, 'text')} to decide on: {command.out}", error=True)
