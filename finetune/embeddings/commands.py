"""The options of `embed`, `similarity`, `geometry`, `map` and `wsd`.

What each command reads, computes and prints is in the file of its subject, which may load torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from finetune.cli.options import (
    Command,
    DataOptions,
    EncodingOption,
    FormatOption,
    InputOptions,
    ModelArgument,
    OutOption,
    ReadingOptions,
    ResampleOptions,
    SeedOption,
)
from finetune.cli.output import check_output, inputs_of, quiet_libraries, show
from finetune.config.options import COMMON, DATA, Help
from finetune.config.values import MOST_RESAMPLES, require_count
from finetune.runtime.files import require_replaceable, write_text
from finetune.runtime.row_files import ROW_SUFFIXES
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class EmbedderOptions(ModelArgument):
    """Options of the commands that compute vectors."""

    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Settings of the encoder."""


@dataclass(frozen=True, kw_only=True)
class LayersOption:
    """Option of the commands that choose layers."""

    layers: Annotated[str, COMMON] = "last"
    """Layers to read: `last`, `last4`, `all`, or numbers separated by commas. 0 is the output of
    the embeddings, 1 the first layer, -1 the last layer."""


@dataclass(frozen=True, kw_only=True)
class VectorOptions(LayersOption, EmbedderOptions):
    """Options of the commands that compute one vector of a text or word."""

    combine: Annotated[Literal["mean", "sum", "none"], COMMON] = "mean"
    """Combination of layers: their mean or sum, or none, which keeps all of them."""
    pooling: Annotated[Literal["mean", "first", "max"] | None, COMMON] = None
    """Pooling over the subwords of a word or the tokens of a text. `first` is the CLS token of a
    text. Default: the mean; for texts with a run of `sentence`, its trained pooling."""


@dataclass(frozen=True, kw_only=True)
class PageOptions(EmbedderOptions):
    """Options of the commands that compute vectors of words and write a page."""

    out: Annotated[tuple[str, ...], Help(group="output", common=True)] = ()
    """Files to write: .html (a page) and .json (all numbers)."""

    def check_out(self, data: str) -> None:
        """Raise UserError if a file of --out cannot be written, or is the input ``data``."""
        for output in self.out:
            check_output(output, [Path(data)], (".html", ".json"))
            if output.lower().endswith(".html"):
                require_replaceable(Path(output), "<!doctype html", "--out")

    def write(self, page: Callable[[], str], figures: str) -> None:
        """Write the page, or all figures as JSON, to each of --out by its suffix."""
        for output in self.out:
            text = page() if output.lower().endswith(".html") else figures + "\n"
            write_text(Path(output), text, follow=True)
        if self.out:
            show(f"wrote {' and '.join(self.out)}", error=True)


@dataclass(frozen=True, kw_only=True)
class Embed(VectorOptions, OutOption, InputOptions, Command):
    """Write vectors of texts, words or subwords from the layers of an encoder.

    Examples:
        finetune embed minilm --file texts.txt --out vectors.npy
        finetune embed runs/tag --text "A bank." --unit word --layers last4
    """

    out: str | None = None
    """File to write (.npy or .parquet). Without --out, vectors are printed as JSON Lines."""
    unit: Literal["text", "word", "subword"] = "text"
    """Unit of the vectors: whole texts, words or subwords."""
    normalize: bool = False
    """Scale each vector to length 1."""

    def run(self) -> None:
        """Write the vectors of all inputs."""
        self.require_input("embed")
        quiet_libraries()
        from finetune.embeddings.vector_files import SUFFIXES, embed

        if self.out is not None:
            check_output(self.out, inputs_of(self.file), SUFFIXES)
            rows = Path(self.out).with_suffix(".rows.jsonl")
            check_output(str(rows), inputs_of(self.file))
        embed(self)


@dataclass(frozen=True, kw_only=True)
class Similarity(VectorOptions, OutOption, FormatOption, ResampleOptions, DataOptions, Command):
    """Compute the similarity of texts, words, or words in context, and its correlation with gold.

    Examples:
        finetune similarity minilm --data stsb --split validation
        finetune similarity minilm --data wic/ --threshold
    """

    data: Annotated[str | None, DATA] = None
    """Pairs of texts as in training (file, folder or hub data set), with or without gold. Columns
    `index` and `index_pair` mark the word to compare in each text, by its number among the words
    between white space."""
    text: Annotated[str | None, DATA] = None
    """Text to compare with --pair, instead of --data."""
    pair: Annotated[str | None, DATA] = None
    """Second text."""
    split: Annotated[str | None, DATA] = None
    """Split of --data. Default: the only split, else test."""
    unit: Annotated[Literal["auto", "text", "word"], COMMON] = "auto"
    """Compare whole texts, or words. `word` compares the words that the data mark, else the mean of
    all words, without special tokens. `auto` compares words if the data mark them."""
    standardize: Annotated[str | None, Help("CORPUS", common=True)] = None
    """File or folder of texts for standardization: vectors are standardized over 1,000 of its
    lines."""
    resamples: int = 1000
    threshold: Annotated[bool, COMMON] = False
    """Classify words in context by a threshold on their cosine, which separates the labels of the
    train split best."""
    out: Annotated[str | None, COMMON] = None
    """File of predictions (.jsonl) for `finetune compare`: cosines, which are standardized with
    --standardize, or with --threshold labels."""

    def run(self) -> None:
        """Print the scores, or the cosines of pairs without gold."""
        if self.threshold and self.data is None:
            raise UserError("--threshold needs --data with a train split.")
        if (self.data is None) == (self.text is None):
            raise UserError("similarity needs either --data, or --text and --pair.")
        if (self.text is None) != (self.pair is None):
            raise UserError("--text and --pair belong together: give both texts.")
        require_count("--resamples", self.resamples, most=MOST_RESAMPLES)
        if self.out is not None:
            if self.combine == "none":
                raise UserError("--out needs one cosine of a pair: write --combine mean or sum.")
            inputs = (self.data, self.standardize)
            check_output(self.out, [Path(path) for path in inputs if path], ROW_SUFFIXES)
        quiet_libraries()
        from finetune.embeddings.similarity import run_similarity

        run_similarity(self)


@dataclass(frozen=True, kw_only=True)
class Geometry(PageOptions, EncodingOption, FormatOption, SeedOption, Command):
    """Measure the anisotropy of an encoder's word vectors and the norms of its attention, by layer.

    Examples:
        finetune geometry roberta-base --data texts/
        finetune geometry minilm --data texts.txt --out geometry.html
    """

    data: Annotated[str, DATA]
    """File or folder of texts, as for `pretrain`."""
    texts: int = 1000
    """Number of lines of text to sample."""
    sentence: Annotated[tuple[str, ...], Help(group="data", common=True)] = ()
    """Sentences whose attention the page shows."""

    def run(self) -> None:
        """Print the geometry of each layer and write the files."""
        self.check_out(self.data)
        quiet_libraries()
        from finetune.embeddings.geometry import print_geometry

        print_geometry(self)


@dataclass(frozen=True, kw_only=True)
class Map(LayersOption, PageOptions, SeedOption, DataOptions, Command):
    """Draw an embedding plot of the occurrences of words, one for each layer.

    Examples:
        finetune map minilm --word bank/banks --file texts.txt --out bank.html
        finetune map runs/tag --word light,die/dies --file senses.jsonl --out map.json
    """

    word: Annotated[str, DATA]
    """Words to plot, separated by commas, with forms of a word separated by slashes:
    bank/banks,die/dies/died. A form may consist of several words."""
    file: Annotated[str, DATA]
    """File of texts or sentences, as for `predict`, perhaps with labels, tags or spans; `-` reads
    standard input."""
    layers: str = "all"
    method: Literal["tsne", "pca"] = "tsne"
    """Projection to two dimensions."""
    most: int = 300
    """Most occurrences of a word to plot; if there are more, a random sample is drawn."""
    seed: int = 1

    def run(self) -> None:
        """Write the map and print the scores of its layers."""
        if not self.out:
            raise UserError("map needs --out FILE: .html or .json.")
        require_count("--most", self.most)
        self.check_out(self.file)
        from finetune.embeddings.word_map import draw_map

        draw_map(self)


@dataclass(frozen=True, kw_only=True)
class Wsd(LayersOption, EncodingOption, Command):
    """Disambiguate word senses by the nearest sense vector of an annotated corpus.

    Examples:
        finetune wsd --model minilm --data senses/ --out runs/senses
        finetune predict runs/senses --text "He sat on the *bank*."
    """

    model: str = "minilm"
    """Encoder: a short name, hub id, model folder or run folder."""
    data: str
    """Sentences with annotated words: `train=FILE,validation=FILE,test=FILE` or a folder. Files are
    JSON Lines with `tokens` and `targets` (start, end, lemma, pos, senses)."""
    inventory: str | None = None
    """Folder of WordNet's files: index.sense, and data.* for --glosses. Default: the senses of the
    training data."""
    prior: float | None = None
    """Weight of the log frequency of a sense among the training uses of its lemma. Default: chosen
    on the validation split, or 0 without one."""
    glosses: float = 0.0
    """Weight of a sense's gloss in its vector, in which its uses have weight 1; 0: no glosses."""
    out: str
    """Run folder to write: sense vectors, scores and predictions."""
    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Settings of the encoder."""

    def run(self) -> None:
        """Fit sense vectors and score them."""
        for option, value in (("--prior", self.prior or 0.0), ("--glosses", self.glosses)):
            if not 0 <= value < float("inf"):
                raise UserError(f"{option} must be a finite number of 0 or more, not {value}.")
        quiet_libraries()
        from finetune.embeddings.senses import fit_senses

        fit_senses(self)
