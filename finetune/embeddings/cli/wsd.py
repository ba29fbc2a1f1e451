"""`finetune wsd`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from finetune.cli.command import Command
from finetune.cli.options import EncoderOptions
from finetune.cli.output import (
    print_table,
    quiet_libraries,
    require_free,
    show,
    write_run,
)
from finetune.embeddings.cli.embed import layer_numbers
from finetune.embeddings.cli.predict import report_unknown, sense_records
from finetune.runtime.records import write_records
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.inference.word_senses import WordSenses

PREDICTIONS = "predictions.{}.jsonl"
BASELINES = {"first_sense": False, "most_frequent": True}
"""The baselines by the name of their files and scores, and whether they count training senses."""


@dataclass(frozen=True, kw_only=True)
class Wsd(Command):
    """Find the senses of words: nearest neighbor among the sense vectors of an annotated corpus.

    Examples:
        finetune wsd --model minilm --data senses/ --out runs/senses
        finetune predict runs/senses --text "He sat on the *bank*."
    """

    model: str = "minilm"
    """Model name, folder, or folder of a run."""
    data: str
    """Sentences with targets: `train=FILE,validation=FILE,test=FILE` or a folder. Files are JSON
    Lines with `tokens` and `targets` (start, end, lemma, pos, senses), or NAME.data.xml of the
    framework of Raganato et al. with NAME.gold.key.txt."""
    inventory: str | None = None
    """Folder of WordNet's files: index.sense, and data.* for --glosses. Unset takes the senses of
    the training data."""
    layers: str = "last"
    """`last`, `last4`, numbers separated by commas (0 is the output of the embeddings, -1 the last
    layer), or `auto`: try each layer and the last four on the validation split."""
    pooling: Literal["mean", "first", "max"] = "mean"
    """Pooling of a word over its subwords."""
    normalization: Literal["none", "center", "standardize"] = "none"
    """Before cosines, subtract the mean of all training targets, or also divide by their standard
    deviation."""
    prior: float | None = None
    """Weight of the logarithm of a sense's frequency among the uses of its lemma in training. Unset
    chooses it on the validation split, or is 0 without one."""
    glosses: float = 0.0
    """Weight of the gloss of a sense in its vector; its uses have weight 1. 0 reads no glosses."""
    out: str
    """Run folder to write: sense vectors, scores and predictions."""
    encoding: str = "utf-8"
    """Text encoding of the data files, such as `cp1252` or `utf-16`."""
    max_length: int | None = None
    """Tokens of the longest sequence; longer sentences are read in windows. Unset is the limit of
    the model, at most 512."""
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    """Batches and source of the encoder."""

    def __post_init__(self) -> None:
        """Check the options."""
        for name in ("prior", "glosses"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UserError(f"--{name} must be a finite number of 0 or more, not {value}.")

    def run(self) -> None:
        """Fit sense vectors and score them."""
        quiet_libraries()
        from finetune.embeddings.data.word_senses import read_senses
        from finetune.embeddings.evaluation.word_senses import sense_scores
        from finetune.embeddings.inference.word_senses import (
            SenseSettings,
            WordSenses,
            first_senses,
        )
        from finetune.runtime.files import replace_folder
        from finetune.runtime.progress import Reporter

        out = require_free(self.out)
        data = read_senses(self.data, encoding=self.encoding)
        if "train" not in data.splits:
            raise UserError(
                f"--data {self.data}: no train split (found: {', '.join(data.splits)}): write "
                "--data train=FILE,test=FILE."
            )
        reporter = Reporter()
        settings = SenseSettings(
            model=self.model,
            layers=layer_numbers(self.layers),
            pooling=self.pooling,
            normalization=self.normalization,
            prior=self.prior,
            gloss_weight=self.glosses,
            inventory=self.inventory,
            max_length=self.max_length,
        )
        senses = WordSenses.fit(
            settings,
            data.splits["train"],
            data.splits.get("validation", ()),
            reporter=reporter,
            **self.encoder.keywords(),
        )
        for note in data.notes:
            show(note, error=True)
        report_unknown(
            senses, [t for rows in data.splits.values() for e in rows for t in e.targets]
        )
        metrics: dict[str, dict[str, float]] = {}
        with replace_folder(out) as folder:
            for split, examples in data.splits.items():
                if split == "train":
                    continue
                before = senses.num_without_vector
                targets, predictions = senses.predict(examples, reporter=reporter)
                records = sense_records(targets, predictions)
                write_records(folder / PREDICTIONS.format(split), records)
                scores = sense_scores(targets, predictions)
                for name, trained in BASELINES.items():
                    found = first_senses(senses.model, targets, trained=trained)
                    write_records(folder / f"{name}.{split}.jsonl", sense_records(targets, found))
                    baseline = sense_scores(targets, found)
                    scores |= {f"{name}_{metric}": value for metric, value in baseline.items()}
                metrics[split] = scores | {
                    "targets": len(targets),
                    "backed_off": sum(each.backed_off for each in predictions),
                    "unanswered": sum(each.sense is None for each in predictions),
                    "without_subwords": senses.num_without_vector - before,
                }
            senses.save(folder)
            config = {
                "task": "wsd",
                "data": self.data,
                **dataclasses.asdict(senses.settings),
                "fingerprint": data.fingerprint,
            }
            content = metrics | (
                {"choices": [choice._asdict() for choice in senses.choices]}
                if self.layers == "auto"
                else {}
            )
            write_run(folder, config, content)
        self._print(senses, metrics)

    def _print(self, senses: WordSenses, metrics: dict[str, dict[str, float]]) -> None:
        """Print the choices, the scores of each split and where the run is."""
        if self.layers == "auto":
            rows = [(_layers(each.layers), each.prior, each.f1) for each in senses.choices]
            print_table(("layers", "prior", "validation f1"), rows)
            show()
        vectors = quantity(len(senses.model.vectors), "sense")
        show(f"{vectors} with vectors, prior {senses.model.prior:g}")
        names = ("f1", "precision", "recall", *(f"{name}_f1" for name in BASELINES))
        counts = ("targets", "backed_off", "unanswered", "without_subwords")
        table = [
            (split, *(scores.get(name) for name in names), *(int(scores[name]) for name in counts))
            for split, scores in metrics.items()
        ]
        if table:
            header = ("split", *(name.replace("_", " ") for name in (*names, *counts)))
            print_table(header, table)
        show(f"run folder: {self.out}")


def _layers(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))
