"""`finetune suggest`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.command import Command
from finetune.cli.options import DataOptions, OutOption, SeedOption, SpeedOptions
from finetune.cli.output import open_records, quiet_libraries, show
from finetune.config.options import DATA, argument
from finetune.runtime.records import with_columns
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.types import Example


@dataclass(frozen=True, kw_only=True)
class Suggest(OutOption, SpeedOptions, SeedOption, DataOptions, Command):
    """Choose the unlabeled examples that are worth labeling next (active learning).

    Examples:
        finetune suggest runs/topics --file unlabeled.txt --out next.jsonl
        finetune suggest runs/ner --file unlabeled.txt --number 100 --by uncertainty
    """

    folder: Annotated[str, argument("RUN")]
    """Folder of a run or of a model in it."""
    file: Annotated[str, DATA]
    """Unlabeled texts or words in any format of `predict`; `-` is standard input."""
    number: int = 50
    """Number of examples to choose."""
    seed: int = 1
    by: Literal["both", "uncertainty", "diversity", "random"] = "both"
    """Uncertain predictions, diverse texts, or diverse ones among the uncertain; `random` is the
    baseline."""

    def run(self) -> None:
        """Write one line for each chosen example, the best first."""
        if self.number < 1:
            raise UserError(f"--number must be 1 or more, not {self.number}.")
        quiet_libraries()
        from finetune.annotation.suggestion import Suggester, in_roles

        suggester = Suggester(self.folder, batching=self.batching, max_tokens=self.max_tokens)
        rows: dict[int, Mapping[str, Any]] = {}
        examples = self._examples(suggester.model.task, rows)
        with open_records(self.out, [Path(self.file)]) as write:
            found = suggester.suggest(examples, self.number, self.by, self.seed, rows)
            for each in found:
                example: Any = each.example
                record = each.prediction.record()
                record["id"] = example.id if example.key is None else example.key
                if each.uncertainty is not None:
                    record["uncertainty"] = round(each.uncertainty, 6)
                write(with_columns(record, in_roles(example, rows.get(example.id, {}))))
        for number, what in (
            (suggester.num_repeated, "with the text of another left out"),
            (suggester.num_empty, "without text left out"),
        ):
            if number:
                show(f"{quantity(number, 'example')} {what}", error=True)
        chosen = f"{len(found):,} of {quantity(suggester.num_read, 'example')}"
        show(f"chose {chosen}{f': {self.out}' if self.out else ''}", error=True)

    def _examples(self, task: Any, rows: dict[int, Mapping[str, Any]]) -> Iterator[Example]:
        from finetune.inference.inputs import read_inputs

        return read_inputs(task, self.file, **self.reading, rows=rows)
