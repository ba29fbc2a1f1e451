"""`finetune vocabulary`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.command import Command
from finetune.cli.options import EncodingOption, HubOptions, SeedOption
from finetune.cli.output import print_table, quiet_libraries, show
from finetune.config.options import Help, argument
from finetune.config.values import text_encoding
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.preprocessing.tokenizer import SubwordTokenizer
    from finetune.pretraining.vocabulary import Coverage, Sample
    from finetune.runtime.progress import Reporter


LARGEST = 10_000_000
"""Most subwords of a vocabulary: the memory of training grows with their number."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary(EncodingOption, SeedOption, HubOptions, Command):
    """Train a subword vocabulary on text, alone or for the embeddings of a trained encoder.

    Examples:
        finetune vocabulary texts/ --out vocabulary --kind wordpiece --size 30000
        finetune vocabulary de.txt --for roberta-base --out roberta-de
    """

    texts: Annotated[str, argument("TEXTS")]
    """A file or folder of text, or several languages or sources: `en=FILE,de=FILE`. Plain text,
    JSON Lines, CSV, TSV or Parquet with a column of texts, or tagged words."""
    out: Annotated[str, Help("FOLDER", "output")]
    """Folder to write."""
    kind: Literal["wordpiece", "bpe", "unigram"] | None = None
    """WordPiece as in BERT, byte-level BPE as in RoBERTa, or Unigram as in XLM-R; unset is the kind
    of the --for model, else bpe."""
    size: int = 8000
    """Number of subwords, with the special tokens."""
    alpha: float = 0.3
    """Exponent of the sizes of several sources: 1 samples them in proportion, 0 equally."""
    lowercase: bool | None = None
    """Lower-case the text; unset is as the model of --for does, else no."""
    for_: Annotated[str | None, Help(name="--for")] = None
    """Encoder that gets the vocabulary; the folder then holds that model too."""
    init: Literal["overlap", "similarity", "mean"] = "similarity"
    """Embeddings of the new vocabulary. `overlap` copies the embeddings of subwords that both
    vocabularies have and draws the others at random; `similarity` computes the others by similarity
    to the copied ones in the text (FOCUS), or in --vectors (WECHSEL); `mean` gives all subwords the
    mean of the old embeddings."""
    vectors: tuple[str, ...] = ()
    """Two files of word vectors, of the language of the model and of the text, in word2vec's text
    format; in one space, or with --dictionary."""
    dictionary: str | None = None
    """File of translations that aligns the vectors: on each line a word of the language of the
    model, a tab, and one of the text."""

    def run(self) -> None:
        """Train the vocabulary, write the folder and print how it covers the text."""
        self._check()
        from finetune.data.running_text import text_sources

        sources = text_sources(self.texts, text_encoding(self.encoding))
        quiet_libraries()
        from finetune.preprocessing.tokenizer import SubwordTokenizer
        from finetune.pretraining import vocabulary as training
        from finetune.runtime.files import replace_folder, write_text
        from finetune.runtime.progress import Reporter

        old = None
        if self.for_ is not None:
            old = SubwordTokenizer.from_pretrained(self.for_, words=True, **self._options)
        kind = self.kind or (training.kind_of(old) if old else "bpe")
        lowercase = self.lowercase
        if lowercase is None:
            lowercase = old is not None and training.lowercases(old)
        layout = training.Layout.of(old) if old else None
        with Reporter() as reporter, replace_folder(Path(self.out)) as folder:
            samples = training.measure_sources(sources, self.alpha, reporter)
            tokenizer = training.train_tokenizer(
                lambda: training.sampled_lines(samples, self.seed),
                kind,
                self.size,
                lowercase=lowercase,
                layout=layout,
                reporter=reporter,
            )
            tokenizer.save_pretrained(folder)
            new = SubwordTokenizer.saved(folder, words=True)
            systems = {"": new} if old is None else {"new": new, "old": old}
            covered = {
                (name, sample): training.coverage(system, sample)
                for sample in samples
                for name, system in systems.items()
            }
            record: dict[str, Any] = {
                "kind": kind,
                "size": len(tokenizer),
                "lowercase": lowercase,
                "fingerprint": training.fingerprint(tokenizer),
                "alpha": self.alpha,
                "seed": self.seed,
                "sources": {
                    sample.source.name: {
                        "characters": sample.characters,
                        "fraction": sample.fraction,
                        "sampled": sample.sampled,
                        **covered[next(iter(systems)), sample]._asdict(),
                    }
                    for sample in samples
                },
            }
            if old is not None:
                record["embeddings"] = self._transfer(old, new, samples, folder, reporter)
            write_text(folder / "vocabulary.json", json.dumps(record, indent=2) + "\n")
        _print_coverage(covered)
        asked = "" if len(tokenizer) == self.size else f" (asked for {self.size:,})"
        show(
            f"{kind}, {len(tokenizer):,} subwords{asked}, fingerprint {record['fingerprint'][:12]}"
        )
        if counts := record.get("embeddings"):
            show(
                f"embeddings ({counts['init']}): {counts['copied']:,} copied, "
                f"{counts['averaged']:,} averaged from similar ones, {counts['other']:,} "
                + ("the mean of all" if self.init == "mean" else "drawn at random")
            )
        show(f"wrote {self.out}")

    @property
    def _options(self) -> dict[str, Any]:
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}

    def _check(self) -> None:
        """Raise UserError for options that exclude each other."""
        from finetune.runtime.files import is_free

        folder = Path(self.out)
        if folder.is_file() or not is_free(folder):
            raise UserError(f"--out {folder} exists: name another folder, or remove it.")
        if not 1 <= self.size <= LARGEST:
            raise UserError(f"--size must be from 1 to {LARGEST:,}, not {self.size}.")
        if (self.vectors or self.dictionary) and (self.for_ is None or self.init != "similarity"):
            raise UserError("--vectors and --dictionary need --for MODEL and --init similarity.")
        if self.dictionary and not self.vectors:
            raise UserError("--dictionary aligns the files of --vectors: name these too.")
        if len(self.vectors) not in (0, 2):
            raise UserError(
                "--vectors needs two files: of the language of the model, then of the text."
            )

    def _transfer(
        self,
        old: SubwordTokenizer,
        new: SubwordTokenizer,
        samples: Sequence[Sample],
        folder: Path,
        reporter: Reporter,
    ) -> dict[str, Any]:
        """Write the model with the new vocabulary; return the numbers of its embeddings."""
        from finetune.models.loading import quiet
        from finetune.preprocessing.subword_vectors import WordVectors
        from finetune.pretraining import vocabulary_transfer as transfer
        from finetune.pretraining.vocabulary import sampled_lines

        assert self.for_ is not None
        reporter.say(f"embeddings of {self.for_}: {self.init}")
        vectors = None
        if self.vectors:
            source, target = map(WordVectors.read, self.vectors)
            if self.dictionary:
                target = target.aligned(source, Path(self.dictionary))
            elif source.vectors.shape[1] != target.vectors.shape[1]:
                raise UserError(
                    f"--vectors have {source.vectors.shape[1]} and {target.vectors.shape[1]} "
                    "dimensions: name files in one space."
                )
            vectors = source, target
        made = transfer.embedding_map(
            old, new, self.init, sampled_lines(samples, self.seed), vectors
        )
        if self.init == "similarity" and not made.averaged:
            reporter.say(
                "note: the vocabularies share no subword of the text, so that nothing is similar: "
                "all embeddings are drawn at random. Word vectors (--vectors) would help."
            )
        model = transfer.with_vocabulary(self.for_, old, new, made, seed=self.seed, **self._options)
        with quiet():
            model.save_pretrained(folder)
        other = made.weights.shape[0] - made.copied - made.averaged
        return {
            "model": self.for_,
            "init": self.init,
            "copied": made.copied,
            "averaged": made.averaged,
            "other": other,
        }


def _print_coverage(covered: Mapping[tuple[str, Sample], Coverage]) -> None:
    """Print a row for each source and vocabulary."""
    columns = (
        "source",
        "vocabulary",
        "words",
        "fraction",
        "sampled",
        "subwords/word",
        "split words",
        "unknown",
        "covered words",
    )
    rows = []
    for (name, sample), each in covered.items():
        rates = (
            sample.fraction,
            sample.sampled,
            each.fertility,
            each.continued,
            each.unknown,
            each.covered,
        )
        rows.append((sample.source.name, name, f"{each.num_words:,}", *map("{:.3f}".format, rates)))
    print_table(columns, rows)
