"""Train subword vocabularies: WordPiece, byte-level BPE and Unigram tokenizers on running text.

The library ``tokenizers`` trains; this module adds the normalizer, pre-tokenizer, special tokens,
template and decoder of BERT, RoBERTa and XLM-R, samples languages (Jurafsky & Martin, equation
11.7), and measures how a vocabulary covers a text.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from finetune.cli.output import print_table, show
from finetune.config.values import text_encoding
from finetune.data.mixing import sampling_probabilities
from finetune.data.running_text import TextSource, text_sources
from finetune.data.word_splitting import split_words
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.vocabulary_transfer import transfer
from finetune.runtime.files import replace_folder, write_text
from finetune.runtime.progress import Reporter
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.pretraining.commands import Vocabulary

Kind = Literal["wordpiece", "bpe", "unigram"]
ROLES = ("pad", "unk", "cls", "sep", "mask")
MEASURED_CHARACTERS = 2_000_000
"""Characters of each source, from lines spread evenly over it, that ``coverage`` measures."""


@dataclass(frozen=True)
class Layout:
    """The special tokens of a tokenizer in the order of their ids, and their places.

    ``single`` and ``pair`` are templates of ``tokenizers``, with segment ids; ``options`` are
    arguments of ``PreTrainedTokenizerFast``.
    """

    tokens: Sequence[str]
    roles: Mapping[str, str]
    single: Sequence[str]
    pair: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: SubwordTokenizer) -> Layout:
        """Read the special-token template of a tokenizer, for a new vocabulary of the same model.

        The padding token keeps its id, which positions of RoBERTa's family are counted from.
        """
        tok, single, pair = tokenizer.tokenizer, tokenizer.single, tokenizer.pair
        roles = {role: getattr(tok, f"{role}_token") for role in (*ROLES, "bos", "eos")}
        roles = {role: token for role, token in roles.items() if token is not None}
        around = [*single.prefix, *pair.middle, *single.suffix]
        ids = {*around, *map(tok.convert_tokens_to_ids, roles.values())}
        tokens = list(map(tok.convert_ids_to_tokens, sorted(ids)))
        if (pad := roles.get("pad")) is not None:
            tokens.remove(pad)
            tokens.insert(tok.convert_tokens_to_ids(pad), pad)
        before, first, between, second, after = pair.segments

        def placed(ids: Sequence[int], segment: int) -> list[str]:
            return [f"{token}:{segment}" for token in map(tok.convert_ids_to_tokens, ids)]

        begin = [*placed(single.prefix, before), f"$A:{first}"]
        middle = [*placed(pair.middle, between), f"$B:{second}"]
        return cls(
            tokens,
            roles,
            [*begin, *placed(single.suffix, first)],
            [*begin, *middle, *placed(single.suffix, after)],
            {"model_input_names": tok.model_input_names, "model_max_length": tok.model_max_length},
        )


_BERT = dict(zip(ROLES, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), strict=True))
_ROBERTA = dict(zip(ROLES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
_ROBERTA_LAYOUT = Layout(
    ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    _ROBERTA | {"bos": "<s>", "eos": "</s>"},
    ("<s>", "$A", "</s>"),
    ("<s>", "$A", "</s>", "</s>", "$B", "</s>"),
    {"model_input_names": ["input_ids", "attention_mask"]},
)
LAYOUTS: dict[Kind, Layout] = {
    "wordpiece": Layout(
        tuple(_BERT.values()),
        _BERT,
        ("[CLS]", "$A", "[SEP]"),
        ("[CLS]", "$A", "[SEP]", "$B:1", "[SEP]:1"),
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    ),
    "bpe": _ROBERTA_LAYOUT,
    "unigram": _ROBERTA_LAYOUT,
}
"""The layouts of BERT, RoBERTa and XLM-R."""


class Sample(NamedTuple):
    """The text of one source, its fraction of all text (p of 11.7), and of the sample (q)."""

    source: TextSource
    characters: int
    fraction: float
    sampled: float


def measure_sources(
    sources: Sequence[TextSource], alpha: float, reporter: Reporter
) -> list[Sample]:
    """Count the characters of all sources, and return the fraction of each in the sample.

    Raises:
        UserError: A source has no text, or α is outside its range.
    """
    sampling_probabilities([1], alpha)
    sizes = []
    reporter.start("reading text", len(sources), unit="source")
    for number, source in enumerate(sources):
        reporter.update(number, source.name)
        size = sum(len(line) for line in source.lines())
        if not size:
            raise UserError(
                f"{source.hub or ', '.join(map(str, source.files))}: there is no text in it."
            )
        sizes.append(size)
    reporter.stop()
    sampled = sampling_probabilities(sizes, alpha)
    fractions = [size / sum(sizes) for size in sizes]
    return [Sample(*values) for values in zip(sources, sizes, fractions, sampled, strict=True)]


def sampled_lines(samples: Sequence[Sample], seed: int) -> Iterator[str]:
    """Yield the lines of a sample as large as all sources, with the fractions ``sampled``.

    A line of a source with q = 2.3 p occurs twice, and a third time with probability 0.3.
    """
    for sample in samples:
        generator = random.Random(f"{seed}/{sample.source.name}")
        repeats, fraction = divmod(round(sample.sampled / sample.fraction, 9), 1)
        for line in sample.source.lines():
            for _ in range(int(repeats) + (generator.random() < fraction)):
                yield line


def train_tokenizer(
    lines: Callable[[], Iterable[str]],
    kind: Kind,
    size: int,
    *,
    lowercase: bool = False,
    layout: Layout | None = None,
    reporter: Reporter | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    BPE and WordPiece give the same tokenizer for the same lines each time. Unigram sums
    probabilities in an order that varies: its scores differ in their last digits.

    Args:
        lines: Returns an iterator over the text; WordPiece reads it twice.
        kind: ``wordpiece`` as in BERT, byte-level ``bpe`` as in RoBERTa, ``unigram`` as in XLM-R.
        size: Number of subwords, with the special tokens. A small text may give fewer.
        lowercase: Lower-case the text. Accents are kept.
        layout: The special tokens; by default of the model named under ``kind``.
        reporter: Shows the progress.

    Raises:
        UserError: ``size`` has no room for single characters or bytes, or there is no text.
    """
    layout = layout or LAYOUTS[kind]
    if reporter is not None:
        reporter.log(f"training a vocabulary: {kind}, {size:,} subwords")
    try:
        backend = _train(lines, kind, size, lowercase, layout)
    except Exception as error:
        if type(error) is not Exception:  # the library's own errors have no class
            raise
        raise _no_room(size, "the characters of the text") from error
    if backend.get_vocab_size() <= len(layout.tokens):
        raise UserError("the text has no words to train a vocabulary on.")
    around = {t for t in layout.tokens if {t, f"{t}:0", f"{t}:1"} & {*layout.pair}}
    backend.post_processor = processors.TemplateProcessing(
        single=list(layout.single),
        pair=list(layout.pair),
        special_tokens=[(token, backend.token_to_id(token)) for token in sorted(around)],
    )
    roles = {f"{role}_token": token for role, token in layout.roles.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles, **layout.options)


def kind_of(tokenizer: SubwordTokenizer) -> Kind:
    """Find the vocabulary type that is most similar to a tokenizer."""
    settings = json.loads(tokenizer.backend.to_str())
    if settings["model"]["type"] == "WordPiece":
        return "wordpiece"
    is_bytes = '"ByteLevel"' in json.dumps([settings["pre_tokenizer"], settings["decoder"]])
    return "bpe" if is_bytes else "unigram"


def lowercases(tokenizer: SubwordTokenizer) -> bool:
    """Whether a tokenizer lower-cases text."""
    upper, lower = tokenizer.text_subwords(["THE", "the"])
    return upper == lower


def fingerprint(tokenizer: Any) -> str:
    """Compute a hash of everything that decides how a tokenizer splits text."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def coverage(tokenizer: SubwordTokenizer, sample: Sample) -> dict[str, Any]:
    """Measure how a tokenizer covers the words (``split_words``) of a source.

    Returns:
        ``num_words``; ``fertility``, the number of subwords per word; ``continued``, the fraction
        of words that it splits (Rust et al. 2021); ``unknown``, the fraction of unknown subwords.
    """
    step = max(1, sample.characters // MEASURED_CHARACTERS)
    lines = islice(sample.source.lines(), 0, None, step)
    words = Counter(word for line in lines for word in split_words(line)[0])
    subwords = tokenizer.raw_word_subwords([list(words)])[0]
    count = np.fromiter(words.values(), np.int64)
    size = np.array([len(ids) for ids in subwords], np.int64)
    unknown = -1 if tokenizer.unknown is None else tokenizer.unknown
    misses = np.array([ids.count(unknown) for ids in subwords], np.int64)
    num_words, num_subwords = int(count.sum()), int(count @ size)
    per_word = 1 / max(1, num_words)
    return {
        "num_words": num_words,
        "fertility": num_subwords * per_word,
        "continued": int(count @ (size > 1)) * per_word,
        "unknown": int(count @ misses) / max(1, num_subwords),
    }


def _train(
    lines: Callable[[], Iterable[str]], kind: Kind, size: int, lowercase: bool, layout: Layout
) -> Tokenizer:
    special = list(layout.tokens)
    options: dict[str, Any] = {"vocab_size": size, "show_progress": False}
    if kind == "wordpiece":
        return _train_wordpiece(lines, size, lowercase, layout)
    trainer: trainers.Trainer
    lower = [normalizers.Lowercase()] * lowercase
    if kind == "bpe":
        backend = Tokenizer(models.BPE())
        if lower:
            backend.normalizer = lower[0]
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        if size < len(special) + len(alphabet):
            raise _no_room(size, f"{len(special)} special tokens and {len(alphabet)} bytes")
        options |= {"initial_alphabet": alphabet, "min_frequency": 2}
        trainer = trainers.BpeTrainer(special_tokens=special, **options)
    else:
        backend = Tokenizer(models.Unigram())
        steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        backend.normalizer = normalizers.Sequence([*steps, *lower])
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        options |= {"unk_token": layout.roles["unk"]}
        trainer = trainers.UnigramTrainer(special_tokens=special, **options)
    backend.train_from_iterator(lines(), trainer)
    return backend


def _train_wordpiece(
    lines: Callable[[], Iterable[str]], size: int, lowercase: bool, layout: Layout
) -> Tokenizer:
    limit = max(1, (size - len(layout.tokens)) // 2)  # most characters are there as x and ##x

    def tokenizer(vocabulary: dict[str, int] | None) -> Tokenizer:
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token=layout.roles["unk"]))
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        return backend

    def vocabulary(size: int, first: Iterable[str]) -> dict[str, int]:
        backend = tokenizer(None)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=list(first),
            limit_alphabet=limit,
            min_frequency=2,
            show_progress=False,
        )
        backend.train_from_iterator(lines(), trainer)
        return backend.get_vocab()

    # The ids of the alphabet vary and decide between equal counts: fix them before the merges.
    first = dict.fromkeys((*layout.tokens, *sorted(vocabulary(0, ()))))
    if size < len(first):
        raise _no_room(size, f"{len(layout.tokens)} special tokens and the characters of the text")
    backend = tokenizer(vocabulary(size, first))
    backend.add_special_tokens(list(layout.tokens))
    return backend


def _no_room(size: int, content: str) -> UserError:
    return UserError(f"--size {size} has no room for {content}: write a larger one.")


def write_vocabulary(command: Vocabulary) -> None:
    """Train a vocabulary, write the folder and print how it covers the text."""
    sources = text_sources(command.texts, text_encoding(command.encoding))
    options: Any = {"trust_remote_code": command.trust_remote_code}
    old = None
    if command.for_ is not None:
        old = SubwordTokenizer.from_pretrained(command.for_, words=True, **options)
    kind = command.kind or (kind_of(old) if old else "bpe")
    lowercase = command.lowercase
    if lowercase is None:
        lowercase = old is not None and lowercases(old)
    with Reporter() as reporter, replace_folder(Path(command.out)) as folder:
        samples = measure_sources(sources, command.alpha, reporter)

        def lines() -> Iterator[str]:
            return sampled_lines(samples, command.seed)

        tokenizer = train_tokenizer(
            lines,
            kind,
            command.size,
            lowercase=lowercase,
            layout=Layout.of(old) if old else None,
            reporter=reporter,
        )
        tokenizer.save_pretrained(folder)
        new = SubwordTokenizer.saved(folder, words=True)
        systems = {"": new} if old is None else {"new": new, "old": old}
        covered = [
            (name, sample, coverage(system, sample))
            for sample in samples
            for name, system in systems.items()
        ]
        record: dict[str, Any] = {
            "kind": kind,
            "size": len(tokenizer),
            "lowercase": lowercase,
            "fingerprint": fingerprint(tokenizer),
            "alpha": command.alpha,
            "seed": command.seed,
            "sources": {
                sample.source.name: {
                    "characters": sample.characters,
                    "fraction": sample.fraction,
                    "sampled": sample.sampled,
                    **each,
                }
                for name, sample, each in covered
                if name != "old"
            },
        }
        if old is not None:
            record["embeddings"] = transfer(command, old, new, lines(), folder, reporter)
        write_text(folder / "vocabulary.json", json.dumps(record, indent=2) + "\n")
    columns = ("source", "vocabulary", "words", "fraction", "sampled")
    rows = [
        (
            *(source.name, name, f"{each['num_words']:,}"),
            *map("{:.3f}".format, (fraction, sampled)),
            *(f"{each[rate]:.3f}" for rate in ("fertility", "continued", "unknown")),
        )
        for name, (source, _, fraction, sampled), each in covered
    ]
    print_table((*columns, "subwords/word", "split words", "unknown"), rows)
    asked = "" if len(tokenizer) == command.size else f" (asked for {command.size:,})"
    show(f"{kind}, {len(tokenizer):,} subwords{asked}, fingerprint {record['fingerprint'][:12]}")
    if counts := record.get("embeddings"):
        show(
            f"embeddings ({counts['init']}): {counts['copied']:,} copied, "
            f"{counts['averaged']:,} averaged from similar ones, {counts['other']:,} "
            + ("the mean of all" if command.init == "mean" else "drawn at random")
        )
    show(f"wrote {command.out}")
