"""What the runs of a recipe reached, read from their folders."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.recipes import Recipe, changed, load_recipe
from finetune.evaluation.verdicts import Claim, claims, claims_of_seeds, counted


class Finished(NamedTuple):
    """A finished run in its folder, or several seeds: then ``metrics`` is their summary, and
    ``seeds`` what seeds.json says. ``recipe`` has name and path of the one it followed; older runs
    and those without one have None. ``degenerate`` says why a single run is."""

    folder: Path
    config: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Any]]
    seeds: Mapping[str, Any]
    recipe: Mapping[str, str] | None
    degenerate: Sequence[str] = ()


def finished_runs(runs: Path) -> list[Finished]:
    """All finished runs below a folder, by folder; several seeds are one."""
    found = []
    for place, inside, files in os.walk(runs):
        inside.sort()
        if "seeds.json" in files or "config.json" in files:
            inside.clear()  # the folders of seeds and checkpoints are no runs of their own
            found.append(_read(Path(place)))
    done = (run for run in found if run.config and run.metrics)
    return sorted(done, key=lambda run: run.folder)


def _read(folder: Path) -> Finished:
    several = _content(folder / "seeds.json")
    first = min(folder.glob("seed-*"), default=folder) if several else folder
    metrics = several.get("metrics") if several else _content(folder / "metrics.json")
    about = _content(folder / "environment.json")
    recipe = several.get("recipe") or about.get("recipe") or {}
    named = {"name", "path"} <= recipe.keys()
    config = _content(first / "config.json")
    failed = about.get("degenerate", ())
    return Finished(folder, config, metrics or {}, several, recipe if named else None, failed)


def recipe_lines(path: Path, runs: Sequence[Finished]) -> Iterator[str]:
    """Yield the description of a recipe, its expected scores, and the scores of its runs.

    Raises:
        UserError: If the file is not a recipe.
    """
    recipe = load_recipe(path)
    yield f"{recipe.task}: {recipe.description}"
    for entry in recipe.expected:
        yield f"{entry.split} {entry.metric} {entry.claimed} ({entry.cited})"
    yield from reproduced(recipe, runs)


def reproduced(recipe: Recipe, runs: Sequence[Finished]) -> Iterator[str]:
    """Yield a line for each score of each run of a recipe.

    The runs of a recipe are those that name it, and older ones with the name of a run without
    --out.
    """
    for run in runs:
        if not _is_of(recipe, run):
            continue
        differing = changed(run.config, recipe.config(), "seed")
        lines: Iterator[str] | list[str]
        if not recipe.expected:
            lines = _plain(run, differing)
        elif run.seeds:
            lines = [claim.line() for claim in _of_seeds(recipe, run, differing)]
        else:
            data, failed = run.config.get("fingerprint"), bool(run.degenerate)
            found = claims(recipe.expected, run.metrics, differing, data, degenerate=failed)
            lines = [claim.line() for claim in found]
        yield from (f"{run.folder}: {line}" for line in lines)


def _is_of(recipe: Recipe, run: Finished) -> bool:
    """Whether a run followed a recipe: it names it, and the file it names is this one, a copy of
    it, or gone."""
    if run.recipe is None:
        return bool(re.fullmatch(re.escape(recipe.name) + r"(-\d+|-seeds)?", run.folder.name))
    path = Path(run.recipe["path"])
    return run.recipe["name"] == recipe.name and (
        not path.is_file() or path.read_bytes() == recipe.path.read_bytes()
    )


def _of_seeds(recipe: Recipe, run: Finished, differing: Sequence[str]) -> Sequence[Claim]:
    failed = {each["seed"] for each in run.seeds.get("degenerate", ())}
    number = len(failed.union(run.seeds["seeds"]))
    data = run.config.get("fingerprint")
    return claims_of_seeds(recipe.expected, run.metrics, differing, len(failed), number, data)


def _plain(run: Finished, differing: Sequence[str]) -> Iterator[str]:
    """The first score of each split, for a recipe that expects none."""
    after = f" ({', '.join(differing)} changed)" if differing else ""
    got = f"mean of {counted(len(run.seeds['seeds']))}" if run.seeds else "got"
    for split, values in run.metrics.items():
        for name, value in list(values.items())[:1]:
            yield f"{split} {name}: {got} {value['mean'] if run.seeds else value:.4f}{after}"


def _content(path: Path) -> dict[str, Any]:
    """A JSON object of a file; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
