"""The top of the page: the score with its interval, what it is held against, all other scores."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.evaluation.significance import LEVEL
from finetune.reporting.charts import interval_chart
from finetune.reporting.html import EMPTY, Html, details, element, figure, joined, own_text
from finetune.reporting.runs import Run, System
from finetune.reporting.tables import shown, table


def headline(system: System) -> Html:
    """The score that counts in large, with interval, runs, baseline and verdicts."""
    found = system.headline
    if found is None:
        return joined([element("p", "No score: nothing was evaluated.", class_="score"),
                       *verdicts(system)])  # fmt: skip
    value, low, high = found.estimate
    unit = _units(system)
    lines = [
        element("p", element("b", f"{value:.4f}"), element("span", found.metric), class_="score"),
        element(
            "p", f"{1 - LEVEL:.0%} interval {low:.4f} to {high:.4f}, by the bootstrap over "
            f"{found.num_units:,} {unit} of the split {found.split} ({found.num_resamples:,} "
            "resamples).",
        ),
    ]  # fmt: skip
    if len(found.runs) > 1:
        spread = statistics.stdev(found.runs)
        lines.append(
            element("p", f"Mean of {len(found.runs)} seeds, standard deviation {spread:.4f}; the "
                    "interval counts the luck of training in.")
        )  # fmt: skip
    lines += [element("p", line, class_="note") for line in _baselines(system, found.split)]
    return joined([*lines, *verdicts(system)])


def _units(system: System) -> str:
    form = next(run.evaluated.answers.kind for run in system.runs if run.evaluated)
    return "sentences" if form in ("tags", "spans") else "texts"


def _baselines(system: System, split: str) -> Iterator[str]:
    known = system.seeds.get("baselines") or system.runs[0].environment.get("baselines") or {}
    if isinstance(base := known.get(split), Mapping):
        yield (f"Always answering {base.get('label')!r} would reach {base.get('metric')} "
               f"{shown(base.get('share'))}.")  # fmt: skip


def verdicts(system: System) -> list[Html]:
    """What a recipe claims against what was measured."""
    known = system.seeds.get("verdicts")
    recipe = system.runs[0].environment.get("recipe") if system.runs else None
    if known is None and isinstance(recipe, Mapping):
        known = recipe.get("verdicts")
    made = []
    for claim in known or ():
        value = claim.get("mean", claim.get("value"))
        said = str(claim.get("verdict"))
        claimed = f"{claim.get('expected'):g} ± {claim.get('tolerance'):g}"
        if (statistic := claim.get("statistic", "mean")) != "mean":
            claimed = f"{statistic} {claimed}"
        source = f" ({claim['source']})" if claim.get("source") else ""
        made.append(
            element(
                "p", element("b", said), f" Published: {claim.get('split')} {claim.get('metric')} "
                f"{claimed}{source}; measured: {shown(value) or 'nothing'}.",
                class_="verdict " + ("good" if said.startswith(("reproduced", "above")) else "bad"),
            )
        )  # fmt: skip
    return made


def missing(system: System) -> Html:
    """What the folder lacks, in a box; nothing where it lacks nothing."""
    several = len(system.runs) > 1
    lines = [*system.missing]
    for run in system.runs:
        lines += [f"{run.folder.name}: {line}" if several else line for line in run.missing]
        if not system.seeds and (failed := run.environment.get("degenerate")):
            lines.append(f"{run.folder.name} is degenerate: {'; '.join(failed)}")
    for each in system.seeds.get("degenerate", ()):
        lines.append(f"seed {each.get('seed')} is degenerate: {'; '.join(each.get('reasons', ()))}")
    if not lines:
        return EMPTY
    listed = element("ul", *(element("li", line) for line in lines))
    return element("aside", element("h3", "What this report lacks, or warns of"), listed,
                   class_="missing")  # fmt: skip


def all_scores(systems: Sequence[System]) -> Html:
    """Every overall score of every split; a column for each run, and the mean where one system has
    several."""
    runs = [(name_of(system, run, systems), run) for system in systems for run in system.runs]
    splits = dict.fromkeys(split for _, run in runs for split in run.metrics)
    tables = []
    for split in splits:
        names = dict.fromkeys(name for _, run in runs for name in run.metrics.get(split, {})
                              if ":" not in name)  # fmt: skip
        rows = [[name, *(run.metrics.get(split, {}).get(name) for _, run in runs)]
                for name in names]  # fmt: skip
        columns = ["score", *(own_text(name) for name, _ in runs)]
        if len(runs) == 1:
            columns = ["score", "value"]
        elif len(systems) == 1:
            columns += ["mean", "deviation"]
            rows = [row + _spread(row[1:]) for row in rows]
        tables.append(table(f"Scores on {split}", columns, rows))
    return element("div", *tables, class_="tables")


def _spread(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    if not known:
        return [None, None]
    return [statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None]


def intervals(systems: Sequence[System]) -> Html:
    """Scores with intervals, drawn side by side; the runs of a system as points."""
    found = [(system.name, system.headline) for system in systems if system.headline]
    if len(found) < 2 and not any(len(each.runs) > 1 for _, each in found):
        return EMPTY
    if len({(each.metric, each.split) for _, each in found}) > 1:
        return element("p", "The runs were scored by different metrics or splits: see the tables.")
    rows = [(name, *each.estimate, each.runs if len(each.runs) > 1 else ()) for name, each in found]
    metric, split = found[0][1].metric, found[0][1].split
    said = "; ".join(f"{name} {value:.4f}, {low:.4f} to {high:.4f}"
                     for name, value, low, high, _ in rows)  # fmt: skip
    caption = f"{metric} on {split} with {1 - LEVEL:.0%} intervals"
    return figure(caption, interval_chart(f"{caption}: {said}", rows))


def name_of(system: System, run: Run, systems: Sequence[System]) -> str:
    """What a run is called on the page: its folder, and that of its system where there are more."""
    if len(system.runs) == 1:
        return system.name
    return run.folder.name if len(systems) == 1 else f"{system.name}/{run.folder.name}"


def made_with(systems: Sequence[System], defaults: Mapping[str, Any]) -> Html:
    """Command, environment and settings of each run."""
    parts = []
    for system in systems:
        for run in system.runs:
            inside = _made_with(run, defaults)
            several = len(systems) > 1 or len(system.runs) > 1
            name = name_of(system, run, systems)
            parts.append(details(own_text(name), inside) if several else inside)
    return joined(parts)


def _made_with(run: Run, defaults: Mapping[str, Any]) -> Html:
    about, config = run.environment, run.config
    command = about.get("command")
    unset = defaults.get(run.task, {})
    rows = [[name, _setting(value)] for name, value in config.items() if value != unset.get(name)]
    same = [[name, _setting(value)] for name, value in config.items()
            if name in unset and value == unset[name]]  # fmt: skip
    facts = {
        **{name: about[name] for name in ("device", "precision", "python", "platform", "cores")
           if name in about},
        **about.get("versions", {}),
    }  # fmt: skip
    tables = [table("Settings other than the defaults", ["setting", "value"], rows)]
    if facts:
        named = [[name, str(value)] for name, value in facts.items()]
        tables.append(table("Environment", ["what", "value"], named))
    return joined(
        [
            element("pre", element("code", command), tabindex="0") if command else EMPTY,
            element("div", *tables, class_="tables"),
            details("All other settings", table("Defaults", ["setting", "value"], same)),
        ]
    )


def _setting(value: Any) -> str:
    return "unset" if value is None else str(value)
