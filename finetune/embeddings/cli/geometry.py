"""`finetune geometry`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import UseAppendAction

from finetune.cli.command import Command
from finetune.cli.options import (
    EncodingOption,
    FormatOption,
    ModelArgument,
    ReadingOptions,
    SeedOption,
)
from finetune.cli.output import check_output, print_tables, quiet_libraries, show
from finetune.config.options import DATA, OUTPUT
from finetune.embeddings.cli.options import WordPoolingOption
from finetune.runtime.files import replace_file, require_replaceable
from finetune.runtime.records import require_suffix
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.embeddings.inference.geometry import Geometry as Measured


@dataclass(frozen=True, kw_only=True)
class Geometry(EncodingOption, ModelArgument, WordPoolingOption, FormatOption, SeedOption, Command):
    """Measure the geometry of an encoder's word vectors, and its attention, layer by layer.

    Examples:
        finetune geometry roberta-base --data texts/
        finetune geometry minilm --data texts.txt --out geometry.html
    """

    data: Annotated[str, DATA]
    """Texts: a file or folder, as for `pretrain`."""
    out: Annotated[UseAppendAction[tuple[str, ...]], OUTPUT] = ()
    """File to write: .html (a page) or .json (all figures); may be repeated."""
    texts: int = 1000
    """Lines of text to sample."""
    sentence: Annotated[UseAppendAction[tuple[str, ...]], DATA] = ()
    """A sentence whose attention to show; may be repeated. Unset shows two of the sample."""
    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Lengths, batches and source of the encoder."""

    def run(self) -> None:
        """Print the geometry of each layer and write the files."""
        if self.texts < 2:
            raise UserError(f"--texts must be 2 or more, not {self.texts}.")
        self._check_outputs()
        quiet_libraries()
        from finetune.data.running_text import text_sources
        from finetune.embeddings.inference.geometry import measure_geometry, record
        from finetune.inference.embed import Embedder
        from finetune.runtime.progress import Reporter

        sources = text_sources(self.data, self.encoding)
        embedder = Embedder(
            self.model,
            unit="word",
            layers="all",
            combine="none",
            pooling=self.pooling,
            **self.encoder.keywords(),
        )
        geometry = measure_geometry(
            embedder,
            (line for source in sources for line in source.lines()),
            most=self.texts,
            sentences=self.sentence,
            seed=self.seed,
            reporter=Reporter(quiet=self.format != "table"),
            name=f"--data {self.data}",
        )
        self._write(geometry)
        if self.format == "json":
            show(json.dumps(record(geometry), ensure_ascii=False))
        else:
            self._print(geometry)

    def _check_outputs(self) -> None:
        for output in self.out:
            check_output(output, [Path(self.data)], _FORMATS)
            if require_suffix(output, _FORMATS) == ".html":
                require_replaceable(Path(output), "<!doctype html", "--out")

    def _write(self, geometry: Measured) -> None:
        from finetune.embeddings.inference.geometry import write_json
        from finetune.embeddings.reporting.geometry import write_page

        for output in self.out:
            with replace_file(Path(output), follow=True) as file:
                if require_suffix(output, _FORMATS) == ".html":
                    write_page(file, geometry, self.model, self.data)
                else:
                    write_json(file, geometry)
        if self.out:
            show(f"wrote {' and '.join(self.out)}", error=True)

    def _print(self, geometry: Measured) -> None:
        """Print a table of the layers, and one line on attention."""
        self.note(
            f"{geometry.num_words:,} words of {geometry.num_texts:,} texts, standardized over "
            f"{geometry.num_fitted:,} other words, seed {geometry.seed}"
        )
        columns = (
            "layer",
            "expected cosine",
            "z expected cosine",
            "top dimension",
            "top 3",
            "top 10",
            "self-similarity",
            "within text",
        )
        rows = [
            (
                raw.layer,
                raw.expected_cosine,
                z.expected_cosine,
                *map(raw.share, (1, 3, 10)),
                raw.adjusted_self_similarity,
                raw.adjusted_intra_sentence,
            )
            for raw, z in zip(geometry.raw, geometry.standardized, strict=True)
        ]
        print_tables(self.format, ("", columns, rows))
        attention = geometry.attention
        if attention.mixing:
            mixing = " ".join(f"{value:.3f}" for value in attention.mixing)
            self.note(f"attention, mixing ratio of layers 1 to {len(attention.mixing)}: {mixing}")
        elif attention.reason:
            show(f"no analysis of attention: {attention.reason}", error=True)


_FORMATS = (".html", ".json")
