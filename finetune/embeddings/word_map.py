"""`finetune map`: the vectors of each occurrence of a word in the plane, layer by layer.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", fig. 11.7.
The label of an occurrence is its sense, tag, entity type or that of its text. A measure says how
labels separate.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from finetune.cli.output import print_table, quiet_libraries, show
from finetune.data.files import is_pipe, open_data
from finetune.data.tables import read_file
from finetune.data.texts import read_text_file
from finetune.data.tokens import input_type_of, read_token_file
from finetune.data.word_splitting import split_words
from finetune.embeddings.sense_data import read_sense_file
from finetune.embeddings.vectors import Array, unit_vectors
from finetune.reporting.rendering import NUM_COLORS, PageTable, Section, chart, page_of
from finetune.runtime.progress import Reporter
from finetune.types import Example, TextExample, TokenExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Map

Method = Literal["tsne", "pca"]
CONTEXT = 100
"""Words before and after an occurrence that the encoder reads."""
SHOWN = 30
"""Words before and after an occurrence that people see."""
_TAG_PREFIX = re.compile(r"^[BIESLUM]-")
NUM_COMPONENTS = 50
"""Principal components that t-SNE reads."""
PERPLEXITY = 30.0
"""Perplexity of t-SNE for 300 points or more; a tenth of fewer points, and at least 5."""
_CHUNK = 32
"""Contexts embedded at a time: the vectors of all their words in all layers are in memory."""
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a word: the words ``start`` to ``end - 1`` of its context ``words``.

    ``id`` is the id of the text in the data, else its index; ``shown`` is the text for people, with
    the word in brackets.
    """

    word: str
    id: str | int
    words: tuple[str, ...]
    start: int
    end: int
    shown: str
    label: str | None = None


def parse_words(value: str) -> dict[str, tuple[str, ...]]:
    """Parse a list of words: commas separate words, slashes separate the forms of a word.

    >>> parse_words("bank/banks,die")
    {'bank': ('bank', 'banks'), 'die': ('die',)}
    """
    words: dict[str, tuple[str, ...]] = {}
    for item in value.split(","):
        forms = tuple(" ".join(form.split()) for form in item.split("/"))
        if not all(split_words(form)[0] for form in forms):
            raise UserError(
                f"--word {value!r}: {item.strip()!r} is not a word: write words with commas "
                "between them and their forms with slashes, such as bank/banks,die."
            )
        if forms[0] in words:
            raise UserError(f"--word {value!r}: {forms[0]!r} is named twice: name each word once.")
        words[forms[0]] = forms
    return words


def read_examples(
    file: str, *, columns: Mapping[str, str] | None = None, encoding: str = "utf-8"
) -> Iterator[Example]:
    """Stream the texts or sentences of a file of any format, with their labels, tags or spans.

    Standard input (`-`) and pipes are read as texts.
    """
    first = list[Any]()
    if Path(file).is_file():
        opened = open_data(file, encoding=encoding)
        if opened.format in ("json", "jsonl", "parquet"):
            first = read_file(opened).peek(1)
    if any("targets" in row.values for row in first):
        yield from read_sense_file(file, encoding)
    elif file != "-" and not is_pipe(Path(file)) and input_type_of(file, encoding) == "tokens":
        yield from read_token_file(file, columns=columns, encoding=encoding)
    else:
        yield from read_text_file(file, columns=columns, pair=False, encoding=encoding)


def find_occurrences(
    examples: Iterable[Example],
    words: Mapping[str, Sequence[str]],
    *,
    limit: int = 300,
    seed: int = 1,
) -> tuple[list[Occurrence], int, dict[str, int]]:
    """Sample at most ``limit`` occurrences of each word, in the order of the data.

    A text or sentence that occurs again counts once. The label of an occurrence is the label of its
    text, the sense of a target (which matches by its lemma, in all forms), the type of the
    innermost span around it, or the tag of its first word without the prefix of the tag scheme.

    Args:
        examples: Texts or sentences.
        words: The forms of each word, by its name.
        limit: The largest number of occurrences of each word.
        seed: Seed of the sample.

    Returns:
        The sample, the number of texts, and the number of distinct occurrences of each word.

    Raises:
        UserError: A word does not occur.
    """
    forms: dict[tuple[str, ...], str] = {}
    for name, texts in words.items():
        for text in map(_fold, texts):
            forms |= dict.fromkeys((tuple(split_words(text)[0]), tuple(text.split())), name)
    uses: dict[str, list[Occurrence]] = {name: [] for name in words}
    contexts, num_texts = set(), 0
    for example in examples:
        num_texts += bool(example.line().strip())
        for occurrence in _find(example, forms):
            key = hash((occurrence.word, occurrence.words, occurrence.start))
            if key not in contexts:
                contexts.add(key)
                uses[occurrence.word].append(occurrence)
    sample: list[Occurrence] = []
    for name, occurrences in uses.items():
        if not occurrences:
            raise UserError(
                f"--word {name}: none of the {num_texts:,} texts has it: give other texts, "
                f"or its forms, such as {name}/{name.upper()}."
            )
        size = len(occurrences)
        numbers = sorted(random.Random(seed).sample(range(size), min(size, limit)))
        sample += [occurrences[number] for number in numbers]
    return sample, num_texts, {name: len(uses[name]) for name in uses}


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _find(example: Example, forms: Mapping[tuple[str, ...], str]) -> Iterator[Occurrence]:
    sentence = example
    if isinstance(sentence, TextExample):
        if not any(form[0] in _fold(sentence.text) for form in forms):
            return
        words, offsets = split_words(sentence.text)
        text: dict[str, Any] = {"text": sentence.text, "offsets": offsets, "key": sentence.key}
        sentence = TokenExample(sentence.id, tuple(words), **text)
    for target in sentence.targets:
        if name := forms.get(tuple(_fold(target.lemma).split("_"))):
            sense = next(iter(target.senses), None)
            yield _occurrence(sentence, name, target.start, target.end, sense)
    if sentence.targets:
        return
    folded = [_fold(word) for word in sentence.words]
    lengths = sorted({len(form) for form in forms}, reverse=True)
    for start in range(len(folded)):
        candidates = (tuple(folded[start : start + length]) for length in lengths)
        if form := next((candidate for candidate in candidates if candidate in forms), None):
            end = start + len(form)
            yield _occurrence(sentence, forms[form], start, end, _label(example, start, end))


def _label(example: Example, start: int, end: int) -> str | None:
    if isinstance(example, TextExample):
        if isinstance(example.label, tuple):
            return ", ".join(example.label) or None
        return f"{example.label:g}" if isinstance(example.label, float) else example.label
    if example.spans is not None:
        around = [span for span in example.spans if span.start <= start and end <= span.end]
        return min(around, key=lambda s: s.end - s.start).label if around else None
    return None if example.tags is None else _TAG_PREFIX.sub("", example.tags[start])


def _occurrence(
    sentence: TokenExample, name: str, start: int, end: int, label: str | None
) -> Occurrence:
    words, text, offsets = sentence.words, sentence.text, sentence.offsets
    low, high = max(0, start - SHOWN), min(len(words), end + SHOWN)
    if offsets is not None and text is not None:
        begin, stop = offsets[start][0], offsets[end - 1][1]
        before, after = text[offsets[low][0] : begin], text[stop : offsets[high - 1][1]]
        shown = f"{before}[{text[begin:stop]}]{after}"
    else:
        shown = " ".join([*words[low:start], f"[{' '.join(words[start:end])}]", *words[end:high]])
    id, first = sentence.id if sentence.key is None else sentence.key, max(0, start - CONTEXT)
    context, shown = words[first : end + CONTEXT], " ".join(shown.split())
    return Occurrence(name, id, context, start - first, end - first, shown, label)


def project_layers(
    vectors: Array, *, method: Method = "tsne", seed: int = 1, reporter: Reporter | None = None
) -> Array:
    """Project the vectors of each layer to the plane.

    The layers are computed from the last to the first. t-SNE starts from the points of the layer
    above, so that a point moves only as far as its neighborhood changes.

    Args:
        vectors: Vectors of length 1 [layers, n, H], so that distances rank like cosines.
        method: t-SNE (van der Maaten & Hinton 2008) of the first 50 principal components, or the
            first two of these (``pca``).
        seed: Seed of t-SNE.
        reporter: Shows the progress.

    Returns:
        Points [layers, n, 2]. Equal vectors have equal points.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    num_layers, num_points, width = vectors.shape
    if num_points < 3:
        raise UserError(f"a map needs 3 points or more, not {num_points}: give more texts.")
    points, above = np.zeros((num_layers, num_points, 2)), None
    reporter = reporter or Reporter(quiet=True)
    reporter.start("projecting", num_layers, unit="layer")
    for done, layer in enumerate(reversed(range(num_layers)), 1):
        centered = vectors[layer] - vectors[layer].mean(0)
        if np.ptp(vectors[layer], axis=0).max() < _TIE:
            above = None  # without position, a word is the same everywhere: all points are zero
            continue
        size = min(NUM_COMPONENTS, num_points, width)
        components = PCA(size, svd_solver="full").fit_transform(centered)
        points[layer] = components[:, :2]
        if method == "tsne":
            start = points[layer] if above is None else above
            tsne = TSNE(
                perplexity=min(PERPLEXITY, max(5.0, num_points / 10), (num_points - 1) / 3),
                init=(start / start.std(axis=0).max() * 1e-4).astype(np.float32),
                random_state=seed,
            )
            points[layer] = tsne.fit_transform(components.astype(np.float32))
            above = points[layer]
        reporter.update(done)
    return points


def nearest_neighbor_purity(
    vectors: Array, words: Sequence[str], labels: Sequence[str | None]
) -> float | None:
    """Measure how vectors [n, H] of length 1 separate labels.

    It is the fraction of occurrences whose nearest neighbor (by cosine, among the other occurrences
    of the word) has the same label, and of several equally near ones the fraction with that label;
    None unless a word has two labels that occur twice.
    """
    rows = labeled_rows(words, labels)
    if not rows:
        return None
    word, label = (np.array([str(names[row]) for row in rows]) for names in (words, labels))
    same_word = (word[:, None] == word) & ~np.eye(len(rows), dtype=bool)
    cosines = np.where(same_word, vectors[rows] @ vectors[rows].T, -np.inf)
    nearest = cosines >= cosines.max(axis=1, keepdims=True) - _TIE
    right = nearest & (label[:, None] == label)
    return float((right.sum(axis=1) / nearest.sum(axis=1)).mean())


def labeled_rows(words: Sequence[str], labels: Sequence[str | None]) -> list[int]:
    """Select the occurrences with labels to score.

    Each label occurs at least twice with its word, and the word has another such label.
    """
    counts = Counter(zip(words, labels, strict=True))
    legal = {key for key, count in counts.items() if key[1] is not None and count > 1}
    num_labels = Counter(word for word, _ in legal)
    pairs = enumerate(zip(words, labels, strict=True))
    return [number for number, key in pairs if key in legal and num_labels[key[0]] > 1]


def majority_sense(words: Sequence[str], labels: Sequence[str | None]) -> float | None:
    """Compute the fraction of scored occurrences with the main label of their word."""
    rows = labeled_rows(words, labels)
    counts = Counter((words[row], labels[row]) for row in rows).most_common()
    main = {word: count for (word, _), count in reversed(counts)}  # the largest of each word
    return sum(main.values()) / len(rows) if rows else None


def draw_map(command: Map) -> None:
    """Write the map of the command, print the numbers of occurrences and the scores of layers."""
    examples = read_examples(command.file, **command.reading)
    occurrences, num_texts, counts = find_occurrences(
        examples, parse_words(command.word), limit=command.most, seed=command.seed
    )
    for word, number in counts.items():
        sampled = f", {command.most:,} drawn at random (--most)" if number > command.most else ""
        texts = quantity(num_texts, "text")
        show(f"{word}: {quantity(number, 'occurrence')} in {texts}{sampled}", error=True)
    quiet_libraries()
    from finetune.inference.embed import Embedder  # which takes long to import

    options: dict[str, Any] = {"unit": "word", "combine": "none", **command.encoder.keywords()}
    embedder = Embedder(command.model, layers=command.layers, **options)
    rows: list[Array] = []
    with Reporter() as progress:
        progress.start("embedding", len(occurrences), unit="text")
        for start in range(0, len(occurrences), _CHUNK):
            chunk = occurrences[start : start + _CHUNK]
            embeddings = embedder.encode(use.words for use in chunk)
            for use, embedding in zip(chunk, embeddings, strict=True):
                rows.append(embedding.vectors[use.start : use.end].mean(0))
            progress.update(len(rows))
        vectors = unit_vectors(np.stack(rows, axis=1))  # [layers, occurrences, H]
        settings: Any = {"method": command.method, "seed": command.seed}
        points = project_layers(vectors, **settings, reporter=progress)
    words, labels = [use.word for use in occurrences], [use.label for use in occurrences]
    baseline = majority_sense(words, labels)
    figures: dict[str, Any] = {
        "model": command.model,
        **settings,
        "layers": list(embedder.layers),
        "scores": [
            {"layer": layer, "purity": nearest_neighbor_purity(of_layer, words, labels)}
            for layer, of_layer in zip(embedder.layers, vectors, strict=True)
        ],
        "occurrences": [
            {
                "id": use.id,
                "word": use.word,
                "label": use.label,
                "text": use.shown,
                "points": points[:, number].round(4).tolist(),
            }
            for number, use in enumerate(occurrences)
        ],
    }
    text = json.dumps(figures, ensure_ascii=False)
    command.write(lambda: _page(figures, points, baseline), text)
    if baseline is not None:
        print_table(*_table(figures["scores"]))
        show(f"(always the main label of the word: 1-NN purity {baseline:.4f})")


def _page(figures: dict[str, Any], points: Array, baseline: float | None) -> str:
    notes, scores = list[str](), list[PageTable]()
    if baseline is not None:
        scores.append(PageTable("Scores", *_table(figures["scores"])))
        notes.append(
            "1-NN purity is the fraction of occurrences whose nearest vector, among the other "
            "occurrences of the word, has the same label. Always naming the main label of the word "
            f"would reach {baseline:.4f}."
        )
    if figures["method"] == "tsne":
        notes.append("t-SNE keeps neighborhoods only: sizes and distances of groups mean nothing.")
    occurrences = figures["occurrences"]
    words = list(dict.fromkeys(use["word"] for use in occurrences))
    names = [use["label"] or "no label" for use in occurrences]
    if len(words) > 1:
        names = [f"{use['word']} · {name}" for use, name in zip(occurrences, names, strict=True)]
    frequent = [name for name, _ in Counter(names).most_common()]
    if len(frequent) > NUM_COLORS:
        frequent = [*frequent[: NUM_COLORS - 1], "other labels"]
    charts = []
    for layer, of_layer in zip(figures["layers"], points.tolist(), strict=True):
        groups: dict[str, list[tuple[float, float, str]]] = {name: [] for name in frequent}
        for use, name, (x, y) in zip(occurrences, names, of_layer, strict=True):
            groups.get(name, groups[frequent[-1]]).append((x, y, f"{name}: {use['text']}"))
        charts.append(chart(f"Layer {layer}", dots=list(groups.items())))
    texts = [[use["id"], use["label"] or "", use["text"]] for use in occurrences]
    return page_of(
        "word map",
        ", ".join(words),
        [
            Section("Map", notes, charts, scores),
            Section("Occurrences", tables=[PageTable("Texts", ["id", "label", "text"], texts)]),
        ],
        about=f"{len(occurrences):,} occurrences, encoded by {figures['model']}, projected by "
        f"{figures['method']} with seed {figures['seed']}. Each point is one occurrence; near "
        "points have similar vectors.",
        command="finetune map",
    )


def _table(scores: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    return ["layer", "1-NN purity"], [[row["layer"], row["purity"]] for row in scores]
