"""`finetune wsd`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.options import EncoderOptions
from finetune.cli.output import (
    open_records,
    print_table,
    quiet_libraries,
    require_free,
    show,
    write_run,
)
from finetune.config.options import OUTPUT
from finetune.config.tasks import flag
from finetune.embeddings.cli.embed import layer_numbers
from finetune.runtime.records import write_records
from finetune.types import UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.embeddings.evaluation.word_senses import SensePrediction
    from finetune.embeddings.inference.word_senses import WordSenses
    from finetune.types import SenseTarget

PREDICTIONS = "predictions.{}.jsonl"
BASELINES = {"first_sense": False, "most_frequent": True}
"""The baselines by the name of their files and scores, and whether they count training senses."""


@dataclass(frozen=True, kw_only=True)
class Wsd(Command):
    """Find the senses of words: nearest neighbor among the sense vectors of an annotated corpus.

    Examples:
        finetune wsd --model minilm --data senses/ --out runs/senses
        finetune wsd runs/senses --text "He sat on the *bank*."
    """

    folder: Annotated[Positional[str | None], arg(metavar="RUN")] = None
    """Run folder whose sense vectors find the senses of --file or --text, in place of --data."""
    model: str = "minilm"
    """Model name, folder, or folder of a run."""
    data: str | None = None
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
    vote: float = 0.0
    """Weight of the mean score that a sense has for the other uses of a lemma in the document."""
    out: Annotated[str | None, OUTPUT] = None
    """Run folder to write: sense vectors, scores and predictions. With RUN, the file of predictions
    to write; unset prints them."""
    file: str | None = None
    """Sentences with targets, for RUN; `-` is standard input."""
    text: str | None = None
    """A sentence with a word between asterisks, as in `He sat on the *bank*.`, for RUN. It prints
    the senses with their glosses, the best first. `*went=go*` gives the base form."""
    encoding: str = "utf-8"
    """Text encoding of the data files, such as `cp1252` or `utf-16`."""
    max_length: int | None = None
    """Tokens of the longest sequence; longer sentences are read in windows. Unset is the limit of
    the model, at most 512."""
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    """Batches and source of the encoder."""

    def __post_init__(self) -> None:
        """Check the options."""
        for name in ("prior", "glosses", "vote"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UserError(f"--{name} must be a finite number of 0 or more, not {value}.")
        required: tuple[str, ...] = ("data", "out")
        excluded: tuple[str, ...] = ("file", "text")
        if self.folder is not None:
            required = ("file",) if self.text is None else ()
            excluded = tuple(
                field.name
                for field in dataclasses.fields(self)
                if field.name
                not in ("folder", "file", "text", "out", "inventory", "encoding", "encoder")
            )
        printed = None if self.folder is None else self.out  # with RUN, predictions
        if self.text is not None and (self.file is not None or printed is not None):
            raise UserError("--text prints the senses of one sentence: leave --file and --out out.")
        for name in required:
            if getattr(self, name) is None:
                with_run = " RUN" if self.folder is not None else ""
                or_text = " or --text" if name == "file" else ""
                raise UserError(f"wsd{with_run} needs {flag(name)}{or_text}.")
        for name in excluded:
            if getattr(self, name) != getattr(Wsd, name):
                problem = "is saved in the run" if self.folder is not None else "needs a RUN"
                raise UserError(f"{flag(name)} {problem}: leave it out.")

    def run(self) -> None:
        """Fit sense vectors and score them, or predict with the sense vectors of a run."""
        quiet_libraries()
        if self.folder is None:
            self._fit()
        elif self.text is not None:
            self._show_senses(self.text)
        else:
            self._predict()

    def _fit(self) -> None:
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
        data = read_senses(self.data or "", encoding=self.encoding)
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
            vote=self.vote,
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
        _report_unknown(
            senses, [t for rows in data.splits.values() for e in rows for t in e.targets]
        )
        metrics: dict[str, dict[str, float]] = {}
        with replace_folder(out) as folder:
            for split, examples in data.splits.items():
                if split == "train":
                    continue
                before = senses.num_without_vector
                targets, predictions = senses.predict(examples, reporter=reporter)
                records = _records(targets, predictions)
                write_records(folder / PREDICTIONS.format(split), records)
                scores = sense_scores(targets, predictions)
                for name, trained in BASELINES.items():
                    found = first_senses(senses.model, targets, trained=trained)
                    write_records(folder / f"{name}.{split}.jsonl", _records(targets, found))
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

    def _predict(self) -> None:
        from finetune.embeddings.data.word_senses import read_sense_file
        from finetune.embeddings.evaluation.word_senses import sense_scores
        from finetune.embeddings.inference.word_senses import WordSenses
        from finetune.runtime.progress import Reporter

        run, file = Path(self.folder or ""), self.file or ""
        examples = list(read_sense_file(file, self.encoding))
        senses = WordSenses.load(run, inventory=self.inventory, **self.encoder.keywords())
        targets, predictions = senses.predict(examples, reporter=Reporter())
        _report_unknown(senses, targets)
        with open_records(self.out, [Path(file), *run.glob("*")]) as write:
            for record in _records(targets, predictions):
                write(record)
        if number := senses.num_without_vector:
            show(f"targets without subwords, answered by the first sense: {number:,}", error=True)
        if scores := sense_scores(targets, predictions):
            show("  ".join(f"{name} {value:.4f}" for name, value in scores.items()), error=True)

    def _show_senses(self, text: str) -> None:
        """Print the senses of the marked words of a sentence, with scores and definitions."""
        from finetune.embeddings.data.word_senses import marked_sentence
        from finetune.embeddings.data.wordnet import pos_of
        from finetune.embeddings.inference.word_senses import WordSenses

        senses = WordSenses.load(
            Path(self.folder or ""), inventory=self.inventory, **self.encoder.keywords()
        )
        inventory, counts = senses.model.inventory, senses.model.counts

        def known(lemma: str, pos: str) -> bool:
            listed = inventory is not None and (lemma, pos) in inventory.senses
            return listed or (lemma, pos) in counts

        targets, predictions = senses.predict([marked_sentence(text, known)])
        by_word: dict[tuple[int, int], list[int]] = {}
        for index, target in enumerate(targets):
            by_word.setdefault((target.start, target.end), []).append(index)
        for number, indices in enumerate(by_word.values()):
            scores: dict[str, float | None] = {}
            for index in indices:
                scores |= predictions[index].scores
            scores = dict(sorted(scores.items(), key=lambda item: -(item[1] or 0.0)))
            for index in indices:  # senses without vectors follow in the order of the inventory
                scores |= {s: scores.get(s) for s in senses.model.candidates(targets[index])}
            definitions = {} if inventory is None else inventory.definitions(scores)
            show("\n" * (number > 0) + targets[indices[0]].key)
            print_table(
                ("sense", "part of speech", "score", "gloss"),
                [(s, pos_of(s), score, definitions.get(s)) for s, score in scores.items()],
            )
        if inventory is None:
            show(
                "glosses come from WordNet: name the folder of its files, --inventory FOLDER.",
                error=True,
            )


def _records(
    targets: Sequence[SenseTarget], predictions: Sequence[SensePrediction]
) -> Iterator[dict[str, Any]]:
    for target, prediction in zip(targets, predictions, strict=True):
        yield prediction.record(target)


def _report_unknown(senses: WordSenses, targets: Sequence[SenseTarget]) -> None:
    """Say once which gold senses the inventory does not list."""
    from finetune.embeddings.evaluation.word_senses import unknown_senses

    if senses.model.inventory is None:
        return
    if unknown := unknown_senses(targets, senses.model.inventory):
        names = abbreviated(sorted({*unknown}), 4)
        show(
            f"{quantity(len(unknown), 'gold sense')} are not in the inventory ({names}): it may be "
            "of another version of WordNet.",
            error=True,
        )


def _layers(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))
