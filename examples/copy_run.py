"""Copy a run to a bucket at each checkpoint; on another machine, the same command continues it.

python examples/copy_run.py          # MODEL, STEPS, OUT and COPIES in the environment override
"""

import os
import time
from pathlib import Path

import fsspec

import finetune

COMPLETE = "COMPLETE"  # written last


class Copies(finetune.Callback):
    """Copies a run folder into new folders of any file system of fsspec; deletes nothing."""

    def __init__(self, run: Path, url: str) -> None:
        self.run = run
        self.system, root = fsspec.core.url_to_fs(url)
        self.root = root.rstrip("/")

    def on_save(self, event: finetune.SaveEvent) -> None:
        """Copy after each checkpoint, which is complete on the disk."""
        if not event.is_best:
            self.copy()

    def copy(self) -> None:
        """Copy all files; an error here ends the training, which can continue."""
        target = f"{self.root}/{time.time_ns()}"
        self.system.put(f"{self.run}/", f"{target}/", recursive=True)
        self.system.pipe_file(f"{target}/{COMPLETE}", b"")

    def fetch(self) -> None:
        """Get the newest complete copy, if there is one and no run folder."""
        found = sorted(self.system.glob(f"{self.root}/*/{COMPLETE}"))
        if found and not self.run.exists():
            part = self.run.with_name(f"{self.run.name}.part")
            self.system.get(found[-1].removesuffix(COMPLETE), f"{part}/", recursive=True)
            (part / COMPLETE).unlink()
            part.rename(self.run)


if __name__ == "__main__":
    out = Path(os.environ.get("OUT", "runs/example-copy-run"))
    copies = Copies(out, os.environ.get("COPIES", "runs/example-copies"))  # or s3://bucket/run
    copies.fetch()
    run = finetune.train(
        "classify",
        data="examples/data/sentiment",
        model=os.environ.get("MODEL", "minilm"),
        steps=int(os.environ.get("STEPS", "12")),
        out=str(out),
        resume="auto",
        callbacks=[copies],
    )
    copies.copy()  # with scores, predictions and report
    print(run.metrics["test"])
