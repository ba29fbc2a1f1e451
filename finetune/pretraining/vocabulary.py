"""Train subword vocabularies: WordPiece, byte-level BPE and Unigram tokenizers on running text.

The library ``tokenizers`` trains; this module adds the normalizer, pre-tokenizer, special tokens
and decoder of BERT, RoBERTa and XLM-R, samples languages (Jurafsky & Martin, equation 11.7), and
measures how a vocabulary covers a text.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
from transformers import BertTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from finetune.cli.output import print_table, show
from finetune.config.values import text_encoding
from finetune.data.running_text import TextSource, text_sources
from finetune.data.splitting import sampling_probabilities
from finetune.data.word_splitting import split_words
from finetune.preprocessing.subwords import Template
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.vocabulary_transfer import is_byte_level, transfer
from finetune.runtime.files import replace_folder, write_text
from finetune.runtime.progress import Reporter
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.pretraining.commands import VocabularyCommand

VocabularyType = Literal["wordpiece", "bpe", "unigram"]
MEASURED_CHARACTERS = 2_000_000
"""Characters of each source, from lines spread evenly over it, that ``coverage`` measures."""


class Sample(NamedTuple):
    """The text of one source, its fraction of all text (p of 11.7), and of the sample (q)."""

    source: TextSource
    characters: int
    fraction: float
    sampled: float


def measure_sources(
    sources: Sequence[TextSource], alpha: float, reporter: Reporter
) -> list[Sample]:
    """Count the characters of all sources, and compute the fraction of each in the sample.

    Raises:
        UserError: A source has no text, or α is outside its range.
    """
    sampling_probabilities([1], alpha)
    sizes = []
    reporter.start("reading text", len(sources), unit="source")
    for number, source in enumerate(sources):
        reporter.update(number, source.name)
        sizes.append(sum(map(len, source.lines())))
        if not sizes[-1]:
            name = source.hub or ", ".join(map(str, source.files))
            raise UserError(f"{name}: there is no text in it.")
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


def plain_tokenizer(kind: VocabularyType) -> SubwordTokenizer:
    """Make the tokenizer of BERT or RoBERTa with its special tokens and the letter a alone."""
    is_bert = kind == "wordpiece"
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] a" if is_bert else "<s> <pad> </s> <unk> <mask> a"
    vocabulary = {token: id for id, token in enumerate(tokens.split())}
    return SubwordTokenizer((BertTokenizer if is_bert else RobertaTokenizer)(vocab=vocabulary))


def train_tokenizer(
    lines: Callable[[], Iterable[str]],
    kind: VocabularyType,
    size: int,
    *,
    lowercase: bool = False,
    like: SubwordTokenizer | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    BPE and WordPiece give the same tokenizer for the same lines each time. Unigram sums
    probabilities in an order that varies: its scores differ in their last digits.

    Args:
        lines: Makes an iterator over the text; WordPiece reads it twice.
        kind: ``wordpiece`` as in BERT, byte-level ``bpe`` as in RoBERTa, ``unigram`` as in XLM-R.
        size: Number of subwords, with the special tokens. A small text may give fewer.
        lowercase: Lower-case the text. Accents are kept.
        like: The tokenizer whose special tokens to take; by default of the model named under
            ``kind``. The padding token keeps its id, from which RoBERTa's family counts positions.

    Raises:
        UserError: ``size`` has no room for single characters or bytes, or there is no text.
    """
    like = like or plain_tokenizer(kind)
    special, unknown = _special_tokens(like.tokenizer, like.pair), like.tokenizer.unk_token
    trainer: Any = {
        "wordpiece": partial(
            trainers.WordPieceTrainer,
            limit_alphabet=max(1, (size - len(special)) // 2),  # most are there as x and ##x
            min_frequency=2,
        ),
        "bpe": partial(
            trainers.BpeTrainer,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            min_frequency=2,
        ),
        "unigram": partial(trainers.UnigramTrainer, unk_token=unknown),
    }[kind]
    backend = _pipeline(kind, lowercase, unknown)

    def train(vocab_size: int, first: list[str]) -> None:
        options = {"vocab_size": vocab_size, "special_tokens": first, "show_progress": False}
        backend.train_from_iterator(lines(), trainer(**options))

    no_room = UserError(
        f"--size {size} has no room for the special tokens and the characters of the text, or all "
        "bytes: write a larger one."
    )
    try:
        if kind == "wordpiece":
            # The ids of the alphabet vary and decide between equal counts: fix them first.
            train(0, [])
            train(size, list(dict.fromkeys([*special, *sorted(backend.get_vocab())])))
            backend = _pipeline(kind, lowercase, unknown, backend.get_vocab())
            backend.add_special_tokens(special)
        else:
            train(size, special)
    except Exception as error:
        if type(error) is not Exception:  # the library's own errors have no class
            raise
        raise no_room from error
    if backend.get_vocab_size() > size:
        raise no_room
    if backend.get_vocab_size() <= len(special):
        raise UserError("the text has no words to train a vocabulary on.")
    backend.post_processor = _post_processor(like, backend)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=like.tokenizer.model_input_names,
        model_max_length=like.tokenizer.model_max_length,
        **_roles(like.tokenizer),
    )


def _roles(tokenizer: Any) -> dict[str, str]:
    return {role: name for role, name in tokenizer.special_tokens_map.items() if type(name) is str}


def _special_tokens(tokenizer: Any, template: Template) -> list[str]:
    ids = {*template.prefix, *template.middle, *template.suffix}
    ids.update(map(tokenizer.convert_tokens_to_ids, _roles(tokenizer).values()))
    tokens: list[str] = tokenizer.convert_ids_to_tokens(sorted(ids))
    if (pad := tokenizer.pad_token) is not None:
        tokens.remove(pad)
        tokens.insert(tokenizer.pad_token_id, pad)
    return tokens


def _post_processor(like: SubwordTokenizer, backend: Tokenizer) -> processors.PostProcessor:
    names = like.tokenizer.convert_ids_to_tokens

    def pieces(template: Template, second: list[str]) -> list[str]:
        parts = (
            names(template.prefix),
            ["$A"],
            names(template.middle),
            second,
            names(template.suffix),
        )
        return [
            f"{piece}:{segment}"
            for part, segment in zip(parts, template.segments, strict=True)
            for piece in part
        ]

    single, pair = pieces(like.single, []), pieces(like.pair, ["$B"])
    around = {piece.rpartition(":")[0] for piece in pair} - {"$A", "$B"}
    special = [(token, backend.token_to_id(token)) for token in sorted(around)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def _pipeline(
    kind: VocabularyType, lowercase: bool, unknown: str, vocabulary: dict[str, int] | None = None
) -> Tokenizer:
    lower = [normalizers.Lowercase()] * lowercase
    if kind == "wordpiece":
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    elif kind == "bpe":
        backend = Tokenizer(models.BPE())
        if lower:
            backend.normalizer = lower[0]
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    else:
        backend = Tokenizer(models.Unigram())
        steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        backend.normalizer = normalizers.Sequence([*steps, *lower])
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return backend


def kind_of(tokenizer: SubwordTokenizer) -> VocabularyType:
    """Find the vocabulary type that is most similar to a tokenizer."""
    if isinstance(tokenizer.backend.model, models.WordPiece):
        return "wordpiece"
    return "bpe" if is_byte_level(tokenizer) else "unigram"


def lowercases(tokenizer: SubwordTokenizer) -> bool:
    """Whether a tokenizer lower-cases text."""
    upper, lower = tokenizer.text_subwords(["THE", "the"])
    return upper == lower


def tokenizer_hash(tokenizer: Any) -> str:
    """Compute a hash of everything that decides how a tokenizer splits text."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def coverage(tokenizer: SubwordTokenizer, source: TextSource, characters: int) -> dict[str, Any]:
    """Measure how a tokenizer covers the words (``split_words``) of a source.

    Returns:
        ``num_words``; ``fertility``, the number of subwords per word; ``continued``, the fraction
        of words that it splits (Rust et al. 2021); ``unknown``, the fraction of unknown subwords.
    """
    step = max(1, characters // MEASURED_CHARACTERS)
    lines = islice(source.lines(), 0, None, step)
    words = Counter(word for line in lines for word in split_words(line)[0])
    (subwords,) = tokenizer.raw_word_subwords([list(words)])
    count = np.array(list(words.values()), np.int64)
    size = np.array(list(map(len, subwords)), np.int64)
    unknown_id: Any = tokenizer.unknown
    unknown = np.array([ids.count(unknown_id) for ids in subwords], np.int64)
    num_words, num_subwords = max(1, words.total()), int(count @ size)
    return {
        "num_words": words.total(),
        "fertility": num_subwords / num_words,
        "continued": int(count @ (size > 1)) / num_words,
        "unknown": int(count @ unknown) / max(1, num_subwords),
    }


def write_vocabulary(command: VocabularyCommand) -> None:
    """Train a vocabulary, write the folder and print how it covers the text."""
    sources = text_sources(command.texts, text_encoding(command.encoding))
    old, kind, lowercase = None, command.kind or "bpe", bool(command.lowercase)
    if command.for_ is not None:
        old = SubwordTokenizer.from_pretrained(
            command.for_, words=True, trust_remote_code=command.trust_remote_code
        )
        kind = command.kind or kind_of(old)
        lowercase = lowercases(old) if command.lowercase is None else lowercase
    rows = []
    with Reporter() as reporter, replace_folder(Path(command.out)) as folder:
        samples = measure_sources(sources, command.alpha, reporter)
        lines = partial(sampled_lines, samples, command.seed)
        reporter.log(f"training a vocabulary: {kind}, {command.size:,} subwords")
        tokenizer = train_tokenizer(lines, kind, command.size, lowercase=lowercase, like=old)
        tokenizer.save_pretrained(folder)
        new = SubwordTokenizer.saved(folder, words=True)
        saved: dict[str, Any] = {
            "kind": kind,
            "size": len(tokenizer),
            "lowercase": lowercase,
            "fingerprint": tokenizer_hash(tokenizer),
            "alpha": command.alpha,
            "seed": command.seed,
            "sources": {},
        }
        for source, characters, *fractions in samples:
            sizes = dict(zip(("fraction", "sampled"), fractions, strict=True))
            for name, subwords in {"new": new, "old": old}.items():
                if subwords is not None:
                    measures = coverage(subwords, source, characters)
                    saved["sources"].setdefault(  # of the new vocabulary
                        source.name, {"characters": characters, **sizes, **measures}
                    )
                    words, *rates = measures.values()
                    rows.append((source.name, name, words, *fractions, *rates))
        if old is not None:
            saved["embeddings"] = transfer(command, old, new, lines(), folder, reporter)
        write_text(folder / "vocabulary.json", json.dumps(saved, indent=2) + "\n")
    columns = ("source", "vocabulary", "words", "fraction", "sampled")
    print_table((*columns, "subwords/word", "split words", "unknown"), rows)
    asked = "" if len(tokenizer) == command.size else f" (asked for {command.size:,})"
    show(f"{kind}, {len(tokenizer):,} subwords{asked}, fingerprint {saved['fingerprint'][:12]}")
    if counts := saved.get("embeddings"):
        show(
            f"embeddings ({counts['init']}): {counts['copied']:,} copied, "
            f"{counts['averaged']:,} averaged from similar ones, {counts['other']:,} "
            + ("the mean of all" if command.init == "mean" else "drawn at random")
        )
    show(f"wrote {command.out}")
