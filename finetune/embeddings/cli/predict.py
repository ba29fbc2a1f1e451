"""`finetune predict` with the runs of `wsd` and of `similarity --threshold`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.output import open_records, print_table, quiet_libraries, refuse_options, show
from finetune.types import UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.cli.predict import Predict
    from finetune.embeddings.data.similarity_pairs import SimilarityPair
    from finetune.embeddings.evaluation.word_senses import SensePrediction
    from finetune.embeddings.inference.word_senses import WordSenses
    from finetune.types import SenseTarget, TextPrediction

READING = ("folder", "file", "out", "encoding", "batching", "max_tokens")
"""The options of `predict` that apply to all runs."""


def predict_senses(command: Predict) -> None:
    """Write the senses of the targets of --file, or print the senses of words in a --text."""
    refuse_options(command, (*READING, "text", "inventory"), "a run of wsd")
    quiet_libraries()
    from finetune.embeddings.data.word_senses import read_sense_file
    from finetune.embeddings.evaluation.word_senses import sense_scores
    from finetune.embeddings.inference.word_senses import WordSenses
    from finetune.runtime.progress import Reporter

    run, file = Path(command.folder), command.file or ""
    examples = [] if command.text else list(read_sense_file(file, command.encoding))
    senses = WordSenses.load(
        run,
        inventory=command.inventory,
        batching=command.batching,
        max_tokens=command.max_tokens,
    )
    if command.text:
        if command.out is not None:
            raise UserError("--text prints the senses of a sentence: leave --out out.")
        for text in command.text:
            show_senses(senses, text)
        return
    targets, predictions = senses.predict(examples, reporter=Reporter())
    report_unknown(senses, targets)
    with open_records(command.out, [Path(file), *run.glob("*")]) as write:
        for record in sense_records(targets, predictions):
            write(record)
    if number := senses.num_without_vector:
        show(f"targets without subwords, answered by the first sense: {number:,}", error=True)
    if scores := sense_scores(targets, predictions):
        show("  ".join(f"{name} {value:.4f}" for name, value in scores.items()), error=True)


def show_senses(senses: WordSenses, text: str) -> None:
    """Print the senses of the marked words of a sentence, with scores and definitions."""
    from finetune.embeddings.data.word_senses import marked_sentence
    from finetune.embeddings.data.wordnet import pos_of

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


def sense_records(
    targets: Sequence[SenseTarget], predictions: Sequence[SensePrediction]
) -> Iterator[dict[str, Any]]:
    """Yield the prediction of each target with its gold."""
    for target, prediction in zip(targets, predictions, strict=True):
        yield prediction.record(target)


def report_unknown(senses: WordSenses, targets: Sequence[SenseTarget]) -> None:
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


def predict_pairs(command: Predict) -> None:
    """Write whether the words of each pair of --file have the same sense, by a run's threshold."""
    refuse_options(command, (*READING, "columns"), "a run of similarity --threshold")
    quiet_libraries()
    from finetune.embeddings.data.similarity_pairs import read_similarity
    from finetune.embeddings.inference.word_in_context import WordInContext
    from finetune.runtime.progress import Reporter

    run, file = Path(command.folder), command.file or ""
    pairs = read_similarity(file, **command.reading).pairs
    model = WordInContext.load(run, batching=command.batching, max_tokens=command.max_tokens)
    predicted = model.predict(pairs, reporter=Reporter())
    with open_records(command.out, [Path(file), *run.glob("*")]) as write:
        for record in pair_records(pairs, predicted):
            write(record)
    if scores := pair_scores(pairs, predicted):
        show(f"accuracy {scores['accuracy']:.4f}", error=True)


def pair_records(
    pairs: Iterable[SimilarityPair], predicted: Iterable[tuple[TextPrediction, float]]
) -> Iterator[dict[str, Any]]:
    """Yield label, cosine and gold of each pair."""
    from finetune.evaluation.predictions import to_row

    for pair, (prediction, cosine) in zip(pairs, predicted, strict=True):
        yield to_row(prediction, pair.example) | {"cosine": round(cosine, 6)}


def pair_scores(
    pairs: Sequence[SimilarityPair], predicted: Sequence[tuple[TextPrediction, float]]
) -> dict[str, float]:
    """Return the scores of the pairs with gold; nothing without gold."""
    from finetune.embeddings.inference.word_in_context import label_name
    from finetune.evaluation.metrics import text_scores

    labeled = [index for index, pair in enumerate(pairs) if pair.example.label is not None]
    gold = [label_name(pairs[index]) for index in labeled]
    return text_scores("label", gold, [predicted[i][0].label for i in labeled]) if gold else {}
