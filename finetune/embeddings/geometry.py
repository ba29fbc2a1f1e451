"""`finetune geometry`: anisotropy, rogue dimensions, and attention, by layer.

Ethayarajh 2019, "How contextual are contextualized word representations?"; Timkey & van Schijndel
2021, "All bark and no bite: rogue dimensions in transformer language models obscure
representational quality".

Shapes: U words of a text, L layers, H dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.cli.output import print_tables, show
from finetune.data.running_text import sample_lines, text_sources
from finetune.embeddings.attention_norms import (
    analyze_attention,
    reason_without_norms,
)
from finetune.embeddings.vectors import ExpectedCosine, Standardizer, unit_vectors
from finetune.inference.embed import Embedder
from finetune.reporting.charts import Points, chart
from finetune.reporting.rendering import PageTable, Section, page_of
from finetune.runtime.progress import Reporter
from finetune.types import TokenSequence, UserError

if TYPE_CHECKING:
    from finetune.embeddings.commands import Geometry

MOST_TOKENS = 64
"""Most tokens of a sentence whose attention is analyzed."""
NUM_SENTENCES = 50
"""Sentences of the sample that the mixing ratio is averaged over."""
TOP_DIMENSIONS = (1, 3, 10)
"""Numbers of largest dimensions whose share of the expected cosine is reported."""
LAYERS_NOTE = (
    "The expected cosine of two words is the anisotropy: near 0 the vectors point in all "
    "directions, near 1 in one; z is that of standardized vectors. If a few dimensions make most "
    "of it, cosines measure little else."
)
ATTENTION_NOTE = (
    "The output of an attention block is a sum of one vector for each token that it reads; the "
    "residual input counts as the token itself, and the normalization is applied to each part "
    "(Kobayashi et al. 2021). The mixing ratio is the length of the contribution of other tokens, "
    "as a fraction of its sum with the length of the token's own contribution."
)


def by_layer(layers: Sequence[int], measured: ExpectedCosine) -> list[dict[str, Any]]:
    """Compute the geometry of each layer as JSON values.

    ``expected_cosine`` is the anisotropy. ``shares`` are the shares of the largest dimensions in it
    by their number (None if it is not positive).
    """
    rows = []
    for layer, parts in zip(layers, measured.contributions, strict=True):
        expected, sums = float(parts.sum()), np.cumsum(np.sort(parts)[::-1])
        shares = None
        if expected > 0:
            shares = {k: float(sums[min(k, len(sums)) - 1] / expected) for k in TOP_DIMENSIONS}
        rows.append({"layer": layer, "expected_cosine": expected, "shares": shares})
    return rows


def measure_geometry(
    embedder: Embedder,
    lines: Iterable[str],
    *,
    most: int = 1000,
    sentences: Sequence[str] = (),
    seed: int = 0,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Measure the vectors of the words of a sample of lines.

    Every second line of the sample is used to fit a standardizer, and the others are measured, so
    that the standardized figures are on held-out text.

    Args:
        embedder: With ``unit="word"`` and ``combine="none"``.
        lines: Lines of a corpus; a random sample of at most ``most`` is read.
        most: The size of the sample.
        sentences: Texts whose attention is shown.
        seed: Seed of all samples.
        reporter: Shows the progress.

    Returns:
        JSON values: the rows ``raw`` and ``standardized`` of ``by_layer``, the
        number of measured texts and words and of the words of the standardization, and
        ``attention``: the mean ``mixing`` ratio of each layer, and for sentences the tables [L, T,
        T] of ``weights`` and ``norms``, or the ``reason`` why there is no analysis.

    Raises:
        UserError: There is too little text, a sentence is too long, or ``sentences`` are given and
            the family of the encoder has no analysis of attention.
    """
    sample = sample_lines(lines, most, seed)
    if len(sample) < 2:
        raise UserError(f"geometry needs two or more lines of text, not {len(sample)}.")
    fitted, measured = sample[::2], sample[1::2]
    raw, standardized = ExpectedCosine(), ExpectedCosine()
    with reporter or Reporter(quiet=True) as progress:
        standardizer = Standardizer.fit(e.vectors for e in embedder.encode(fitted, progress))
        for embedding in embedder.encode(measured, progress):
            raw.add(unit_vectors(embedding.vectors))
            standardized.add(unit_vectors(standardizer(embedding.vectors)))
    return {
        "model": embedder.tokenizer.name,
        "num_texts": len(measured),
        "num_words": raw.count,
        "num_fitted": standardizer.count,
        "raw": by_layer(embedder.layers, raw),
        "standardized": by_layer(embedder.layers, standardized),
        "attention": _attention(embedder, measured, sentences, seed),
        "seed": seed,
    }


def _attention(
    embedder: Embedder, lines: Sequence[str], sentences: Sequence[str], seed: int
) -> dict[str, Any]:
    if reason := reason_without_norms(embedder.encoder):
        if sentences:
            raise UserError(f"--sentence: no analysis of attention: {reason}.")
        return {"reason": reason, "mixing": [], "num_sentences": 0, "sentences": []}
    encoder, tokenizer = embedder.encoder, embedder.tokenizer

    def tokenized(texts: Sequence[str]) -> list[TokenSequence]:
        return [TokenSequence(0, *tokenizer.build(ids)) for ids in tokenizer.text_subwords(texts)]

    chosen = [*zip(sentences, tokenized(sentences), strict=True)]
    for text, sequence in chosen:
        if (size := len(sequence.input_ids)) > MOST_TOKENS:
            raise UserError(
                f"--sentence {text!r:.40}: {size} tokens are too many to show: write a sentence of "
                f"at most {MOST_TOKENS}."
            )
    candidates = tokenized([text for text in lines if len(text) <= 10 * MOST_TOKENS])
    short = [s for s in candidates if 3 <= len(s.input_ids) <= MOST_TOKENS]
    short = Random(seed).sample(short, min(len(short), NUM_SENTENCES))
    mixing = [
        [float(block.mixing.mean()) for block in analyze_attention(encoder, s)] for s in short
    ]
    analyzed: list[dict[str, Any]] = []
    for text, sequence in chosen:
        tokens = [tokenizer.tokenizer.decode([id]) for id in sequence.input_ids]
        analyzed.append({"text": text, "tokens": tokens, "weights": [], "norms": []})
        for block in analyze_attention(encoder, sequence):
            for name, table in (("weights", block.weights), ("norms", block.norms)):
                analyzed[-1][name].append(table.cpu().numpy().astype(float).round(5).tolist())
    means = np.mean(mixing, axis=0).tolist() if mixing else []
    return {"reason": "", "mixing": means, "num_sentences": len(short), "sentences": analyzed}


def _page(figures: dict[str, Any], model: str, data: str) -> str:
    raw, attention = figures["raw"], figures["attention"]
    lines: dict[str, dict[str, Points]] = {
        "Expected cosine of two words": {
            name: [(row["layer"], row["expected_cosine"]) for row in figures[name]]
            for name in ("raw", "standardized")
        },
        "Share of the largest dimensions in the expected cosine": {
            f"top {number}": [(row["layer"], row["shares"][number]) for row in raw if row["shares"]]
            for number in TOP_DIMENSIONS
        },
        f"Mixing ratio, mean over {attention['num_sentences']} sentences": {
            "mixing ratio": list(enumerate(attention["mixing"], 1))
        },
    }
    charts = [
        chart(caption, "layer", lines=shown)
        for caption, series in lines.items()
        if (shown := [(name, points) for name, points in series.items() if points])
    ]
    note = ATTENTION_NOTE
    if attention["reason"]:
        note = f"There is no analysis of attention: {attention['reason']}."
    table = PageTable("Raw vectors", *_layer_table(figures))
    sections = [Section("Layers", [LAYERS_NOTE, note], charts, [table])]
    for sentence in attention["sentences"]:
        tokens, num_layers, tables = sentence["tokens"], len(sentence["norms"]), []
        captions = {"norms": "Lengths of contributions", "weights": "Attention weights"}
        for name, caption in captions.items():
            for layer in sorted({1, (num_layers + 1) // 2, num_layers}):
                rows = [
                    [token, *(value / (sum(row) or 1.0) for value in row)]
                    for token, row in zip(tokens, sentence[name][layer - 1], strict=True)
                ]
                bars = range(1, len(tokens) + 1)
                tables.append(PageTable(f"{caption} of layer {layer}", ["", *tokens], rows, bars))
        note = "Each row reads from the columns, in fractions of the row."
        sections.append(Section(sentence["text"], [note], tables=tables))
    return page_of(
        "geometry",
        model,
        sections,
        about=f"{figures['num_words']:,} words of {figures['num_texts']:,} texts of {data}, "
        f"standardized over {figures['num_fitted']:,} other words, seed {figures['seed']}; layer 0 "
        "is the output of the embeddings.",
        command="finetune geometry",
    )


def _layer_table(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    columns = ["layer", "expected cosine", "z expected cosine", "top dimension", "top 3", "top 10"]
    rows = [
        [
            *(raw["layer"], raw["expected_cosine"], z["expected_cosine"]),
            *((raw["shares"] or {}).get(number) for number in TOP_DIMENSIONS),
        ]
        for raw, z in zip(figures["raw"], figures["standardized"], strict=True)
    ]
    return columns, rows


def print_geometry(command: Geometry) -> None:
    """Measure the encoder of the command, write its files, and print a table of the layers."""
    sources = text_sources(command.data, command.encoding)
    lines = chain.from_iterable(source.lines() for source in sources)
    options: dict[str, Any] = {"layers": "all", "unit": "word", "combine": "none"}
    options |= command.encoder.keywords()
    figures = measure_geometry(
        Embedder(command.model, **options),
        lines,
        most=command.texts,
        sentences=command.sentence,
        seed=command.seed,
        reporter=Reporter(quiet=command.format != "table"),
    )
    text = json.dumps(figures, ensure_ascii=False)
    command.write(lambda: _page(figures, command.model, command.data), text)
    if command.format == "json":
        show(text)
        return
    command.note(
        f"{figures['num_words']:,} words of {figures['num_texts']:,} texts, standardized over "
        f"{figures['num_fitted']:,} other words, seed {figures['seed']}"
    )
    print_tables(command.format, ("", *_layer_table(figures)))
    attention = figures["attention"]
    if attention["mixing"]:
        mixing = " ".join(f"{value:.3f}" for value in attention["mixing"])
        command.note(f"attention, mixing ratio of layers 1 to {len(attention['mixing'])}: {mixing}")
    elif attention["reason"]:
        show(f"no analysis of attention: {attention['reason']}", error=True)
