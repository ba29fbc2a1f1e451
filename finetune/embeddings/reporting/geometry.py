"""The HTML page of an encoder's geometry: one file that needs no network.

This module collects the values that the page shows; ``templates/geometry.html`` sets their markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from finetune.embeddings.evaluation.geometry import TOP_DIMENSIONS, LayerGeometry
from finetune.reporting.charts import Chart, Points, line_chart
from finetune.reporting.html import Table, inlined
from finetune.reporting.rendering import render

if TYPE_CHECKING:
    from finetune.embeddings.inference.geometry import Geometry, SentenceAttention

PACKAGE = "finetune.embeddings.reporting"
"""The package whose templates make the page."""
MOST_WORDS = 12
"""Number of words to list with the lowest, and with the highest, self-similarity."""


def write_page(file: Any, geometry: Geometry, model: str, data: str) -> None:
    """Write the page to a text file."""
    file.write(page(geometry, model, data))


def page(geometry: Geometry, model: str, data: str) -> str:
    """Return the geometry of an encoder as HTML."""
    return render(
        "geometry.html",
        PACKAGE,
        **inlined("geometry.js", "geometry.css", package=PACKAGE),
        model=model,
        source=data,
        geometry=geometry,
        charts=[chart for chart in _charts(geometry) if chart],
        layers=_layer_table(geometry),
        dimensions=_dimension_table(geometry.raw),
        words=_word_tables(geometry),
        mixing=_mixing_chart(geometry),
        sentences=[_sentence(each) for each in geometry.attention.sentences],
    )


def _charts(geometry: Geometry) -> list[Chart | None]:
    raw, z = geometry.raw, geometry.standardized
    both = {"raw": raw, "standardized": z}

    def of(get: Callable[[LayerGeometry], float | None]) -> dict[str, Points]:
        return {name: _points(layers, get) for name, layers in both.items()}

    similarity = {
        "self-similarity": _points(raw, lambda each: each.adjusted_self_similarity),
        "within a text": _points(raw, lambda each: each.adjusted_intra_sentence),
    }
    shares = {
        f"top {k}": _points(raw, lambda each, k=k: each.share(k))  # type: ignore[misc]
        for k in TOP_DIMENSIONS
    }
    return [
        _chart("Expected cosine of two words", of(lambda each: each.expected_cosine)),
        _chart("Share of the largest dimensions in the expected cosine", shares),
        _chart("Similarity minus the expected cosine", similarity),
    ]


def _points(
    layers: Sequence[LayerGeometry], get: Callable[[LayerGeometry], float | None]
) -> Points:
    return [(each.layer, value) for each in layers if (value := get(each)) is not None]


def _chart(caption: str, series: dict[str, Points]) -> Chart | None:
    known = [(name, points) for name, points in series.items() if points]
    return line_chart(caption, f"{caption} by layer", known, "layer") if known else None


def _mixing_chart(geometry: Geometry) -> Chart | None:
    attention = geometry.attention
    points = list(enumerate(attention.mixing, 1))
    caption = f"Mixing ratio, mean over {attention.num_sentences} sentences"
    return _chart(caption, {"mixing ratio": points}) if points else None


def _layer_table(geometry: Geometry) -> Table:
    columns = [
        "layer",
        "expected cosine",
        "standardized",
        "mean length",
        *(f"top {k}" for k in TOP_DIMENSIONS),
        "self-similarity",
        "adjusted",
        "within a text",
        "adjusted",
    ]
    rows = [
        [
            raw.layer,
            raw.expected_cosine,
            z.expected_cosine,
            raw.norm,
            *map(raw.share, TOP_DIMENSIONS),
            raw.self_similarity,
            raw.adjusted_self_similarity,
            raw.intra_sentence,
            raw.adjusted_intra_sentence,
        ]
        for raw, z in zip(geometry.raw, geometry.standardized, strict=True)
    ]
    return Table("All figures by layer; raw unless a column says otherwise", columns, rows)


def _dimension_table(layers: Sequence[LayerGeometry]) -> Table:
    columns = ["layer", *(f"{n}." for n in range(1, 5))]
    rows = [
        [each.layer, *(f"{index} ({value:+.4f})" for index, value in each.dimensions[:4])]
        for each in layers
    ]
    return Table("The largest dimensions, with their part of the expected cosine", columns, rows)


def _word_tables(geometry: Geometry) -> list[Table]:
    """List the words with the lowest and with the highest self-similarity in the last layer."""
    words = sorted(geometry.words, key=lambda each: (each.self_similarity[-1], each.word))
    if not words:
        return []
    half = min(MOST_WORDS, (len(words) + 1) // 2)
    middle = geometry.raw[len(geometry.raw) // 2].layer
    columns = ["word", "uses", "layer 0", f"layer {middle}", f"layer {geometry.raw[-1].layer}"]
    place = len(geometry.raw) // 2
    rows = [
        [each.word, each.uses, *(each.self_similarity[n] for n in (0, place, -1))] for each in words
    ]
    least, most = rows[:half], rows[::-1][: len(rows) - half][:half]
    tables = [Table("Words whose vectors change most with the context", columns, least)]
    return [*tables, Table("Words whose vectors change least", columns, most)] if most else tables


def _sentence(sentence: SentenceAttention) -> dict[str, Any]:
    """Return tables of attention as percentages of each row, which the script shows by layer."""
    tables = {
        "norms": [[_percent(row) for row in layer] for layer in sentence.norms],
        "weights": [[_percent(row) for row in layer] for layer in sentence.weights],
    }
    return {"text": sentence.text, "tokens": sentence.tokens, "tables": tables}


def _percent(row: Sequence[float]) -> list[float]:
    total = sum(row) or 1.0
    return [round(100 * value / total, 1) for value in row]
