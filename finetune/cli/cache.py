"""`finetune cache`."""

from __future__ import annotations

from dataclasses import dataclass

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, show
from finetune.types import quantity


@dataclass(frozen=True, kw_only=True)
class Cache(FormatOption, Command):
    """List the prepared data in the cache, or clear them; training makes again what it needs.

    Large data are kept as they were read and checked, and as they were tokenized.

    The cache is in `~/.cache/finetune`; the variable FINETUNE_CACHE names another folder, or `off`.

    Examples:
        finetune cache
        finetune cache --clear
    """

    clear: bool = False
    """Remove the entries."""

    def run(self) -> None:
        """Print the entries, or remove them."""
        from finetune.runtime.cache import OFF, VARIABLE, cache_entries, clear_cache, is_enabled

        entries = clear_cache() if self.clear else cache_entries()
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
