"""A page to decide on suspected and suggested labels of texts: one file that needs no network.

Its input are the suspects of `finetune check --label-errors`, or the output of `finetune suggest`.
Decisions are lines of JSON with the ``text``, the ``given`` label (None: unlabeled) and the
``label``, which ``finetune.data.decisions`` applies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.data.decisions import text_and_pair
from finetune.reporting.html import inlined
from finetune.reporting.rendering import render
from finetune.types import UserError


def page(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return the page on rows of suspects or suggestions as HTML.

    Raises:
        UserError: The rows are neither, or are about words or several labels.
    """
    items = [_item(row, f"{title}:{number}") for number, row in enumerate(rows, 1)]
    names = sorted({name for item in items for name in item["labels"]})
    single = not any(name.startswith("not ") for name in names)
    for item in items:  # each of several labels is a decision between two
        item["labels"] = names if single else item["labels"]
    key = hashlib.sha256(json.dumps(items, default=str).encode()).hexdigest()[:16]
    return render(
        "review.html", **inlined("review.js", "review.css"), title=title,
        data={"items": items, "key": key},
    )  # fmt: skip


def _item(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the text of a row, its labels, facts to show, and what a decision repeats."""
    if "given" in row and "suggested" in row and row.get("kind", "label") == "label":
        given, suggested = row["given"], row["suggested"]
        line = "" if row.get("line") is None else f":{row['line']}"
        facts = (
            f"{row.get('file', '')}{line}: {given} has probability "
            f"{row.get('given_confidence', 0):.3f}, {suggested} {row.get('confidence', 0):.3f}"
        )
        source = {name: row.get(name) for name in ("file", "line", "text", "given")}
        return {"text": row["text"], "given": given, "suggested": suggested,
                "labels": [given, suggested], "facts": facts, "source": source}  # fmt: skip
    if isinstance(row.get("label"), str) and isinstance(row.get("text"), str):
        scores = row.get("scores") or {}
        text = text_and_pair(row["text"], row.get("text_pair"))
        known = sorted(scores.items(), key=lambda each: -each[1])[:3]
        facts = ", ".join(f"{name} {value:.3f}" for name, value in known)
        source = {"id": row.get("id"), "text": text, "given": None}
        return {"text": text, "given": None, "suggested": row["label"],
                "labels": [row["label"], *scores], "facts": facts, "source": source}  # fmt: skip
    raise UserError(
        f"{where}: neither a suspect nor a suggestion of one label for a text: review shows the "
        "output of `finetune check --label-errors --out` and `finetune suggest` for classify and "
        "nli."
    )
