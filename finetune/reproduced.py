"""What the runs of a recipe reached, read from their folders."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from finetune.config import TrainConfig
from finetune.expected import claims
from finetune.recipe import Recipe, changed


def reproduced(recipe: Recipe, runs: Path, configured: Callable[[], TrainConfig]) -> Iterator[str]:
    """A line for each score of each finished run of a recipe in the folder ``runs``, under the
    names that runs without --out have. ``configured`` gives the recipe's configuration; it is
    called only where there is a run."""
    for folder in _folders(recipe, runs):
        several = _content(folder / "seeds.json")
        first = min(folder.glob("seed-*"), default=folder) if several else folder
        saved = _content(first / "config.json")
        metrics = _means(several) if several else _content(folder / "metrics.json")
        if not (saved and metrics):
            continue
        got = f"mean of {len(several['seeds'])} seeds" if several else "got"
        differing = changed(saved, configured(), "seed")
        if recipe.expected:
            lines = [claim.line(got) for claim in claims(recipe.expected, metrics, differing)]
        else:
            lines = [
                f"{split} {name}: {got} {value:.4f}"
                + (f" ({', '.join(differing)} changed)" if differing else "")
                for split, values in metrics.items()
                for name, value in list(values.items())[:1]
            ]
        yield from (f"{folder}: {line}" for line in lines)


def _folders(recipe: Recipe, runs: Path) -> list[Path]:
    """Folders of the recipe's runs: its name, and that with a number or of several seeds."""
    pattern = re.compile(re.escape(recipe.name) + r"(-\d+|-seeds)?")
    found = runs.glob(f"{recipe.name}*") if runs.is_dir() else ()
    return sorted(path for path in found if pattern.fullmatch(path.name))


def _means(content: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {
        split: {name: value["mean"] for name, value in values.items()}
        for split, values in content["metrics"].items()
    }


def _content(path: Path) -> dict[str, Any]:
    """A JSON object of a file; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
