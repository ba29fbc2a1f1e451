"""`finetune wsd`: word senses by nearest neighbor among sense vectors of an annotated corpus.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", section on
word senses. The vector of a sense is the mean over its annotated uses (equation 11.8), and a word
has the sense with the nearest vector (11.9). Where no sense of a word has a vector, it has the
first sense (Melamud, Goldberger & Dagan 2016; Peters et al. 2018).

Vectors are added up while sentences are read, so that memory grows with the number of senses.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from finetune.cli.output import (
    open_rows,
    print_table,
    quiet_libraries,
    refuse_options,
    require_free,
    show,
    write_run,
)
from finetune.data.json_files import read_object
from finetune.embeddings.sense_data import (
    DATA_FILES,
    Inventory,
    marked_sentence,
    pos_of,
    read_inventory,
    read_sense_file,
    read_senses,
)
from finetune.embeddings.vectors import Array, unit_vectors
from finetune.evaluation.prediction_types import scores_of
from finetune.inference.embed import Embedder
from finetune.runtime.files import replace_folder, write_text
from finetune.runtime.progress import Reporter
from finetune.runtime.row_files import write_rows
from finetune.types import SenseTarget, TokenExample, UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.cli.predict import Predict
    from finetune.embeddings.commands import Wsd

SENSES_FILE = "senses.json"
VECTORS_FILE = "senses.safetensors"
PRIORS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
"""The weights of the prior to try on the validation split."""

PREDICT_OPTIONS = ("folder", "file", "text", "out", "encoding", "max_tokens")
"""The options of `predict` that apply to a run."""

Lemma = tuple[str, str]
"""A lemma and its part of speech."""


@dataclass(frozen=True, kw_only=True)
class SenseSettings:
    """Settings of the vectors of words (of ``Embedder``) and senses, and of the choice between
    senses."""

    model: str
    layers: str | tuple[int, ...] = "last"
    pooling: Literal["mean", "first", "max"] = "mean"
    max_length: int | None = None
    prior: float | None = None
    """λ: the score of a sense is ``cos(t, v_s) + λ log p(s | lemma)``, with p from the training
    data. If a candidate has no use, every candidate gets one more. None chooses λ on the validation
    split, and is 0 without one."""
    gloss_weight: float = 0.0
    """The vector of a sense is the vector of its uses plus this weight times the vector of its
    gloss, both at length 1 (Loureiro & Jorge 2019, LMMS)."""
    inventory: str | None = None
    """The folder of WordNet's files; None takes the senses of the training data."""

    def embedder(self, **options: Any) -> Embedder:
        """Make the embedder; ``options`` are more arguments of it."""
        shared = {name: getattr(self, name) for name in ("layers", "pooling", "max_length")}
        return Embedder(self.model, unit="word", **shared, **options)


class SensePrediction(NamedTuple):
    """The sense of a target; None if its lemma has no known sense.

    ``scores`` has all candidates with a vector, the best first. If it is empty, ``sense`` is the
    first sense of the lemma.
    """

    target: SenseTarget
    sense: str | None
    scores: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Convert the prediction to a row of a file, with the gold of the target if it has some."""
        target, best = self.target, list(self.scores.items())[:10]
        row = {
            "id": target.key,
            "senses": [] if self.sense is None else [self.sense],
            "scores": {sense: round(score, 6) for sense, score in best},
            "backed_off": not self.scores,
        }
        row |= {name: getattr(target, name) for name in ("lemma", "pos", "document", "where")}
        return row | ({"gold": list(target.senses)} if target.senses else {})


def sense_scores(predictions: Iterable[SensePrediction]) -> dict[str, float]:
    """Compute precision, recall and F1 of the targets that have gold senses, if there are any.

    The scorer of Raganato, Camacho-Collados & Navigli 2017 defines them.
    """
    scored = [prediction for prediction in predictions if prediction.target.senses]
    predicted = [() if prediction.sense is None else (prediction.sense,) for prediction in scored]
    gold = [prediction.target.senses for prediction in scored]
    return scores_of("senses", gold, predicted) if scored else {}


@dataclass(eq=False)
class WordSenses:
    """Sense vectors of an annotated corpus, and predictions with them. Use ``fit`` or ``load``.

    Examples:
        >>> data = read_senses("examples/data/senses")  # doctest: +SKIP
        >>> settings = SenseSettings(model="minilm", inventory="examples/data/senses/wordnet")
        >>> senses = WordSenses.fit(settings, data.splits["train"])  # doctest: +SKIP
        >>> predictions = senses.predict(data.splits["test"])  # doctest: +SKIP
        >>> predictions[0].sense  # doctest: +SKIP
        'bank%1:17:01::'
    """

    settings: SenseSettings
    vectors: Mapping[str, Array]
    """The vector [H] of each sense with annotated uses."""
    counts: Mapping[Lemma, Mapping[str, int]]
    """The number of uses of each sense in training, by lemma."""
    inventory: Inventory
    embedder: Embedder

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
        """Compute sense vectors from annotated sentences (equation 11.8), and choose the prior on
        the sentences of ``validation``.

        ``options`` are more arguments of ``Embedder``.

        Raises:
            UserError: No target has gold, settings do not fit together, or a file cannot be read.
        """
        inventory = read_inventory(settings.inventory)
        if settings.gloss_weight and settings.inventory is None:
            raise UserError("glosses come from an inventory: add --inventory FOLDER.")
        if not any(target.senses for example in train for target in example.targets):
            raise UserError("no target of the training data has gold senses.")
        senses = cls(settings, {}, {}, inventory, settings.embedder(**options))
        counts: defaultdict[Lemma, Counter[str]] = defaultdict(Counter)
        sums: dict[str, Array] = {}
        num_uses: Counter[str] = Counter()
        for target, vector in senses._target_vectors(train, reporter, "sense vectors"):
            if target.senses:
                counts[target.lemma, target.pos].update(target.senses)
            if vector is not None:
                sums |= {sense: sums.get(sense, 0) + vector for sense in target.senses}
                num_uses.update(target.senses)
        senses.counts = counts
        senses.vectors = {sense: sums[sense] / num_uses[sense] for sense in sorted(sums)}
        if settings.prior is None:
            cosines = senses._cosines(validation, reporter, "validation") if validation else []
            f1 = {
                prior: sense_scores(senses.decide(*pair, prior) for pair in cosines).get("f1", 0.0)
                for prior in PRIORS
            }
            prior = max(f1, key=lambda prior: (f1[prior], -prior))
            senses.settings = replace(settings, prior=prior)
        return senses

    def predict(
        self, examples: Sequence[TokenExample], *, reporter: Reporter | None = None
    ) -> list[SensePrediction]:
        """Predict the sense of each target of sentences, in order."""
        cosines = self._cosines(examples, reporter, "predict")
        return [self.decide(target, by_sense) for target, by_sense in cosines]

    def first_senses(self, targets: Iterable[SenseTarget]) -> list[SensePrediction]:
        """Predict the first sense of each target (the baseline)."""
        return [self.decide(target, {}) for target in targets]

    def candidates(self, target: SenseTarget) -> list[str]:
        """List the senses of a lemma: those of the inventory in its order, then those that only the
        training data have, by frequency."""
        lemma = target.lemma, target.pos
        listed, counts = self.inventory.senses.get(lemma, ()), self.counts.get(lemma, {})
        return list(dict.fromkeys([*listed, *sorted(counts, key=lambda s: (-counts[s], s))]))

    def cosines(
        self, target: SenseTarget, vector: Array | None, glosses: Mapping[str, Array]
    ) -> dict[str, float]:
        """Compute the cosine of a target's vector [H] with each candidate that has a vector.

        There are no cosines if no candidate has annotated uses: glosses alone do not decide.
        """
        candidates = self.candidates(target)
        if vector is None or not any(sense in self.vectors for sense in candidates):
            return {}
        cosines = {}
        for sense in candidates:
            parts = [unit_vectors(self.vectors[sense])] if sense in self.vectors else []
            if sense in glosses:
                parts.append(self.settings.gloss_weight * unit_vectors(glosses[sense]))
            if parts:
                cosines[sense] = float(unit_vectors(np.sum(parts, axis=0)) @ unit_vectors(vector))
        return cosines

    def decide(
        self, target: SenseTarget, cosines: Mapping[str, float], prior: float | None = None
    ) -> SensePrediction:
        """Choose the sense with the highest score (11.9); the most frequent one if scores tie."""
        candidates = self.candidates(target)
        if not cosines:
            return SensePrediction(target, next(iter(candidates), None), {})
        prior = (self.settings.prior or 0.0) if prior is None else prior
        counts = self.counts.get((target.lemma, target.pos), {})
        uses = {sense: counts.get(sense, 0) for sense in cosines}
        added = 0 if all(uses.values()) else 1
        total = sum(uses.values()) + added * len(uses)
        scores = {
            sense: cosine + prior * float(np.log((uses[sense] + added) / total))
            for sense, cosine in cosines.items()
        }
        order = sorted(scores, key=lambda s: (-scores[s], -uses[s], candidates.index(s)))
        return SensePrediction(target, order[0], {sense: scores[sense] for sense in order})

    def _cosines(
        self, examples: Sequence[TokenExample], reporter: Reporter | None, title: str
    ) -> list[tuple[SenseTarget, dict[str, float]]]:
        pairs = list(self._target_vectors(examples, reporter, title))
        glosses: dict[str, Array] = {}
        if self.settings.gloss_weight:
            senses = {sense: None for target, _ in pairs for sense in self.candidates(target)}
            texts = self.inventory.glosses(senses)
            embeddings = self.embedder.encode(texts.values())
            glosses = {s: e.vectors.mean(axis=0) for s, e in zip(texts, embeddings, strict=True)}
        return [(target, self.cosines(target, vector, glosses)) for target, vector in pairs]

    def _target_vectors(
        self, examples: Sequence[TokenExample], reporter: Reporter | None, title: str
    ) -> Iterator[tuple[SenseTarget, Array | None]]:
        embeddings = self.embedder.encode(examples)
        with reporter or Reporter(quiet=True) as progress:
            progress.start(title, len(examples), unit="sentence")
            for done, (example, embedding) in enumerate(zip(examples, embeddings, strict=True), 1):
                for target in example.targets:
                    words = list(example.words[target.start : target.end])
                    (subwords,) = self.embedder.tokenizer.raw_word_subwords([words])
                    rows = [target.start + n for n, ids in enumerate(subwords) if ids]
                    yield target, embedding.vectors[rows].mean(axis=0) if rows else None
                progress.update(done)

    def save(self, folder: Path) -> None:
        """Write the sense vectors, their counts and the settings into a folder."""
        vectors = {sense: vector.astype(np.float32) for sense, vector in self.vectors.items()}
        (folder / VECTORS_FILE).write_bytes(save(vectors))
        content = {
            "settings": asdict(self.settings),
            "weights": self.embedder.weights_hash,
            "counts": [[*lemma, dict(by_sense)] for lemma, by_sense in self.counts.items()],
        }
        write_text(folder / SENSES_FILE, json.dumps(content, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> WordSenses:
        """Load a folder that ``save`` wrote; ``options`` are more arguments of ``Embedder``.

        Raises:
            UserError: The folder has no sense vectors, or its model has changed.
        """
        folder = Path(folder)
        path = folder / SENSES_FILE
        if not path.is_file():
            raise UserError(f"{folder}: no {SENSES_FILE} in it: name a run of finetune wsd.")
        counts_type = list[list[str | dict[str, int]]]
        content = read_object(path, {"settings": dict, "weights": str, "counts": counts_type})
        try:
            settings = SenseSettings(**content["settings"])
            counts = {(lemma, pos): by_sense for lemma, pos, by_sense in content["counts"]}
            vectors = load_file(folder / VECTORS_FILE)
        except (TypeError, ValueError, KeyError, SafetensorError, OSError) as error:
            raise UserError(f"{folder}: damaged ({error}): fit the senses again.") from error
        embedder = settings.embedder(**options)
        if content["weights"] != embedder.weights_hash:
            raise UserError(
                f"{folder}: {settings.model} has other weights than it was fitted with."
            )
        return cls(settings, vectors, counts, read_inventory(settings.inventory), embedder)


def fit_senses(command: Wsd) -> None:
    """Compute sense vectors, score them on all splits but train, and write the run folder."""
    out = require_free(command.out)
    data = read_senses(command.data, encoding=command.encoding)
    if "train" not in data.splits:
        raise UserError(
            f"--data {command.data}: no train split (found: {', '.join(data.splits)}): write "
            "--data train=FILE,test=FILE."
        )
    reporter, options = Reporter(), command.encoder.keywords()
    shared: Any = {n: getattr(command, n) for n in ("model", "layers", "prior", "inventory")}
    shared["max_length"] = options.pop("max_length")
    settings = SenseSettings(gloss_weight=command.glosses, **shared)
    validation = data.splits.get("validation", ())
    senses = WordSenses.fit(
        settings, data.splits["train"], validation, reporter=reporter, **options
    )
    for note in data.notes:
        show(note, error=True)
    gold = {s for rows in data.splits.values() for e in rows for t in e.targets for s in t.senses}
    if (unknown := sorted(gold - senses.inventory.offsets.keys())) and command.inventory:
        title = f"{quantity(len(unknown), 'gold sense')} are not in the inventory"
        show(f"{title} ({abbreviated(unknown, 4)}): is it another version of WordNet?", error=True)
    metrics: dict[str, dict[str, float]] = {}
    with replace_folder(out) as folder:
        for split, examples in data.splits.items():
            if split == "train":
                continue
            predictions = senses.predict(examples, reporter=reporter)
            first = senses.first_senses(prediction.target for prediction in predictions)
            for name, rows in (("predictions", predictions), ("first_sense", first)):
                write_rows(folder / f"{name}.{split}.jsonl", map(SensePrediction.to_dict, rows))
            metrics[split] = sense_scores(predictions) | {
                **{f"first_sense_{name}": value for name, value in sense_scores(first).items()},
                "targets": len(predictions),
                "backed_off": sum(not prediction.scores for prediction in predictions),
                "unanswered": sum(prediction.sense is None for prediction in predictions),
            }
        senses.save(folder)
        config = {"task": "wsd", "data": command.data, **asdict(senses.settings)}
        write_run(folder, config | {"fingerprint": data.fingerprint}, metrics)
    vectors = quantity(len(senses.vectors), "sense")
    show(f"{vectors} with vectors, prior {senses.settings.prior:g}")
    names = ("f1", "precision", "recall", "first_sense_f1", "targets", "backed_off", "unanswered")
    if table := [(split, *map(scores.get, names)) for split, scores in metrics.items()]:
        print_table(("split", *(name.replace("_", " ") for name in names)), table)
    show(f"run folder: {command.out}")


def predict_senses(command: Predict) -> None:
    """Write the senses of the targets of --file, or print the senses of words in a --text."""
    refuse_options(command, PREDICT_OPTIONS, "a run of wsd")
    if command.text and command.out is not None:
        raise UserError("--text prints the senses of a sentence: leave --out out.")
    quiet_libraries()
    run, file = Path(command.folder), command.file or ""
    examples = [] if command.text else list(read_sense_file(file, command.encoding))
    senses = WordSenses.load(run, max_tokens=command.max_tokens)
    for text in command.text:
        _show_senses(senses, text)
    if command.text:
        return
    predictions = senses.predict(examples, reporter=Reporter())
    with open_rows(command.out, [Path(file), *run.glob("*")]) as write:
        for prediction in predictions:
            write(prediction.to_dict())
    scores = sense_scores(predictions) if command.reports_output else {}
    if scores:
        show("  ".join(f"{name} {value:.4f}" for name, value in scores.items()), error=True)


def _show_senses(senses: WordSenses, text: str) -> None:
    listed = senses.inventory.senses.keys() | senses.counts.keys()
    sentence = marked_sentence(text, lambda *lemma: lemma in listed)
    has_glosses = all((senses.inventory.folder / name).is_file() for name in DATA_FILES.values())
    by_word: dict[tuple[int, str], dict[str, float | None]] = {}
    for target, _, scores in senses.predict([sentence]):
        candidates = by_word.setdefault((target.start, target.key), {})
        candidates |= {sense: scores.get(sense) for sense in senses.candidates(target)}
    for number, ((_, word), candidates) in enumerate(by_word.items()):
        glosses = senses.inventory.glosses(candidates) if has_glosses else {}
        show("\n" * (number > 0) + word)
        # senses without vectors follow in the order of the inventory
        order = sorted(candidates.items(), key=lambda item: (item[1] is None, -(item[1] or 0.0)))
        rows = [
            (sense, pos_of(sense), score, glosses.get(sense, "").rpartition(" - ")[2])
            for sense, score in order
        ]
        print_table(("sense", "part of speech", "score", "gloss"), rows)
