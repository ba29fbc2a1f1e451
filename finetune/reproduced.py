"""What the runs of a recipe reached, read from their folders."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.config import TrainConfig
from finetune.expected import Claim, claims, claims_of_seeds, counted
from finetune.recipe import Recipe, changed


def reproduced(recipe: Recipe, runs: Path, configured: Callable[[], TrainConfig]) -> Iterator[str]:
    """A line for each score of each finished run of a recipe in the folder ``runs``, under the
    names that runs without --out have. ``configured`` gives the recipe's configuration; it is
    called only where there is a run."""
    for folder in _folders(recipe, runs):
        several = _content(folder / "seeds.json")
        first = min(folder.glob("seed-*"), default=folder) if several else folder
        saved = _content(first / "config.json")
        metrics = several["metrics"] if several else _content(folder / "metrics.json")
        if not (saved and metrics):
            continue
        differing = changed(saved, configured(), "seed")
        lines: Iterator[str] | list[str]
        if not recipe.expected:
            lines = _plain(metrics, differing, several)
        elif several:
            lines = [claim.line() for claim in _of_seeds(recipe, several, differing)]
        else:
            lines = [claim.line() for claim in claims(recipe.expected, metrics, differing)]
        yield from (f"{folder}: {line}" for line in lines)


def _of_seeds(
    recipe: Recipe, content: Mapping[str, Any], differing: Sequence[str]
) -> Sequence[Claim]:
    failed = {each["seed"] for each in content.get("degenerate", ())}
    number = len(failed.union(content["seeds"]))
    return claims_of_seeds(recipe.expected, content["metrics"], differing, len(failed), number)


def _plain(
    metrics: Mapping[str, Mapping[str, Any]], differing: Sequence[str], several: Mapping[str, Any]
) -> Iterator[str]:
    """The first score of each split, for a recipe that expects none."""
    after = f" ({', '.join(differing)} changed)" if differing else ""
    got = f"mean of {counted(len(several['seeds']))}" if several else "got"
    for split, values in metrics.items():
        for name, value in list(values.items())[:1]:
            yield f"{split} {name}: {got} {value['mean'] if several else value:.4f}{after}"


def _folders(recipe: Recipe, runs: Path) -> list[Path]:
    """Folders of the recipe's runs: its name, and that with a number or of several seeds."""
    pattern = re.compile(re.escape(recipe.name) + r"(-\d+|-seeds)?")
    found = runs.glob(f"{recipe.name}*") if runs.is_dir() else ()
    return sorted(path for path in found if pattern.fullmatch(path.name))


def _content(path: Path) -> dict[str, Any]:
    """A JSON object of a file; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
