"""What ``finetune check --label-errors`` does: cross-fit, rank, print, write."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.runtime.memory import memory_kept
from finetune.runtime.signals import Interrupted
from finetune.training.cross_fitting import cross_fit
from finetune.training.run_folder import require_writable
from finetune.training.suspects import Suspect, Suspects, find_suspects
from finetune.types import TextExample, UserError

MOST_TAKEN = 8
"""Pairs of given and true label that are printed."""


def configuration(
    task: str,
    model: str | None,
    data: str,
    columns: tuple[str, ...],
    max_length: int | None,
    epochs: float | None,
    of_recipe: TrainConfig | None,
) -> TrainConfig:
    """How the folds are trained: as a recipe says, or by a task's defaults; what is given wins.

    Raises ValueError where no model is named.
    """
    if model is None and of_recipe is None:
        raise UserError(
            "--label-errors trains a model on parts of the data: name one with --model, such as "
            "--model minilm."
        )
    config = of_recipe or CONFIGS[task]()
    given = {"model": model, "max_length": max_length, "epochs": epochs}
    return replace(
        config, data=data, columns=columns, **{n: v for n, v in given.items() if v is not None}
    )  # type: ignore[arg-type]


def check_labels(
    task: str, config: TrainConfig, folds: int, out: str | None, examples: int
) -> None:
    """Find the probable label errors of the training data, print the first and write all."""
    if folds < 2:
        raise UserError(f"--folds must be 2 or more, not {folds}.")
    with _folder(out) as work:
        try:
            with memory_kept():
                fitted = cross_fit(task, config, folds, work)
        except Interrupted as stopped:
            kept = f"the same command goes on ({work})" if out else "nothing is kept without --out"
            print(f"{stopped}: {kept}", file=sys.stderr)
            sys.exit(130)
        found = find_suspects(fitted)
    what = "labels" if isinstance(fitted.examples[0], TextExample) else "words"
    what = "spans" if task == "ner" else what
    for line in lines(found, what, examples):
        print(line)
    if out is not None:
        _write(Path(out), found.found)
        shutil.rmtree(work)
        print(f"all of them, the most doubtful first: {out}")


@contextlib.contextmanager
def _folder(out: str | None) -> Iterator[Path]:
    """Where folds are kept until all are there: beside the file to write, or nowhere."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="finetune-folds-") as folder:
            yield Path(folder)
        return
    if Path(out).is_dir():
        raise UserError(f"--out {out} is a folder: name a file.")
    require_writable(Path(out).parent)
    yield Path(f"{out}.folds")


def lines(found: Suspects, what: str, examples: int) -> Iterator[str]:
    """What there is to read: how many, what is taken for what, and the first of them."""
    yield f"{len(found.found):,} suspects among the {found.number:,} {what} of the training data"
    if found.share is not None:
        yield f"estimated share of wrong labels: {100 * found.share:.1f} %"
    for given, true, expected in found.taken[:MOST_TAKEN]:
        yield f"  labelled {given}, is {true}: about {expected:,.0f}"
    for suspect in [suspect for suspect in found.found if suspect.worst][:examples]:
        where = suspect.file if suspect.line is None else f"{suspect.file}:{suspect.line}"
        kind = "" if suspect.kind in ("label", "word") else f" ({suspect.kind})"
        yield (
            f"{where}  {suspect.given} -> {suspect.suggested} ({suspect.confidence:.3f} against "
            f"{suspect.given_confidence:.3f}){kind}"
        )
        yield f"    {suspect.excerpt}"


def _write(path: Path, found: list[Suspect]) -> None:
    rows = (json.dumps(suspect.record(), ensure_ascii=False) + "\n" for suspect in found)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("".join(rows), encoding="utf-8")
    fresh.replace(path)
