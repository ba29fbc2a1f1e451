"""The options of `vocabulary` and `perplexity`.

What each command reads, computes and prints is in the file of its subject, which may load torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from finetune.cli.options import (
    Command,
    EncodingOption,
    FormatOption,
    InputOptions,
    OutOption,
    ReadingOptions,
    SeedOption,
)
from finetune.cli.output import check_output, inputs_of, quiet_libraries, require_free
from finetune.config.options import Help, argument
from finetune.config.values import require_count
from finetune.runtime.row_files import ROW_SUFFIXES
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class VocabularyCommand(EncodingOption, SeedOption, Command):
    """Train a subword vocabulary on text, and optionally adapt a pretrained encoder to it.

    Examples:
        finetune vocabulary texts/ --out vocabulary --kind wordpiece --size 30000
        finetune vocabulary de.txt --for roberta-base --out roberta-de
    """

    texts: Annotated[str, argument("TEXTS")]
    """File or folder of texts, or several languages or sources: `en=FILE,de=FILE`. Files are plain
    text, JSON Lines, CSV, TSV or Parquet with a column of texts, or tagged words."""
    out: Annotated[str, Help("FOLDER", "output")]
    """Folder to write."""
    kind: Literal["wordpiece", "bpe", "unigram"] | None = None
    """Tokenization algorithm: WordPiece (BERT), byte-level BPE (RoBERTa) or Unigram (XLM-R).
    Default: bpe. With --for it is the algorithm of the model."""
    size: int = 8000
    """Number of subwords, including special tokens."""
    alpha: float = 0.3
    """Exponent of the sizes of several sources: 1 samples them in proportion to their size, 0
    equally."""
    lowercase: bool = False
    """Lower-case the text. With --for it is lower-cased if the model does that."""
    for_: str | None = None
    """Pretrained encoder that gets the new vocabulary; the folder then also contains the model."""
    init: Literal["overlap", "similarity", "mean"] = "similarity"
    """Initialization of the new embeddings. `overlap` copies the embeddings of subwords that are in
    both vocabularies and draws the others at random; `similarity` computes the others from similar
    copied ones, by similarity in the text (FOCUS) or in --vectors (WECHSEL); `mean` gives all
    subwords the mean of the old embeddings."""
    vectors: tuple[str, ...] = ()
    """Two files of aligned word vectors in word2vec's text format: for the language of the model,
    then for that of the text."""

    def run(self) -> None:
        """Train the vocabulary, write the folder and print how it covers the text."""
        require_free(self.out)
        require_count("--size", self.size, most=10_000_000)
        if self.for_ is not None and (self.kind is not None or self.lowercase):
            raise UserError("--for reads text as its model does: leave --kind and --lowercase out.")
        if self.vectors and (self.for_ is None or self.init != "similarity"):
            raise UserError("--vectors need --for MODEL and --init similarity.")
        if len(self.vectors) not in (0, 2):
            raise UserError(
                "--vectors needs two files: of the language of the model, then of the text."
            )
        if missing := [file for file in self.vectors if not Path(file).is_file()]:
            raise UserError(f"--vectors {missing[0]}: no such file.")
        quiet_libraries()
        from finetune.pretraining.vocabulary import write_vocabulary

        write_vocabulary(self)


@dataclass(frozen=True, kw_only=True)
class Perplexity(OutOption, FormatOption, InputOptions, Command):
    """Score texts, or minimal pairs of texts, with a masked language model.

    Examples:
        finetune perplexity roberta-base --file texts.txt
        finetune perplexity roberta-base --file pairs.jsonl --out scores.jsonl
    """

    model: Annotated[str, argument("MODEL")]
    """Masked language model: a short name, hub id, model folder, or run folder of `pretrain`."""
    method: Literal["token", "word"] = "token"
    """Mask one subword at a time, or also the later subwords of its word."""
    out: str | None = None
    """File to write (.jsonl), with a line for each text, or for pairs predictions for `finetune
    compare`."""
    encoder: ReadingOptions = field(default_factory=ReadingOptions)
    """Settings of the encoder."""

    def run(self) -> None:
        """Score all texts, write a line for each, and print the measures of the corpus."""
        self.require_input("perplexity")
        if self.out is not None:
            check_output(self.out, inputs_of(self.file), ROW_SUFFIXES)
        quiet_libraries()
        from finetune.pretraining.perplexity import score_texts

        score_texts(self)
