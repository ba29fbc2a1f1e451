"""`finetune similarity`: cosines of pairs, and their correlation with gold judgments.

Compares texts, words in context, and words out of context. A word out of context is read alone,
between the special tokens, or is the mean over contexts from a corpus (Bommasani, Davis & Cardie
2020, "Interpreting pretrained contextualized representations via reductions to static embeddings").

Tables of semantic textual similarity pool the pairs of all subsets ("all"), or average the scores
of the subsets ("mean"): the names of the scores say which.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.cli.output import open_records, print_tables, show
from finetune.data.running_text import sample_lines, text_sources
from finetune.data.texts import Characters
from finetune.data.word_splitting import split_words
from finetune.embeddings.commands import open_embedder
from finetune.embeddings.pairs import SimilarityData, read_similarity
from finetune.embeddings.vectors import Array, ExpectedCosine, Standardizer, cosine
from finetune.evaluation.kinds import KINDS, scores_of
from finetune.evaluation.predictions import to_row
from finetune.evaluation.significance import Counts, Estimate, estimate
from finetune.inference.embed import Embedder
from finetune.runtime.progress import Reporter
from finetune.types import TextExample, TextPrediction, UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Similarity

LEAST_PAIRS = 3
"""Pairs from which a correlation is computed."""
NUM_CONTEXTS = 5
"""Contexts of a word."""
NUM_LINES = 1000
"""Lines of a corpus that vectors are standardized over."""
CONTEXT_WINDOW = 10
"""Words on each side of a word in a context from a corpus."""

Words = tuple[str, ...]


@dataclass(frozen=True)
class Cosines:
    """The cosine of each pair [N], and the expected cosine of any two of the compared units.

    ``layer`` is None if the layers are combined.
    """

    layer: int | None
    standardized: bool
    values: Array
    expected: float

    @property
    def name(self) -> str:
        """The name of these vectors in tables."""
        kind = "standardized" if self.standardized else "raw"
        return kind if self.layer is None else f"layer {self.layer}, {kind}"


class Use(NamedTuple):
    """A word, or phrase, in a context: the words to read, and the position of its first one."""

    words: Words
    position: int


Contexts = Mapping[Words, Sequence[Use]]
"""Uses of words in a corpus, by the word in lower case."""


def compare_pairs(
    embedder: Embedder,
    pairs: Sequence[TextExample],
    *,
    standardizer: Standardizer | None = None,
    window: int | None = None,
    contexts: Contexts | None = None,
    reporter: Reporter | None = None,
) -> list[Cosines]:
    """Return the cosines of all pairs, raw and, with a standardizer, standardized.

    Args:
        embedder: Its ``unit`` is ``"text"``, or ``"word"`` to compare the words that the pairs
            name; if they name none, all words of their texts. With ``combine="none"`` each layer
            has separate cosines.
        pairs: The pairs.
        standardizer: Fitted on a corpus with the same embedder settings.
        window: The number of words to read on each side of a word in context; None reads all.
        contexts: Contexts from ``find_contexts`` for words that are compared out of context. Words
            without contexts are read alone.
        reporter: Shows the progress.
    """
    if standardizer is not None:
        standardizer.check(embedder.settings)
    if contexts:
        vectors = _static_vectors(embedder, pairs, contexts)
    else:
        vectors = _vectors(embedder, pairs, window)
    kinds: list[Callable[[Array], Array]] = [np.asarray]
    if standardizer is not None:
        kinds.append(standardizer)
    means = [ExpectedCosine() for _ in kinds]
    values: list[list[Array]] = [[] for _ in kinds]
    with reporter or Reporter(quiet=True) as shown:
        shown.start("similarity", len(pairs), unit="pair")
        for number, both in enumerate(zip(vectors, vectors, strict=True), 1):
            for kind, scale in enumerate(kinds):
                sides = scale(np.stack(both))
                means[kind].add(sides)
                values[kind].append(cosine(sides[0], sides[1]))
            shown.update(number)
    layers = embedder.layers if embedder.combine == "none" else [None]
    return [
        Cosines(layer, kind > 0, by_layer, float(expected))
        for kind in range(len(kinds))
        for layer, by_layer, expected in zip(
            layers,
            np.array(values[kind]).reshape(-1, len(layers)).T,
            np.atleast_1d(means[kind].value),
            strict=True,
        )
    ]


def fit_standardizer(
    embedder: Embedder, corpus: Iterable[str], *, most: int, seed: int = 0
) -> Standardizer:
    """Fit to the vectors of a sample of at most ``most`` lines of a corpus."""
    lines = sample_lines(corpus, most, seed)
    return Standardizer.fit((e.vectors for e in embedder.encode(lines)), embedder.settings)


def compared_words(pair: TextExample) -> tuple[Words, Words]:
    """Return the compared words of both sides; UserError if a side has none."""
    texts = _texts(pair)
    targets = pair.targets or tuple((0, len(text)) for text in texts)
    first, second = (
        tuple(split_words(text[start:end])[0])
        for text, (start, end) in zip(texts, targets, strict=True)
    )
    if not (first and second):
        raise UserError(f"{pair.where}: {texts[bool(first)]!r:.60} holds no word.")
    return first, second


def _texts(pair: TextExample) -> tuple[str, str]:
    return pair.text, pair.pair or ""


def words_key(words: Iterable[str]) -> Words:
    """Return words as they are looked for in a corpus."""
    return tuple(map(str.lower, words))


def find_contexts(
    corpus: Iterable[str], words: Iterable[Words], most: int, window: int = CONTEXT_WINDOW
) -> Contexts:
    """Find the first ``most`` uses of words in a corpus, in any case.

    A compared word may be a phrase of several words. ``window`` is the number of words of the
    corpus on each side.
    """
    by_first: dict[str, set[Words]] = {}
    for phrase in words:
        by_first.setdefault(phrase[0], set()).add(phrase)
    found: dict[Words, list[Use]] = {}
    for line in corpus:
        tokens = split_words(line)[0]
        in_lower_case = words_key(tokens)
        for start, token in enumerate(in_lower_case):
            for phrase in by_first.get(token, ()):
                end = start + len(phrase)
                if in_lower_case[start:end] != phrase:
                    continue
                uses = found.setdefault(phrase, [])
                if len(uses) < most:
                    left = max(0, start - window)
                    uses.append(Use(tuple(tokens[left : end + window]), start - left))
    return found


def _vectors(
    embedder: Embedder, pairs: Sequence[TextExample], window: int | None
) -> Iterator[Array]:
    sides = (
        (pair.where, text, target)
        for pair in pairs
        for text, target in zip(_texts(pair), pair.targets or (None, None), strict=True)
    )
    if embedder.unit == "text":
        for embedding in embedder.encode(text for _, text, _ in sides):
            yield embedding.vectors[0]
        return
    chosen: deque[slice] = deque()

    def inputs() -> Iterator[Words]:
        for where, text, target in sides:
            words, place = _with_context(where, text, target, window)
            chosen.append(place)
            yield words

    for embedding in embedder.encode(inputs()):
        yield embedding.vectors[chosen.popleft()].mean(axis=0)


def _with_context(
    where: str, text: str, target: Characters | None, window: int | None
) -> tuple[Words, slice]:
    words, offsets = split_words(text)
    start, end = target or (0, len(text))
    inside = [n for n, (first, last) in enumerate(offsets) if first < end and start < last]
    if not inside:
        raise UserError(f"{where}: {text[start:end]!r:.60} holds no word to compare.")
    left = 0 if window is None else max(0, inside[0] - window)
    right = len(words) if window is None else inside[-1] + 1 + window
    return tuple(words[left:right]), slice(inside[0] - left, inside[-1] + 1 - left)


def _static_vectors(
    embedder: Embedder, pairs: Sequence[TextExample], contexts: Contexts
) -> Iterator[Array]:
    sides = list(chain.from_iterable(map(compared_words, pairs)))
    uses = {words: contexts.get(words_key(words)) or [Use(words, 0)] for words in sides}
    flat = [(words, use) for words, each in uses.items() for use in each]
    sums: dict[Words, Array] = {}
    embeddings = embedder.encode(use.words for _, use in flat)
    for (words, use), embedding in zip(flat, embeddings, strict=True):
        place = slice(use.position, use.position + len(words))
        vector = embedding.vectors[place].mean(axis=0) / len(uses[words])
        sums[words] = sums[words] + vector if words in sums else vector
    return (sums[words] for words in sides)


def correlations(
    gold: Sequence[float],
    predicted: Sequence[float],
    subsets: Sequence[str] | None = None,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return the rank and linear correlation with gold, with bootstrap intervals.

    With subsets ``spearman_all`` pools all pairs and ``spearman_mean`` is the mean over the
    subsets, and so for ``pearson``; an interval of a mean resamples all pairs.
    """
    scores = {}
    for name, counts in _counts(gold, predicted).items():
        if subsets is None:
            kinds = {name: counts}
        else:
            numbers = np.unique(list(subsets), return_inverse=True)[1]
            kinds = {f"{name}_all": counts, f"{name}_mean": replace(counts, subset=numbers)}
        for key, each in kinds.items():
            scores[key] = estimate([each], num_resamples=num_resamples, seed=seed)
    return scores


def _counts(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, Counts]:
    pairs, found = KINDS["number"].pair(gold, predicted), {}
    for name in ("spearman", "pearson"):
        metric, ranks = KINDS["number"].metrics[name], name == "spearman"
        rows = np.array([gold, predicted], dtype=np.float64).T if ranks else metric.counts(pairs)
        found[name] = Counts(rows.astype(np.float64), metric.value, ranks)
    return found


def scores_by_subset(
    gold: Sequence[float], predicted: Sequence[float], subsets: Sequence[str]
) -> list[tuple[str, int, float, float]]:
    """Return name, number of pairs, Spearman and Pearson of each subset, in order of occurrence."""
    rows = []
    for name in dict.fromkeys(subsets):
        chosen = np.array(subsets) == name
        sides = (np.array(side)[chosen].tolist() for side in (gold, predicted))
        scores = scores_of("number", *sides)
        rows.append((name, int(chosen.sum()), scores["spearman"], scores["pearson"]))
    return rows


def compare(command: Similarity) -> None:
    """Print the scores of the command, or the cosines of pairs without gold."""
    data = _read(command)
    in_context = data.pairs[0].targets is not None
    unit: Any = command.unit
    if unit == "auto":
        unit = "word" if in_context or command.contexts else "text"
    _check_unit(command, unit, in_context)
    embedder = open_embedder(command, command.layers, unit=unit, combine=command.combine)
    cosines = compare_pairs(
        embedder,
        data.pairs,
        standardizer=_standardizer(command, embedder),
        window=command.window,
        contexts=_contexts(command, data),
        reporter=Reporter(quiet=command.format != "table"),
    )
    if number := embedder.num_windowed:
        limit = f"{number:,} over {embedder.max_length} tokens"
        show(f"inputs read in several windows: {limit}", error=True)
    if command.out is not None:
        _write(command.out, data, cosines[-1])
    record = _record(command, data, cosines, unit)
    if command.format == "json":
        show(json.dumps(record, indent=2, ensure_ascii=False))
    elif "scores" in record["results"][0]:
        _print_scores(command, data, cosines, record["results"])
    else:
        names = ["cosine"] if len(cosines) == 1 else [each.name for each in cosines]
        rows = [
            (*(float(each.values[n]) for each in cosines), _shown(pair, 0), _shown(pair, 1))
            for n, pair in enumerate(data.pairs)
        ]
        print_tables(command.format, ("", (*names, "first", "second"), rows))


def _check_unit(command: Similarity, unit: str, in_context: bool) -> None:
    if command.window is not None and (command.window < 0 or not in_context):
        raise UserError("--window must be 0 or more, and needs data that name words in texts.")
    if unit == "text" and (command.contexts is not None or command.window is not None):
        raise UserError("--contexts and --window are for words: write --unit word.")
    if in_context and command.contexts is not None:
        raise UserError(
            "--contexts is for single words, and these data have contexts: leave it out."
        )


def _read(command: Similarity) -> SimilarityData:
    if command.data is None:
        example = TextExample(0, command.text or "", command.pair, where="--text")
        return SimilarityData("", [example])
    data = read_similarity(command.data, split=command.split, **command.reading)
    for note in data.notes:
        show(note, error=True)
    return data


def _lines(command: Similarity, corpus: str) -> Iterator[str]:
    return (line for source in text_sources(corpus, command.encoding) for line in source.lines())


def _standardizer(command: Similarity, embedder: Embedder) -> Standardizer | None:
    if command.standardize is None:
        return None
    lines = _lines(command, command.standardize)
    found = fit_standardizer(embedder, lines, most=NUM_LINES, seed=command.seed)
    show(
        f"standardized over {quantity(found.count, embedder.unit)} of {command.standardize}"
        + (f"; constant dimensions: {found.num_constant}" if found.num_constant else ""),
        error=True,
    )
    return found


def _contexts(command: Similarity, data: SimilarityData) -> Contexts | None:
    if command.contexts is None:
        return None
    words = {words_key(each) for pair in data.pairs for each in compared_words(pair)}
    lines = _lines(command, command.contexts)
    found = find_contexts(lines, words, NUM_CONTEXTS)
    missing = sum(each not in found for each in words)
    show(
        f"{missing:,} of {quantity(len(words), 'word')} do not occur in {command.contexts}"
        + ("; they are read alone" if missing else ""),
        error=True,
    )
    return found


def _write(path: str, data: SimilarityData, cosines: Cosines) -> None:
    with open_records(path) as write:
        for number, pair in enumerate(data.pairs):
            details: dict[str, Any] = {}
            if data.subsets is not None:
                details["subset"] = data.subsets[number]
            if pair.targets is not None:
                details["targets"] = [list(target) for target in pair.targets]
            if isinstance(pair.label, str):
                details["name"] = pair.label
            gold = pair if isinstance(pair.label, float) else replace(pair, label=None)
            predicted = TextPrediction(pair.id, float(cosines.values[number]))
            write(to_row(predicted, gold) | details)
    show(f"wrote {path}: {quantity(len(data.pairs), 'pair')}", error=True)


def _record(
    command: Similarity, data: SimilarityData, cosines: Sequence[Cosines], unit: str
) -> dict[str, Any]:
    gold, subsets = data.gold, data.subsets
    views = []
    for each in cosines:
        predicted = each.values.tolist()
        view: dict[str, Any] = {
            "layer": each.layer,
            "standardized": each.standardized,
            "expected_cosine": each.expected,
        }
        if gold is None or len(gold) < LEAST_PAIRS:
            view["cosines"] = predicted
        else:
            scores = correlations(
                gold, predicted, subsets, num_resamples=command.resamples, seed=command.seed
            )
            view["scores"] = {name: score._asdict() for name, score in scores.items()}
            if subsets is not None:
                columns = ("subset", "pairs", "spearman", "pearson")
                rows = scores_by_subset(gold, predicted, subsets)
                view["subsets"] = [dict(zip(columns, row, strict=True)) for row in rows]
        views.append(view)
    options = ("layers", "combine", "pooling", "standardize")
    return {
        "model": command.model,
        "data": command.data,
        "split": data.split or None,
        "unit": unit,
        **{name: getattr(command, name) for name in options},
        "pairs": len(data.pairs),
        "resamples": command.resamples,
        "seed": command.seed,
        "results": views,
    }


def _print_scores(
    command: Similarity, data: SimilarityData, cosines: list[Cosines], views: list[dict[str, Any]]
) -> None:
    split = f" ({data.split})" if data.split else ""
    command.note(
        f"{quantity(len(data.pairs), 'pair')} of {command.data}{split}, "
        f"{command.resamples:,} resamples, seed {command.seed}"
    )
    columns: list[str] = ["vectors"]
    for metric in views[0]["scores"]:
        intervals = () if command.format == "table" else (f"{metric} low", f"{metric} high")
        columns += [metric, *intervals]
    scores = [
        (each.name, *_cells(view["scores"].values(), command.format), each.expected)
        for each, view in zip(cosines, views, strict=True)
    ]
    tables: list[Any] = [("", (*columns, "expected cosine"), scores)]
    for each, view in zip(cosines, views, strict=True):
        if "subsets" in view:
            rows = [tuple(row.values()) for row in view["subsets"]]
            tables.append((f"{each.name}, by subset", tuple(view["subsets"][0]), rows))
    print_tables(command.format, *tables)


def _cells(scores: Iterable[dict[str, float]], format: str) -> Iterator[Any]:
    for score in scores:
        if format == "table":
            yield "{value:.4f} ({low:.4f} to {high:.4f})".format(**score)
        else:
            yield from (score[name] for name in ("value", "low", "high"))


def _shown(pair: TextExample, side: int) -> str:
    text = _texts(pair)[side]
    if pair.targets is not None:
        start, end = pair.targets[side]
        return text[start:end]
    return text if len(text) <= 40 else text[:39] + "…"
