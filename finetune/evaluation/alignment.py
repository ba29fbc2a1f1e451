"""Align the predictions of systems with the same gold, and refuse files that do not belong
together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from finetune.data import DataError
from finetune.evaluation.decisions.costs import with_costs
from finetune.evaluation.items import PredictionType, Tables
from finetune.evaluation.prediction_types import common_types
from finetune.evaluation.predictions import Gold, GoldSource, PredictionFile, read_predictions
from finetune.evaluation.runs import RunFolder
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import UserError, abbreviated, quantity


@dataclass(frozen=True)
class AlignedRuns:
    """The predictions of several runs for the same examples; ``gold`` is the name of its file."""

    runs: Sequence[Tables]
    gold: str
    vocabulary: TrainingVocabulary | None
    aligned_by: str = ""
    """``id`` or ``position``; empty for one file with its gold."""
    positive_note: str = ""


def align_runs(paths: Sequence[Path], source: GoldSource | None = None) -> AlignedRuns:
    """Read prediction files for the same examples and align them with the same gold.

    Predictions are JSON Lines with ``label`` (a name, a list of names, or a number), ``tags``,
    ``relations``, ``answer``, or ``spans`` (in words; in characters where the line has a ``text``
    and no words), or words in columns of which the last is predicted, or a JSON object of answers
    by id. Predictions and gold are aligned by ``id`` where both have ids, else by position.
    """
    source = source or GoldSource()
    files = [read_predictions(path, source.encoding) for path in paths]
    ids = [file.ids for file in files]
    types = common_types([file.type for file in files])
    type = types[0]
    _check_types(files, types)
    if not type.may_leave_out:
        files = _in_one_order(files, ids)
    if source.usual_columns is None:
        known = RunFolder.open(paths[0].parent).columns if source.gold or source.train else {}
        source = replace(source, usual_columns=known)
    vocabulary = None
    if source.gold is not None:
        gold = Gold(source.gold, type.read_gold(source.gold, source))
    else:
        if source.columns and source.train is None:
            role, name = next(iter(source.columns.items()))
            raise UserError(f"--columns {role}={name} is about a file of gold: add --gold FILE.")
        file = _file_with_gold(files)
        gold = Gold(str(file), file.gold(type))
        vocabulary = TrainingVocabulary.load(file.path.parent)
    if source.train is not None:
        if not type.needs_training:
            raise UserError(
                f"--train {source.train}: it does not apply to {type.name}: leave it out."
            )
        vocabulary = TrainingVocabulary.of(type.read_gold(source.train, source))
    aligned = [type.align(file, gold, type) for file in files]
    runs = aligned[0][0].type.unified([run for run, _ in aligned])
    _check_types(files, [run.type for run in runs])
    runs, note = runs[0].type.together(runs, source.positive)
    costs = source.costs or RunFolder.open(paths[0].parent).decisions.costs
    if costs:
        runs = [with_costs(run, costs) for run in runs]
    by = {by for _, by in aligned}
    one_file = source.gold is None and len(files) == 1
    aligned_by = "" if one_file else "position" if "position" in by else "id"
    return AlignedRuns(runs, gold.name, vocabulary, aligned_by, note)


def _in_one_order(
    files: Sequence[PredictionFile], ids: Sequence[list[str] | None]
) -> list[PredictionFile]:
    named = [(file, own) for file, own in zip(files, ids, strict=True) if own is not None]
    first, first_ids = named[0] if named else (files[0], None)
    places = [where for where, _ in first.rows]
    found = []
    for file, own in zip(files, ids, strict=True):
        if first_ids is not None and own is not None:
            order = file.indices_of(first_ids, places, str(first))
            file = replace(file, rows=[file.rows[index or 0] for index in order])
        elif len(file.rows) != len(first.rows):
            raise DataError(
                f"{file}: {quantity(len(file.rows), 'prediction')}, but {len(first.rows):,} in "
                f"{first}: the files do not belong together, or one was cut."
            )
        found.append(file)
    return found


def _check_types(files: Sequence[PredictionFile], types: Sequence[PredictionType]) -> None:
    for file, type in zip(files, types, strict=True):
        if type is not types[0]:
            raise DataError(
                f"{file} predicts {type.wording.predicted}, but {files[0]} "
                f"{types[0].wording.predicted}: only predictions of one kind can be compared."
            )


def _file_with_gold(files: Sequence[PredictionFile]) -> PredictionFile:
    with_gold = [file for file in files if file.has_gold]
    if not with_gold:
        raise UserError(
            f"{abbreviated(list(map(str, files)), 2)}: no gold in it to compare with: name a file "
            "of gold labels (--gold FILE; of `finetune score` the second file)."
        )
    first, *others = with_gold
    for other in others:
        same_type = other.type is first.type
        if _contents(first, same_type) != _contents(other, same_type):
            raise UserError(
                f"{other} has other examples, or other gold, than {first}: only predictions for "
                "the same examples can be compared."
            )
    return first


def _contents(file: PredictionFile, with_gold: bool) -> list[tuple[object, ...]]:
    type = file.type
    examples = file.gold(type)
    return [(type.asked(each), type.gold(each) if with_gold else None) for each in examples]
