"""`finetune wic`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.options import DataOptions, EncoderOptions
from finetune.cli.output import (
    open_records,
    print_table,
    quiet_libraries,
    require_free,
    show,
    write_run,
)
from finetune.config.options import OUTPUT
from finetune.embeddings.cli.embed import layer_numbers
from finetune.runtime.records import write_records
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.embeddings.data.similarity_pairs import SimilarityPair
    from finetune.types import TextPrediction

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Wic(DataOptions, Command):
    """Tell whether a word has the same sense in two texts, by a threshold on the cosine.

    Examples:
        finetune wic --data wic/ --model minilm --out runs/wic
        finetune wic runs/wic --data new.jsonl
    """

    folder: Annotated[Positional[str | None], arg(metavar="RUN")] = None
    """Run folder whose threshold predicts --data."""
    data: str
    """Pairs of texts with `index` and `index_pair` (words between blanks, from 0), or `start`,
    `end`, `start_pair` and `end_pair` (characters): `train=FILE,test=FILE` or a folder. With
    RUN one file."""
    model: str = "minilm"
    """Model name, folder, or folder of a run."""
    layers: str = "last"
    """`last`, `last4`, or numbers separated by commas: 0 is the output of the embeddings, 1 the
    first layer, -1 the last."""
    pooling: Literal["mean", "first", "max"] = "mean"
    """Pooling of a word over its subwords."""
    standardize: bool = False
    """Standardize vectors by mean and deviation of the words of the training texts."""
    out: Annotated[str | None, OUTPUT] = None
    """Run folder to write: threshold, scores and predictions. With RUN, the file of predictions to
    write; unset prints them."""
    max_length: int | None = None
    """Tokens of the longest sequence; longer texts are read in windows. Unset is the limit of the
    model, at most 512."""
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    """Batches and source of the encoder."""

    def __post_init__(self) -> None:
        """Check the options."""
        if self.out is None and self.folder is None:
            raise UserError("wic needs --out, to choose a threshold, or the RUN of one.")
        for name in ("model", "layers", "pooling", "standardize", "max_length"):
            if self.folder is not None and getattr(self, name) != getattr(Wic, name):
                option = name.replace("_", "-")
                raise UserError(f"--{option} is saved in the run: leave it out.")

    def run(self) -> None:
        """Choose a threshold and score it, or predict with the threshold of a run."""
        quiet_libraries()
        if self.folder is None:
            self._fit()
        else:
            self._predict(Path(self.folder))

    def _read(self, split: str | None) -> Sequence[SimilarityPair]:
        from finetune.embeddings.data.similarity_pairs import read_similarity

        found = read_similarity(self.data, split=split, **self.reading)
        return found.pairs

    def _fit(self) -> None:
        from finetune.data.sources import resolve
        from finetune.embeddings.inference.word_in_context import PairSettings, WordInContext
        from finetune.runtime.files import replace_folder
        from finetune.runtime.progress import Reporter

        out = require_free(self.out)
        files = resolve(self.data).files
        if "train" not in files:
            raise UserError(
                f"--data {self.data}: no train split: write --data train=FILE,test=FILE."
            )
        settings = PairSettings(
            model=self.model,
            layers=layer_numbers(self.layers),
            pooling=self.pooling,
            standardize=self.standardize,
            max_length=self.max_length,
        )
        splits = {split: self._read(split) for split in SPLITS if split in files}
        reporter = Reporter()
        model = WordInContext.fit(
            settings, splits["train"], reporter=reporter, **self.encoder.keywords()
        )
        metrics = {}
        with replace_folder(out) as folder:
            for split, pairs in splits.items():
                predicted = model.predict(pairs, reporter=reporter)
                metrics[split] = _scores(pairs, predicted)
                records = _records(pairs, predicted)
                write_records(folder / f"predictions.{split}.jsonl", records)
            model.save(folder)
            config = {"task": "wic", "data": self.data, **asdict(settings)}
            write_run(folder, config, metrics)
        chosen = model.threshold
        show(f"{chosen.above}: cosine of {chosen.value:.4f} or more")
        rows = [
            (split, len(splits[split]), scores.get("accuracy"), scores.get("macro_f1"))
            for split, scores in metrics.items()
        ]
        print_table(("split", "pairs", "accuracy", "macro f1"), rows)
        show(f"run folder: {out}")

    def _predict(self, run: Path) -> None:
        from finetune.embeddings.inference.word_in_context import THRESHOLD_FILE, WordInContext
        from finetune.runtime.progress import Reporter

        if not (run / THRESHOLD_FILE).is_file():
            raise UserError(f"{run}: no {THRESHOLD_FILE} in it: name a run of finetune wic.")
        pairs = self._read(None)
        predicted = WordInContext.load(run, **self.encoder.keywords()).predict(
            pairs, reporter=Reporter()
        )
        with open_records(self.out, [Path(self.data), *run.glob("*")]) as write:
            for record in _records(pairs, predicted):
                write(record)
        if scores := _scores(pairs, predicted):
            show(f"accuracy {scores['accuracy']:.4f}", error=True)


def _records(
    pairs: Iterable[SimilarityPair], predicted: Iterable[tuple[TextPrediction, float]]
) -> Iterator[dict[str, Any]]:
    """Yield label, cosine and gold of each pair."""
    from finetune.evaluation.predictions import to_row

    for pair, (prediction, cosine) in zip(pairs, predicted, strict=True):
        yield to_row(prediction, pair.example) | {"cosine": round(cosine, 6)}


def _scores(
    pairs: Sequence[SimilarityPair], predicted: Sequence[tuple[TextPrediction, float]]
) -> dict[str, float]:
    """Return the scores of the pairs with gold; nothing without gold."""
    from finetune.embeddings.inference.word_in_context import label_name
    from finetune.evaluation.metrics import text_scores

    labeled = [index for index, pair in enumerate(pairs) if pair.example.label is not None]
    gold = [label_name(pairs[index]) for index in labeled]
    return text_scores("label", gold, [predicted[i][0].label for i in labeled]) if gold else {}
