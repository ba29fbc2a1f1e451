"""The page: one file with everything in it, which asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from finetune.reporting import sections, summary
from finetune.reporting.comparison import comparison
from finetune.reporting.errors import MOST_EXAMPLES, error_browser
from finetune.reporting.html import EMPTY, Html, element, escaped, joined, own_text
from finetune.reporting.runs import System


def page(
    systems: Sequence[System], defaults: Mapping[str, Any], most_examples: int = MOST_EXAMPLES
) -> str:
    """The report on one system or several, as HTML; ``defaults`` are settings by task."""
    made = [
        (anchor, title, content)
        for anchor, title, content in _sections(systems, defaults, most_examples)
        if content
    ]
    body = joined(
        element("section", element("h2", title, id=f"{anchor}-title"), content, id=anchor,
                aria_labelledby=f"{anchor}-title") for anchor, title, content in made
    )  # fmt: skip
    links = element("ul", *(element("li", element("a", title, href=f"#{anchor}"))
                            for anchor, title, _ in made))  # fmt: skip
    script = _template("script.js")
    digest = hashlib.sha256(script.encode()).digest()
    heading = joined((own_text(system.name) for system in systems), ", ")
    names = ", ".join(system.name for system in systems)
    return _filled(
        _template("page.html"),
        title=escaped(f"{names} · finetune report"),
        style=_template("style.css"),
        script=script,
        script_hash=base64.b64encode(digest).decode(),
        eyebrow=escaped(_eyebrow(systems)),
        heading=heading,
        about=_about(systems),
        navigation=links,
        sections=body,
        footer=_footer(systems),
    )


def _sections(
    systems: Sequence[System], defaults: Mapping[str, Any], most_examples: int
) -> list[tuple[str, str, Html]]:
    runs = [(summary.name_of(s, run, systems), run) for s in systems for run in s.runs]
    several = len(systems) > 1
    return [
        ("score", "Score", _scores(systems)),
        ("comparison", "Differences", comparison(systems) if several else EMPTY),
        ("scores", "All scores", summary.all_scores(systems)),
        ("training", "Training", sections.curves(runs)),
        ("classes", "Classes", sections.classes(runs)),
        ("confusion", "Confusions", sections.confusions(runs)),
        ("calibration", "Calibration", sections.calibration(runs)),
        ("parts", "Lengths and parts", sections.parts(runs)),
        ("made", "Made with", summary.made_with(systems, defaults)),
        ("mistakes", "Mistakes", _errors(runs, most_examples)),
    ]


def _scores(systems: Sequence[System]) -> Html:
    several = len(systems) > 1
    boxes = [
        element("div", element("h3", own_text(system.name)) if several else EMPTY,
                summary.headline(system), summary.missing(system), class_="box")
        for system in systems
    ]  # fmt: skip
    return joined([element("div", *boxes, class_="systems"), summary.intervals(systems)])


def _errors(runs: Sequence[Any], most: int) -> Html:
    browser = error_browser(runs, most)
    if "<mark" not in browser:
        return browser
    key = element(
        "p", "Marks: ", element("mark", "right", class_="right"), " ",
        element("mark", "in gold, missed", class_="missed"), " ",
        element("mark", "answered, wrong", class_="wrong"), class_="legend-marks",
    )  # fmt: skip
    return joined([key, browser])


def _eyebrow(systems: Sequence[System]) -> str:
    tasks = dict.fromkeys(run.task for system in systems for run in system.runs)
    kind = "comparison" if len(systems) > 1 else "seeds" if len(systems[0].runs) > 1 else "run"
    return f"{', '.join(tasks)} · {kind}"


def _about(systems: Sequence[System]) -> Html:
    """Model and data; those of each where they differ."""
    facts = dict.fromkeys(
        (str(config.get("init_from") or config.get("model", "?")), str(config.get("data", "?")))
        for system in systems for config in [system.runs[0].config]
    )  # fmt: skip
    return joined(
        (joined([own_text(model), " on ", own_text(data)]) for model, data in facts), "; "
    )


def _footer(systems: Sequence[System]) -> Html:
    prints = dict.fromkeys(str(run.config["fingerprint"]) for system in systems
                           for run in system.runs if run.config.get("fingerprint"))  # fmt: skip
    listed = ", ".join(print_[:16] for print_ in prints)
    return joined(["Made by finetune report.", f" Fingerprint of the data: {listed}." if listed
                   else ""])  # fmt: skip


def _template(name: str) -> str:
    return (resources.files("finetune.reporting") / "templates" / name).read_text(encoding="utf-8")


def _filled(template: str, **values: str) -> str:
    """The template with its ``{{names}}`` replaced, all at once: nothing is looked at twice."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)
