"""Time and memory of reading rows: `python -m benchmarks.rows TASK FILE`, TASK is classify or tag.

Prints the processor time of each stage in seconds, and the peak of resident memory, mapped pages
included. ``benchmarks.generated_rows`` writes files of any number of rows.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any

from finetune.data import check_data, hold_out, read_text, read_tokens

READERS: dict[str, Callable[[str], Any]] = {"classify": read_text, "tag": read_tokens}


def main(task: str, path: str) -> None:
    """Read the rows of a file and print times and memory."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = process_time()
        yield
        seconds[stage] = process_time() - start

    with timed("read"):
        data = READERS[task](path)
    with timed("check"):
        check_data(data, max_length=None)
    with timed("hold out"):
        data = hold_out(data)
    with timed("iterate"):
        rows = sum(1 for _ in data.splits["train"])
    with timed("fingerprint"):
        fingerprint = data.fingerprint
    stages = ", ".join(f"{stage} {time:.1f}" for stage, time in seconds.items())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{task}, {rows:,} rows of train, {fingerprint[:12]}: {sum(seconds.values()):.1f} s")
    print(f"{stages}; peak {peak:.2f} GiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
