"""`finetune check --label-errors`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli.check import Check
from finetune.cli.output import show
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.annotation.label_errors import Suspects


def find_label_errors(options: Check, task: str, recipe_config: TrainConfig | None) -> None:
    """Search for label errors, print the most probable ones and write all."""
    from finetune.annotation.label_errors import search_label_errors
    from finetune.runtime.files import require_replaceable
    from finetune.runtime.memory import memory_kept
    from finetune.runtime.records import require_suffix
    from finetune.runtime.signals import Interrupted
    from finetune.training.run_folder import require_writable

    if options.model is None and recipe_config is None:
        raise UserError("--label-errors trains a model: name one with --model.")
    if options.folds < 2:
        raise UserError(f"--folds must be 2 or more, not {options.folds}.")
    given = {"model": options.model, "max_length": options.max_length, "epochs": options.epochs}
    config = replace(
        recipe_config or CONFIGS[task](),
        data=options.data,
        columns=options.columns,
        encoding=options.encoding,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    out = Path(options.out) if options.out else None
    with contextlib.ExitStack() as stack:
        if out is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        elif out.is_dir():
            raise UserError(f"--out {out} is a folder: name a file.")
        else:
            require_writable(out.parent)
            require_suffix(out, (".jsonl", ".ndjson", ""), "--out")
            require_replaceable(out, '{"file": ')
            work = Path(f"{out}.folds")  # kept after an interruption
        try:
            with memory_kept():
                suspects = search_label_errors(task, config, options.folds, out, work)
        except Interrupted as interrupted:
            kept = f"the same command continues ({work})" if out else "nothing is kept"
            show(f"{interrupted}: {kept}{'' if out else ' without --out'}", error=True)
            sys.exit(128 + interrupted.signal)
    print_suspects(suspects, options.examples)
    if out is not None:
        show(f"all suspects, the most probable first: {out} (for a page: finetune review {out})")


def print_suspects(suspects: Suspects, examples: int) -> None:
    """Print the number of suspects, the most confused labels and the first suspects."""
    found = quantity(len(suspects.found), "suspect")
    show(f"{found} among the {quantity(suspects.number, suspects.unit)} of the training data")
    show(str(suspects.score))
    if suspects.share is not None:
        show(f"estimated fraction of wrong labels: {100 * suspects.share:.1f} %")
    for given, true, expected in suspects.taken[:8]:
        show(f"  labeled {given}, probably {true}: about {expected:,.0f}")
    for suspect in [suspect for suspect in suspects.found if suspect.worst][:examples]:
        where = suspect.file if suspect.line is None else f"{suspect.file}:{suspect.line}"
        kind = "" if suspect.kind in ("label", "word") else f" ({suspect.kind})"
        show(
            f"{where}  {suspect.given} -> {suspect.suggested} ({suspect.confidence:.3f} against "
            f"{suspect.given_confidence:.3f}){kind}\n    {suspect.excerpt}"
        )
