"""Predicted senses of words as prediction files: gold keys, or JSON Lines with ``senses``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.files import DataFile
from finetune.embeddings.data.word_sense_files import read_keys
from finetune.embeddings.data.word_senses import read_sense_gold
from finetune.embeddings.data.wordnet import sense_key
from finetune.evaluation.alignment import AlignedPredictions, Gold, align_ids
from finetune.evaluation.kinds import Wording
from finetune.evaluation.predictions import PredictionFile, Row
from finetune.types import SenseTarget


class SensePredictions:
    """The kind ``senses`` of predictions (``finetune.evaluation.kinds.PredictionKind``)."""

    wording = Wording("senses", "target")

    def read(self, file: DataFile) -> list[Row]:
        """Read the ids and sense keys of a file of keys."""
        keys = enumerate(read_keys(file.name, file), 1)
        return [(file.where(n), {"id": id, "senses": senses}) for n, (id, senses) in keys]

    def gold_of(self, where: str, row: Mapping[str, Any]) -> SenseTarget:
        """Return the target of a line that holds its gold."""
        gold = row["gold"] or []
        if not isinstance(gold, list) or not all(isinstance(sense, str) for sense in gold):
            raise DataError(f"{where}: `gold` must be a list of senses, not {gold!r:.60}.")
        lemma, pos, key = row.get("lemma", ""), row.get("pos", ""), str(row.get("id", ""))
        where = row.get("where", where)
        return SenseTarget(0, 0, lemma, pos, _keys(gold), key, row.get("document"), where)

    def read_gold(self, source: str | Path | DataFile, encoding: str) -> list[SenseTarget]:
        """Read the targets of a file of data or of gold keys."""
        return read_sense_gold(source, encoding)

    def align(self, file: PredictionFile, gold: Gold) -> AlignedPredictions:
        """Align the senses of targets by id; systems may leave targets out."""
        targets = [target for target in gold.examples if isinstance(target, SenseTarget)]
        if file.ids is None:
            raise DataError(f"{file}: its lines have no ids: write the `id` of each target.")
        keys, places = [target.key for target in targets], [target.where for target in targets]
        order = align_ids(file, keys, places, gold.name, [False] * len(keys))
        pairs = [
            (target, {} if row is None else file.rows[row][1])
            for target, row in zip(targets, order, strict=True)
            if target.senses
        ]
        if not pairs:
            raise DataError(f"{gold.name}: no target has gold senses.")
        found, rows = map(list, zip(*pairs, strict=True))
        predicted = [_keys(row.get("senses", ())) for row in rows]
        senses = [target.senses for target in found]
        return AlignedPredictions("senses", senses, predicted, examples=found, rows=rows, by="id")


def _keys(senses: Sequence[str]) -> tuple[str, ...]:
    """Return senses without the syntactic markers of WordNet's keys."""
    return tuple(sense_key(sense) or sense for sense in senses)


SENSES = SensePredictions()
