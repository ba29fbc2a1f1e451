"""``python -m finetune.bench``: the same as `finetune bench`."""

from __future__ import annotations

import sys

from finetune.arguments import BenchCommand
from finetune.parsing import parse

if __name__ == "__main__":
    try:
        (command := parse(BenchCommand, sys.argv[1:], "bench")).require_legal()
        from finetune.bench.command import run

        run(command)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
