"""`finetune cache`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from finetune.cli.command import Command
from finetune.cli.options import FormatOption
from finetune.cli.output import print_tables, show
from finetune.config.options import Help
from finetune.types import UserError, quantity


@dataclass(frozen=True, kw_only=True)
class Cache(FormatOption, Command):
    """List the prepared data in the cache, or clear them; training makes again what it needs.

    Large data are kept as they were read and checked, and as they were tokenized.

    The cache is in `~/.cache/finetune`; the variable FINETUNE_CACHE names another folder, or `off`.

    Examples:
        finetune cache
        finetune cache --clear --older-than 7
    """

    clear: bool = False
    """Remove the entries."""
    older_than: Annotated[float | None, Help("DAYS")] = None
    """With --clear: remove only entries that were last used more than DAYS days ago."""

    def run(self) -> None:
        """Print the entries, or remove them."""
        from finetune.runtime.cache import OFF, VARIABLE, cache_entries, clear_cache, is_enabled

        if self.older_than is not None and not self.clear:
            raise UserError("--older-than chooses what --clear removes: add --clear.")
        if self.older_than is not None and self.older_than < 0:
            raise UserError(f"--older-than must be 0 days or more, not {self.older_than:g}.")
        entries = clear_cache(86_400 * (self.older_than or 0.0)) if self.clear else cache_entries()
        total = f"{sum(entry.size for entry in entries) / 2**20:,.1f} MiB"
        if not is_enabled():
            show(f"{VARIABLE}={OFF}: the cache is disabled", error=True)
        if self.clear:
            show(f"removed {quantity(len(entries), 'entry', 'entries')}, {total}")
            return
        rows = [
            [e.title, round(e.size / 2**20, 1), round(e.age / 86_400, 1), str(e.path)]
            for e in entries
        ]
        columns = ("data and task", "MiB", "days unused", "folder")
        print_tables(self.format, ("", columns, rows))
        if self.format == "table":
            show(f"{quantity(len(entries), 'entry', 'entries')}, {total}")
