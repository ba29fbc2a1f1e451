"""`finetune wsd`: sense vectors of an encoder; fit, choose layers, predict, save.

Vectors are added up while sentences are read, so that memory grows with the number of senses.

Shapes: S senses, V choices of layers that are compared (else 1), H width.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from finetune.cli.output import (
    open_records,
    print_table,
    quiet_libraries,
    refuse_options,
    require_free,
    show,
    write_run,
)
from finetune.config.values import conforms
from finetune.data.json_files import read_object
from finetune.embeddings.commands import PREDICT_OPTIONS, layer_numbers
from finetune.embeddings.disambiguation import (
    Disambiguator,
    SenseCollector,
    SensePrediction,
    choose_prior,
    first_senses,
    sense_scores,
)
from finetune.embeddings.sense_data import marked_sentence, read_sense_file, read_senses
from finetune.embeddings.vectors import Array
from finetune.embeddings.wordnet import Inventory, pos_of, read_inventory
from finetune.inference.embed import Embedder, WordSettings
from finetune.runtime.files import replace_folder
from finetune.runtime.progress import Reporter
from finetune.runtime.records import write_records
from finetune.types import SenseTarget, TokenExample, UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.cli.predict import Predict
    from finetune.embeddings.commands import Wsd

SENSES_FILE = "senses.json"
VECTORS_FILE = "senses.safetensors"
FORMAT = 1
"""Version of these files."""
BASELINES = {"first_sense": False, "most_frequent": True}
"""The baselines by the name of their files and scores, and whether they count training senses."""


@dataclass(frozen=True, kw_only=True)
class SenseSettings(WordSettings):
    """The settings of sense vectors and decisions.

    ``layers`` may also be ``"auto"``, which tries every layer and the mean of the last four on the
    validation split; so does ``prior`` None for the prior. ``Disambiguator`` explains the others.
    """

    prior: float | None = None
    gloss_weight: float = 0.0
    inventory: str | None = None


class Choice(NamedTuple):
    """A choice of layers, and its F1 on the validation split with its best prior."""

    layers: tuple[int, ...]
    prior: float
    f1: float


class WordSenses:
    """Sense vectors of an annotated corpus, and predictions with them.

    Use ``fit`` or ``load``.

    Examples:
        >>> data = read_senses("examples/data/senses")  # doctest: +SKIP
        >>> settings = SenseSettings(model="minilm", inventory="examples/data/senses/wordnet")
        >>> senses = WordSenses.fit(settings, data.splits["train"])  # doctest: +SKIP
        >>> targets, predictions = senses.predict(data.splits["test"])  # doctest: +SKIP
        >>> predictions[0].sense  # doctest: +SKIP
        'bank%1:17:01::'
    """

    def __init__(self, settings: SenseSettings, model: Disambiguator, embedder: Embedder) -> None:
        self.settings, self.model, self.embedder = settings, model, embedder
        self.choices: list[Choice] = []
        """The choices of layers that ``fit`` compared on the validation split, in order."""
        self.num_without_vector = 0
        """Number of targets whose words have no subword."""

    @classmethod
    def fit(
        cls,
        settings: SenseSettings,
        train: Sequence[TokenExample],
        validation: Sequence[TokenExample] = (),
        *,
        reporter: Reporter | None = None,
        **options: Any,
    ) -> WordSenses:
        """Fit sense vectors to annotated sentences (equation 11.8).

        Args:
            settings: The settings. Without a validation split, ``layers`` cannot be ``"auto"``,
                and a prior of None is 0.
            train: Sentences with gold senses.
            validation: Sentences with gold senses, to choose layers and prior on.
            reporter: Shows the progress.
            options: More arguments of ``Embedder``.

        Raises:
            UserError: No target has gold, settings do not fit together, or a file cannot be read.
        """
        inventory = None if settings.inventory is None else read_inventory(settings.inventory)
        if settings.gloss_weight and inventory is None:
            raise UserError("glosses come from an inventory: add --inventory FOLDER.")
        if settings.layers == "auto" and not validation:
            raise UserError(
                "--layers auto chooses on a validation split: add validation=FILE to --data, or "
                "name the layers."
            )
        if not any(target.senses for example in train for target in example.targets):
            raise UserError("no target of the training data has gold senses.")
        reporter = reporter or Reporter(quiet=True)
        source = _Source.of(settings, options)
        models = source.fit(settings, inventory, train, reporter)
        choices = []
        if validation:
            targets, vectors = source.vectors(validation, reporter, "validation")
            glosses = source.glosses(models[0], targets)
        for view, model in enumerate(models) if validation else ():
            cosines = _cosines(model, targets, vectors, glosses, view)
            if settings.prior is None:
                models[view], by_prior = choose_prior(model, targets, cosines)
            else:
                predicted = list(map(model.predict, targets, cosines))
                by_prior = {model.prior: sense_scores(targets, predicted).get("f1", 0.0)}
            prior = models[view].prior
            choices.append(Choice(source.views[view], prior, by_prior[prior]))
        best = max(range(len(models)), key=lambda view: choices[view].f1 if choices else 0.0)
        settings = replace(settings, prior=models[best].prior)
        embedder = source.embedder
        if settings.layers == "auto":
            settings = replace(settings, layers=choices[best].layers)
            embedder.layers, embedder.combine = list(choices[best].layers), "mean"
        fitted = cls(settings, models[best], embedder)
        fitted.choices = choices
        return fitted

    def predict(
        self, examples: Iterable[TokenExample], *, reporter: Reporter | None = None
    ) -> tuple[list[SenseTarget], list[SensePrediction]]:
        """Return the targets of sentences in order, and the prediction for each."""
        source = _Source(self.embedder, [tuple(self.embedder.layers)])
        targets, vectors = source.vectors(examples, reporter or Reporter(quiet=True), "predict")
        self.num_without_vector += sum(vector is None for vector in vectors)
        cosines = _cosines(self.model, targets, vectors, source.glosses(self.model, targets), 0)
        predictions = list(map(self.model.predict, targets, cosines))
        return targets, predictions

    def save(self, folder: Path) -> None:
        """Write the sense vectors, their counts and the settings into a folder."""
        model = self.model
        rows = np.array(list(model.vectors.values()), dtype=np.float32)
        (folder / VECTORS_FILE).write_bytes(save({"vectors": rows}))
        content = {
            "format": FORMAT,
            "settings": asdict(self.settings),
            "weights": self.embedder.settings["weights"],
            "senses": list(model.vectors),
            "counts": [[*lemma, dict(each)] for lemma, each in model.counts.items()],
        }
        text = json.dumps(content, ensure_ascii=False)
        (folder / SENSES_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls, folder: str | Path, *, inventory: str | None = None, **options: Any
    ) -> WordSenses:
        """Load a folder that ``save`` wrote.

        Args:
            folder: The folder.
            inventory: The folder of WordNet's files if they have moved.
            options: More arguments of ``Embedder``.

        Raises:
            UserError: The folder has no sense vectors, or its model has changed.
        """
        folder = Path(folder)
        path = folder / SENSES_FILE
        if not path.is_file():
            raise UserError(f"{folder}: no {SENSES_FILE} in it: name a run of finetune wsd.")
        types = {"settings": dict, "weights": str, "senses": list[str], "counts": list}
        content = read_object(path, {"format": int} | types)
        if content["format"] != FORMAT:
            raise UserError(f"{path}: of another version of finetune: fit the senses again.")
        try:
            settings = SenseSettings.restored(content["settings"])
            settings = replace(settings, inventory=inventory or settings.inventory)
            counts = {(lemma, pos): by_sense for lemma, pos, by_sense in content["counts"]}
            if not all(conforms(each, dict[str, int]) for each in counts.values()):
                raise TypeError("counts are no numbers")
            rows = load_file(folder / VECTORS_FILE)["vectors"]
            vectors = dict(zip(content["senses"], rows, strict=True))
        except (TypeError, ValueError, KeyError, SafetensorError, OSError) as error:
            raise UserError(f"{folder}: damaged ({error}): fit the senses again.") from error
        embedder = _Source.of(settings, options).embedder
        if content["weights"] != embedder.settings["weights"]:
            raise UserError(
                f"{folder}: {settings.model} has other weights than it was fitted with."
            )
        listed = None if settings.inventory is None else read_inventory(settings.inventory)
        return cls(settings, _disambiguator(settings, vectors, counts, listed), embedder)


class _Source(NamedTuple):
    """An embedder of words, and the choices of layers [V] whose means it gives."""

    embedder: Embedder
    views: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, settings: SenseSettings, options: dict[str, Any]) -> _Source:
        auto = settings.layers == "auto"
        embedder = replace(settings, layers="last" if auto else settings.layers).embedder(**options)
        if not auto:
            return cls(embedder, [tuple(embedder.layers)])
        embedder.layers = list(range(embedder.encoder.num_layers + 1))
        embedder.combine = "none"
        layers = embedder.layers
        last4 = [tuple(layers[-4:])] if len(layers) > 4 else []
        return cls(embedder, [*((layer,) for layer in layers), *last4])

    def fit(
        self,
        settings: SenseSettings,
        inventory: Inventory | None,
        train: Sequence[TokenExample],
        reporter: Reporter,
    ) -> list[Disambiguator]:
        """Return a model for each choice of layers."""
        senses = SenseCollector()
        for target, vector in self._target_vectors(train, reporter, "sense vectors"):
            senses.add(target, vector)
        vectors = senses.vectors()
        by_view = (
            {sense: own[view] for sense, own in vectors.items()} for view in range(len(self.views))
        )
        return [_disambiguator(settings, each, senses.counts, inventory) for each in by_view]

    def vectors(
        self, examples: Iterable[TokenExample], reporter: Reporter, title: str
    ) -> tuple[list[SenseTarget], list[Array | None]]:
        """Return the targets of sentences and their vectors [V, H], None without subwords."""
        pairs = list(self._target_vectors(examples, reporter, title))
        return [target for target, _ in pairs], [vector for _, vector in pairs]

    def glosses(self, model: Disambiguator, targets: Iterable[SenseTarget]) -> dict[str, Array]:
        """Return the vector [V, H] of each candidate's gloss, the mean over its words."""
        if not model.gloss_weight or model.inventory is None:
            return {}
        candidates = {sense: None for target in targets for sense in model.candidates(target)}
        glosses = model.inventory.glosses([s for s in candidates if s in model.inventory])
        embeddings = self.embedder.encode(glosses.values())
        pairs = zip(glosses, embeddings, strict=True)
        return {sense: self._of_views(embedding.vectors) for sense, embedding in pairs}

    def _target_vectors(
        self, examples: Iterable[TokenExample], reporter: Reporter, title: str
    ) -> Iterator[tuple[SenseTarget, Array | None]]:
        total = len(examples) if isinstance(examples, Sequence) else 0
        pending: deque[TokenExample] = deque()

        def inputs() -> Iterator[TokenExample]:
            for example in examples:
                pending.append(example)
                yield example

        with reporter as shown:
            shown.start(title, total, unit="sentence")
            for done, embedding in enumerate(self.embedder.encode(inputs()), 1):
                example = pending.popleft()
                words = [list(example.words[t.start : t.end]) for t in example.targets]
                subwords = self.embedder.tokenizer.raw_word_subwords(words) if words else []
                for target, by_word in zip(example.targets, subwords, strict=True):
                    read = [target.start + n for n, each in enumerate(by_word) if each]
                    yield target, self._of_views(embedding.vectors[read]) if read else None
                shown.update(done)

    def _of_views(self, vectors: Array) -> Array:
        mean = vectors.mean(axis=0)
        if len(self.views) == 1:
            return np.asarray(mean[None])
        return np.stack([mean[list(layers)].mean(axis=0) for layers in self.views])


def _disambiguator(
    settings: SenseSettings, vectors: Any, counts: Any, inventory: Inventory | None
) -> Disambiguator:
    return Disambiguator(
        vectors, counts, inventory, settings.prior or 0.0, gloss_weight=settings.gloss_weight
    )


def _cosines(
    model: Disambiguator,
    targets: Sequence[SenseTarget],
    vectors: Sequence[Array | None],
    glosses: dict[str, Array],
    view: int,
) -> list[dict[str, float]]:
    model = replace(model, glosses={sense: vector[view] for sense, vector in glosses.items()})
    return [
        model.cosines(target, None if vector is None else vector[view])
        for target, vector in zip(targets, vectors, strict=True)
    ]


def fit_senses(command: Wsd) -> None:
    """Fit sense vectors, score them on all splits but train, and write the run folder."""
    out = require_free(command.out)
    data = read_senses(command.data, encoding=command.encoding)
    if "train" not in data.splits:
        raise UserError(
            f"--data {command.data}: no train split (found: {', '.join(data.splits)}): write "
            "--data train=FILE,test=FILE."
        )
    reporter, options = Reporter(), command.encoder.keywords()
    settings = SenseSettings(
        model=command.model,
        layers=layer_numbers(command.layers),
        pooling=command.pooling,
        prior=command.prior,
        gloss_weight=command.glosses,
        inventory=command.inventory,
        max_length=options.pop("max_length"),
    )
    validation = data.splits.get("validation", ())
    senses = WordSenses.fit(
        settings, data.splits["train"], validation, reporter=reporter, **options
    )
    for note in data.notes:
        show(note, error=True)
    _report_unknown(senses, [t for rows in data.splits.values() for e in rows for t in e.targets])
    metrics: dict[str, dict[str, float]] = {}
    with replace_folder(out) as folder:
        for split, examples in data.splits.items():
            if split == "train":
                continue
            before = senses.num_without_vector
            targets, predictions = senses.predict(examples, reporter=reporter)
            records = map(SensePrediction.record, predictions, targets)
            write_records(folder / f"predictions.{split}.jsonl", records)
            scores = sense_scores(targets, predictions)
            for name, trained in BASELINES.items():
                found = first_senses(senses.model, targets, trained=trained)
                records = map(SensePrediction.record, found, targets)
                write_records(folder / f"{name}.{split}.jsonl", records)
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
            "data": command.data,
            **asdict(senses.settings),
            "fingerprint": data.fingerprint,
        }
        content: dict[str, Any] = dict(metrics)
        if command.layers == "auto":
            content["choices"] = [choice._asdict() for choice in senses.choices]
        write_run(folder, config, content)
    _print_scores(command, senses, metrics)


def _print_scores(command: Wsd, senses: WordSenses, metrics: dict[str, dict[str, float]]) -> None:
    if command.layers == "auto":
        rows = [(",".join(map(str, each.layers)), each.prior, each.f1) for each in senses.choices]
        print_table(("layers", "prior", "validation f1"), rows)
        show()
    vectors = quantity(len(senses.model.vectors), "sense")
    show(f"{vectors} with vectors, prior {senses.model.prior:g}")
    names = ("f1", "precision", "recall", *(f"{name}_f1" for name in BASELINES))
    names = (*names, "targets", "backed_off", "unanswered", "without_subwords")
    if table := [(split, *map(scores.get, names)) for split, scores in metrics.items()]:
        print_table(("split", *(name.replace("_", " ") for name in names)), table)
    show(f"run folder: {command.out}")


def predict_senses(command: Predict) -> None:
    """Write the senses of the targets of --file, or print the senses of words in a --text."""
    refuse_options(command, (*PREDICT_OPTIONS, "text", "inventory"), "a run of wsd")
    quiet_libraries()
    run, file = Path(command.folder), command.file or ""
    examples = [] if command.text else list(read_sense_file(file, command.encoding))
    senses = WordSenses.load(run, inventory=command.inventory, max_tokens=command.max_tokens)
    if command.text:
        if command.out is not None:
            raise UserError("--text prints the senses of a sentence: leave --out out.")
        for text in command.text:
            _show_senses(senses, text)
        return
    targets, predictions = senses.predict(examples, reporter=Reporter())
    _report_unknown(senses, targets)
    with open_records(command.out, [Path(file), *run.glob("*")]) as write:
        for record in map(SensePrediction.record, predictions, targets):
            write(record)
    if number := senses.num_without_vector:
        show(f"targets without subwords, answered by the first sense: {number:,}", error=True)
    if scores := sense_scores(targets, predictions):
        show("  ".join(f"{name} {value:.4f}" for name, value in scores.items()), error=True)


def _show_senses(senses: WordSenses, text: str) -> None:
    inventory, counts = senses.model.inventory, senses.model.counts

    def known(lemma: str, pos: str) -> bool:
        listed = inventory is not None and (lemma, pos) in inventory.senses
        return listed or (lemma, pos) in counts

    targets, predictions = senses.predict([marked_sentence(text, known)])
    by_word: dict[tuple[int, int], list[tuple[SenseTarget, SensePrediction]]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        by_word.setdefault((target.start, target.end), []).append((target, prediction))
    for number, own in enumerate(by_word.values()):
        scored = {s: score for _, prediction in own for s, score in prediction.scores.items()}
        best = sorted(scored, key=lambda sense: -scored[sense])
        # senses without vectors follow in the order of the inventory
        listed = [sense for target, _ in own for sense in senses.model.candidates(target)]
        scores = {sense: scored.get(sense) for sense in [*best, *listed]}
        definitions = {} if inventory is None else inventory.definitions(scores)
        show("\n" * (number > 0) + own[0][0].key)
        print_table(
            ("sense", "part of speech", "score", "gloss"),
            [(s, pos_of(s), score, definitions.get(s)) for s, score in scores.items()],
        )
    if inventory is None:
        note = "glosses come from WordNet: name the folder of its files, --inventory FOLDER."
        show(note, error=True)


def _report_unknown(senses: WordSenses, targets: Sequence[SenseTarget]) -> None:
    if (inventory := senses.model.inventory) is None:
        return
    if unknown := [s for target in targets for s in target.senses if s not in inventory]:
        names = abbreviated(sorted({*unknown}), 4)
        show(
            f"{quantity(len(unknown), 'gold sense')} are not in the inventory ({names}): it may be "
            "of another version of WordNet.",
            error=True,
        )
