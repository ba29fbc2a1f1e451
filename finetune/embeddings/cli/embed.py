"""`finetune embed`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finetune.cli.command import Command
from finetune.cli.options import InputOptions, ModelArgument, OutOption, ReadingOptions
from finetune.cli.output import check_output, inputs_of, quiet_libraries, show
from finetune.embeddings.cli.options import VectorOptions
from finetune.types import TextExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.types import Example


@dataclass(frozen=True, kw_only=True)
class Embed(ModelArgument, VectorOptions, OutOption, InputOptions, Command):
    """Write vectors of texts, words or subwords from the layers of an encoder.

    Examples:
        finetune embed minilm --file texts.txt --out vectors.npy
        finetune embed runs/tag --text "A bank." --unit word --layers last4
    """

    out: str | None = None
    """File to write: .jsonl, .parquet, .npy or .safetensors. Unset prints JSON Lines."""
    unit: Literal["text", "word", "subword"] = "text"
    """The unit that gets a vector."""
    normalize: bool = False
    """Scale each vector to length 1."""
    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Lengths, batches and source of the encoder."""

    def run(self) -> None:
        """Write the vectors of all inputs."""
        self.require_input("embed")
        quiet_libraries()
        from finetune.embeddings.inference.vector_files import check_suffix, record, write_vectors
        from finetune.inference.embed import Embedder
        from finetune.runtime.progress import Reporter

        if self.out is not None:
            check_output(self.out, inputs_of(self.file))
            check_suffix(Path(self.out))
        embedder = Embedder(
            self.model,
            unit=self.unit,
            layers=layer_numbers(self.layers),
            combine=self.combine,
            pooling=self.pooling,
            normalize=self.normalize,
            **self.encoder.keywords(),
        )
        with Reporter(quiet=self.out is None and sys.stdout.isatty()) as reporter:
            embeddings = embedder.encode(self._inputs(), reporter)
            if self.out is None:
                for embedding in embeddings:
                    show(json.dumps(record(embedding), ensure_ascii=False))
            else:
                count, files = write_vectors(Path(self.out), embeddings, embedder.shape)
        if self.out is not None:
            shape = " x ".join(map(str, (count, *embedder.shape)))
            show(f"wrote {' and '.join(map(str, files))}: {shape}", error=True)
        if number := embedder.num_windowed:
            limit = f"of more than {embedder.max_length} tokens"
            show(f"{quantity(number, 'input')} {limit} read in several windows", error=True)
        if number := embedder.num_cut:
            counted = quantity(number, "input")
            show(f"{counted} cut to {embedder.max_length} tokens", error=True)

    def _inputs(self) -> Iterator[Example]:
        from finetune import data
        from finetune.data.dataset import WordsNotTexts

        file = self.file or ""
        options: Any = self.reading
        if self.text:
            yield from (TextExample(index, text) for index, text in enumerate(self.text))
        elif self.unit == "text":
            try:
                yield from data.read_text_file(file, pair=False, labels=False, **options)
            except WordsNotTexts:
                raise UserError(
                    f"{file}: holds words, not texts: add --unit word or --unit subword."
                ) from None
        else:
            yield from data.read_token_file(file, **options)


def layer_numbers(value: str) -> str | tuple[int, ...]:
    """Return the numbers in a list of layers, or the value itself."""
    try:
        return tuple(int(number) for number in value.split(","))
    except ValueError:
        return value
