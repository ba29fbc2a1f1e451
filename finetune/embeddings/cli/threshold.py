"""`finetune similarity --threshold`: do two uses of a word have the same sense?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from finetune.cli.output import print_table, refuse_options, require_free, show, write_run
from finetune.embeddings.cli.embed import layer_numbers
from finetune.embeddings.cli.predict import pair_records, pair_scores
from finetune.runtime.records import write_records
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.embeddings.cli.similarity import Similarity

SPLITS = ("train", "validation", "test")
USED = (
    *("model", "data", "columns", "encoding", "layers", "pooling", "standardize"),
    *("threshold", "out", "encoder"),
)
"""The options of `similarity` that apply."""


def fit_threshold(command: Similarity) -> None:
    """Choose the threshold on the training pairs, score all splits, and write the run folder."""
    refuse_options(command, USED, "--threshold")
    from finetune.data.sources import resolve
    from finetune.embeddings.data.similarity_pairs import read_similarity
    from finetune.embeddings.inference.word_in_context import PairSettings, WordInContext
    from finetune.runtime.files import replace_folder
    from finetune.runtime.progress import Reporter

    if command.data is None or command.out is None:
        raise UserError("--threshold needs --data with a train split, and --out RUN.")
    if command.standardize not in (None, "train"):
        raise UserError(
            f"--standardize {command.standardize}: with --threshold write --standardize train, for "
            "mean and deviation of the words of the training texts."
        )
    out = require_free(command.out)
    files = resolve(command.data).files
    if "train" not in files:
        raise UserError(
            f"--data {command.data}: no train split: write --data train=FILE,test=FILE."
        )
    options = command.encoder.keywords()
    settings = PairSettings(
        model=command.model,
        layers=layer_numbers(command.layers),
        pooling=command.pooling or "mean",
        standardize=command.standardize is not None,
        max_length=options.pop("max_length"),
    )
    splits = {
        split: read_similarity(command.data, split=split, **command.reading).pairs
        for split in SPLITS
        if split in files
    }
    reporter = Reporter()
    model = WordInContext.fit(settings, splits["train"], reporter=reporter, **options)
    metrics = {}
    with replace_folder(out) as folder:
        for split, pairs in splits.items():
            predicted = model.predict(pairs, reporter=reporter)
            metrics[split] = pair_scores(pairs, predicted)
            write_records(folder / f"predictions.{split}.jsonl", pair_records(pairs, predicted))
        model.save(folder)
        config = {"task": "similarity", "data": command.data, **asdict(settings)}
        write_run(folder, config, metrics)
    chosen = model.threshold
    show(f"{chosen.above}: cosine of {chosen.value:.4f} or more")
    rows = [
        (split, len(splits[split]), scores.get("accuracy"), scores.get("macro_f1"))
        for split, scores in metrics.items()
    ]
    print_table(("split", "pairs", "accuracy", "macro f1"), rows)
    show(f"run folder: {out}")
