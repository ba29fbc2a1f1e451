"""`finetune recipes`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finetune.cli.output import error_line, show
from finetune.types import UserError, abbreviated, quantity


@dataclass(frozen=True, kw_only=True)
class Recipes:
    """List the recipes, the scores they expect, and the scores of your runs of them."""

    folder: str = "recipes"
    """Folder of recipes, with its subfolders; if there is no `recipes` here, the packaged ones."""
    runs: str = "runs"
    """Folder of your runs; each run records the recipe that it followed."""

    def run(self) -> None:
        """Print the recipes; raises UserError at the end if one cannot be read."""
        from finetune.config.recipes import find_recipes
        from finetune.evaluation.reproduction import finished_runs, recipe_lines

        paths = find_recipes(self.folder)
        if not paths:
            raise UserError(f"{self.folder}: no recipes (*.yaml) in this folder.")
        runs = finished_runs(Path(self.runs))
        unreadable = []
        for path in paths:
            try:
                lines = list(recipe_lines(path, runs))
            except (UserError, OSError) as error:
                unreadable.append(str(path))
                lines = [error_line(error)[0]]
            show("\n    ".join([str(path), *lines]))
        if unreadable:
            raise UserError(
                f"{len(unreadable)} of {quantity(len(paths), 'recipe')} cannot be read: "
                f"{abbreviated(unreadable, 3)}; the reasons are above."
            )
