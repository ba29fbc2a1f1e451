"""``python -m finetune.bench``: the same as `finetune bench`."""

from __future__ import annotations

import sys

from finetune.arguments import BenchCommand, parse
from finetune.bench.command import run

if __name__ == "__main__":
    try:
        run(parse(BenchCommand, sys.argv[1:], "bench"))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
