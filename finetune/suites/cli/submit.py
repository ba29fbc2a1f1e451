"""`finetune submit`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.output import check_output, quiet_libraries, show
from finetune.config.options import Help
from finetune.types import quantity


@dataclass(frozen=True, kw_only=True)
class Submit(Command):
    """Write the files of a benchmark's server from the runs of a suite.

    Examples:
        finetune submit runs/glue --out glue.zip
        finetune submit runs/glue --seed 3 --out glue-3.zip
    """

    folder: Annotated[Positional[str], arg(metavar="SUITE")]
    """Folder of `finetune run SUITE`, with finished runs of all data sets. They predict the test
    splits without labels."""
    out: Annotated[str, Help("FILE.zip", group="output", common=True)]
    """Archive to write, with one file for each test set."""
    seed: int | None = None
    """Seed of the runs to use. Unset takes the run with the best validation score of each data
    set."""

    def run(self) -> None:
        """Predict the test splits, and write the archive once all files are complete."""
        quiet_libraries()
        from finetune.suites.results import open_suite
        from finetune.suites.submission import submission, write_archive

        folder = Path(self.folder)
        check_output(self.out, folder.glob("*"), (".zip",))
        suite = open_suite(folder)
        texts = submission(suite, seed=self.seed, say=partial(show, error=True))
        write_archive(Path(self.out), texts)
        show(f"{self.out}: {quantity(len(texts), 'file')}")
