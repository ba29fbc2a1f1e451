"""`finetune map`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import UseAppendAction

from finetune.cli.command import Command
from finetune.cli.options import DataOptions, ModelArgument, ReadingOptions, SeedOption
from finetune.cli.output import check_output, print_table, quiet_libraries, show
from finetune.config.options import DATA, OUTPUT
from finetune.config.tasks import column_map
from finetune.embeddings.cli.options import LayersOption, WordPoolingOption
from finetune.runtime.files import replace_file, require_replaceable
from finetune.runtime.records import require_suffix
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.data.occurrences import Occurrences
    from finetune.embeddings.inference.word_map import WordMap


@dataclass(frozen=True, kw_only=True)
class Map(LayersOption, ModelArgument, WordPoolingOption, SeedOption, DataOptions, Command):
    """Draw the occurrences of a word in many contexts as a map of their vectors, layer by layer.

    Examples:
        finetune map minilm --word bank/banks --file texts.txt --out bank.html
        finetune map runs/tag --word light,die/dies --file senses.jsonl --out map.json
    """

    word: Annotated[str, DATA]
    """The word; several with commas, forms of a word with slashes: bank/banks,die/dies/died. A form
    that ends with * stands for all words that begin with it. A form may be several words."""
    file: Annotated[str, DATA]
    """Texts or sentences of any format of `predict`, with labels, tags, spans or nothing; `-` is
    standard input."""
    out: Annotated[UseAppendAction[tuple[str, ...]], OUTPUT] = ()
    """File to write: .html (a page) or .json (all figures); may be repeated."""
    layers: str = "all"
    method: Literal["tsne", "pca"] = "tsne"
    """Projection to the plane."""
    most: int = 300
    """Most occurrences of a word to show; a random sample if there are more."""
    seed: int = 1
    match_case: bool = False
    """Tell upper case from lower case."""
    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Lengths, batches and source of the encoder."""

    def run(self) -> None:
        """Write the map and print the scores of its layers."""
        from finetune.embeddings.data.occurrences import (
            find_occurrences,
            parse_words,
            read_examples,
        )

        self._check_outputs()
        words = parse_words(self.word)
        columns: Any = column_map(self.columns)
        found = find_occurrences(
            read_examples(self.file, columns=columns, encoding=self.encoding),
            words,
            match_case=self.match_case,
            limit=self.most,
            seed=self.seed,
        )
        for line in self._counted(found):
            show(line, error=True)
        quiet_libraries()
        from finetune.embeddings.cli.embed import layer_numbers
        from finetune.embeddings.inference.word_map import make_word_map
        from finetune.inference.embed import Embedder
        from finetune.runtime.progress import Reporter

        embedder = Embedder(
            self.model,
            unit="word",
            layers=layer_numbers(self.layers),
            combine="none",
            pooling=self.pooling,
            **self.encoder.keywords(),
        )
        word_map = make_word_map(
            embedder, found.sample, method=self.method, seed=self.seed, reporter=Reporter()
        )
        self._write(word_map)
        _print_scores(word_map)

    def _check_outputs(self) -> None:
        if not self.out:
            raise UserError("map needs --out FILE: .html or .json.")
        for output in self.out:
            check_output(output, [Path(self.file)], _FORMATS)
            if require_suffix(output, _FORMATS) == ".html":
                require_replaceable(Path(output), "<!doctype html", "--out")

    def _counted(self, found: Occurrences) -> list[str]:
        """Return lines about the numbers of occurrences."""
        lines = []
        for word, number in found.found.items():
            sampled = f", {self.most:,} drawn at random (--most)" if number > self.most else ""
            texts = quantity(found.num_texts, "text")
            lines.append(f"{word}: {quantity(number, 'occurrence')} in {texts}{sampled}")
        if found.num_repeated:
            lines.append(f"repeated contexts left out: {found.num_repeated:,}")
        if missing := sum(each.label is None for each in found.sample):
            lines.append(f"occurrences without a label: {missing:,} of {len(found.sample):,}")
        return lines

    def _write(self, word_map: WordMap) -> None:
        """Write all files."""
        from finetune.embeddings.inference.word_map import write_json
        from finetune.embeddings.reporting.word_map import write_page

        writers = {".html": write_page, ".json": write_json}
        for output in self.out:
            with replace_file(Path(output), follow=True) as file:
                writers[require_suffix(output, _FORMATS)](file, word_map, self.model)
        show(f"wrote {' and '.join(self.out)}", error=True)


_FORMATS = (".html", ".json")


def _print_scores(word_map: WordMap) -> None:
    """Print the scores of each layer, and of the most frequent labels."""
    from finetune.embeddings.evaluation.projection import majority

    names = {
        "purity": "1-NN purity",
        "silhouette": "silhouette",
        "self_similarity": "mean cosine",
        "trustworthiness": "trustworthiness",
    }
    known = [key for key in names if getattr(word_map.scores[0], key) is not None]
    rows = [[each.layer, *(getattr(each, key) for key in known)] for each in word_map.scores]
    print_table(["layer", *(names[key] for key in known)], rows)
    words, labels = zip(*((each.word, each.label) for each in word_map.occurrences), strict=True)
    number, share = majority(words, labels)
    if number:
        show(
            f"(always the main label of the word: 1-NN purity {share:.4f}, {number:,} occurrences)"
        )
