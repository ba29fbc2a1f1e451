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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from finetune.pretraining.vocabulary_transfer import is_byte_level, transfer
from finetune.runtime.files import replace_folder, write_text
from finetune.runtime.progress import Reporter
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.pretraining.commands import VocabularyCommand

VocabularyType = Literal["wordpiece", "bpe", "unigram"]
_ROLES = ("pad", "unk", "cls", "sep", "mask")
MEASURED_CHARACTERS = 2_000_000
"""Characters of each source, from lines spread evenly over it, that ``coverage`` measures."""


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The special tokens of a tokenizer in the order of their ids, and where they stand.

    ``single`` and ``pair`` are templates of ``tokenizers``, with segment ids; ``options`` are
    arguments of ``PreTrainedTokenizerFast``.
    """

    tokens: Sequence[str]
    roles: Mapping[str, str]
    single: str
    pair: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, tokenizer: SubwordTokenizer) -> SpecialTokenTemplate:
        """Read the template of a tokenizer, for a new vocabulary of the same model.

        The padding token keeps its id, which positions of RoBERTa's family are counted from.
        """
        backend, single, pair = tokenizer.tokenizer, tokenizer.single, tokenizer.pair
        names, id_of = backend.convert_ids_to_tokens, backend.convert_tokens_to_ids
        roles = {role: getattr(backend, f"{role}_token") for role in (*_ROLES, "bos", "eos")}
        roles = {role: token for role, token in roles.items() if token is not None}
        ids = {*single.prefix, *pair.middle, *single.suffix, *map(id_of, roles.values())}
        tokens = names(sorted(ids))
        if (pad := roles.get("pad")) is not None:
            tokens.remove(pad)
            tokens.insert(id_of(pad), pad)

        def template(*parts: tuple[Sequence[str], int]) -> str:
            return " ".join(f"{piece}:{segment}" for pieces, segment in parts for piece in pieces)

        before, first, between, second, after = pair.segments
        begin = (names(single.prefix), before), (["$A"], first)
        middle, end = (names(pair.middle), between), names(single.suffix)
        return cls(
            tokens,
            roles,
            template(*begin, (end, first)),
            template(*begin, middle, (["$B"], second), (end, after)),
            {key: getattr(backend, key) for key in ("model_input_names", "model_max_length")},
        )


_ROBERTA = SpecialTokenTemplate(
    ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    dict(zip(_ROLES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
    | {"bos": "<s>", "eos": "</s>"},
    "<s> $A </s>",
    "<s> $A </s> </s> $B </s>",
    {"model_input_names": ["input_ids", "attention_mask"]},
)
_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BERT = SpecialTokenTemplate(
    _BERT_TOKENS,
    dict(zip(_ROLES, _BERT_TOKENS, strict=True)),
    "[CLS] $A [SEP]",
    "[CLS] $A [SEP] $B:1 [SEP]:1",
    {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
)
SPECIAL_TOKEN_TEMPLATES: dict[VocabularyType, SpecialTokenTemplate] = {
    "wordpiece": _BERT,
    "bpe": _ROBERTA,
    "unigram": _ROBERTA,
}
"""The templates of BERT, RoBERTa and XLM-R."""


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


def train_tokenizer(
    lines: Callable[[], Iterable[str]],
    kind: VocabularyType,
    size: int,
    *,
    lowercase: bool = False,
    template: SpecialTokenTemplate | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    BPE and WordPiece give the same tokenizer for the same lines each time. Unigram sums
    probabilities in an order that varies: its scores differ in their last digits.

    Args:
        lines: Makes an iterator over the text; WordPiece reads it twice.
        kind: ``wordpiece`` as in BERT, byte-level ``bpe`` as in RoBERTa, ``unigram`` as in XLM-R.
        size: Number of subwords, with the special tokens. A small text may give fewer.
        lowercase: Lower-case the text. Accents are kept.
        template: The special tokens; by default of the model named under ``kind``.

    Raises:
        UserError: ``size`` has no room for single characters or bytes, or there is no text.
    """
    template = template or SPECIAL_TOKEN_TEMPLATES[kind]
    special = list(template.tokens)
    try:
        if kind == "wordpiece":
            backend = _train_wordpiece(lines, size, lowercase, template)
        else:
            backend = _pipeline(kind, lowercase)
            trainer: trainers.Trainer
            if kind == "bpe":
                alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
                if size < len(special) + len(alphabet):
                    raise _no_room(size, f"{len(special)} special tokens and {len(alphabet)} bytes")
                trainer = trainers.BpeTrainer(
                    vocab_size=size,
                    special_tokens=special,
                    initial_alphabet=alphabet,
                    min_frequency=2,
                    show_progress=False,
                )
            else:
                trainer = trainers.UnigramTrainer(
                    vocab_size=size,
                    special_tokens=special,
                    unk_token=template.roles["unk"],
                    show_progress=False,
                )
            backend.train_from_iterator(lines(), trainer)
    except Exception as error:
        if type(error) is not Exception:  # the library's own errors have no class
            raise
        raise _no_room(size, "the characters of the text") from error
    if backend.get_vocab_size() <= len(special):
        raise UserError("the text has no words to train a vocabulary on.")
    around = {piece.removesuffix(":0").removesuffix(":1") for piece in template.pair.split()}
    around -= {"$A", "$B"}
    backend.post_processor = processors.TemplateProcessing(
        single=template.single,
        pair=template.pair,
        special_tokens=[
            (name, backend.token_to_id(name)) for name in sorted(around - {"$A", "$B"})
        ],
    )
    roles = {f"{role}_token": token for role, token in template.roles.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles, **template.options)


def _pipeline(kind: VocabularyType, lowercase: bool, model: Any = None) -> Tokenizer:
    lower = [normalizers.Lowercase()] * lowercase
    if kind == "wordpiece":
        backend = Tokenizer(model)
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


def _train_wordpiece(
    lines: Callable[[], Iterable[str]], size: int, lowercase: bool, template: SpecialTokenTemplate
) -> Tokenizer:
    special, unknown = list(template.tokens), template.roles["unk"]

    def vocabulary(vocab_size: int, first: list[str]) -> dict[str, int]:
        backend = _pipeline("wordpiece", lowercase, models.WordPiece(unk_token=unknown))
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            special_tokens=first,
            limit_alphabet=max(1, (size - len(special)) // 2),  # most are there as x and ##x
            min_frequency=2,
            show_progress=False,
        )
        backend.train_from_iterator(lines(), trainer)
        return backend.get_vocab()

    # The ids of the alphabet vary and decide between equal counts: fix them before the merges.
    first = list(dict.fromkeys((*special, *sorted(vocabulary(0, [])))))
    if size < len(first):
        raise _no_room(size, f"{len(special)} special tokens and the characters of the text")
    model = models.WordPiece(vocabulary(size, first), unk_token=unknown)
    backend = _pipeline("wordpiece", lowercase, model)
    backend.add_special_tokens(special)
    return backend


def _no_room(size: int, content: str) -> UserError:
    return UserError(f"--size {size} has no room for {content}: write a larger one.")


def kind_of(tokenizer: SubwordTokenizer) -> VocabularyType:
    """Find the vocabulary type that is most similar to a tokenizer."""
    if json.loads(tokenizer.backend.to_str())["model"]["type"] == "WordPiece":
        return "wordpiece"
    return "bpe" if is_byte_level(tokenizer) else "unigram"


def lowercases(tokenizer: SubwordTokenizer) -> bool:
    """Whether a tokenizer lower-cases text."""
    upper, lower = tokenizer.text_subwords(["THE", "the"])
    return upper == lower


def tokenizer_hash(tokenizer: Any) -> str:
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
    num_unknown = np.array([ids.count(unknown) for ids in subwords], np.int64)
    num_words, num_subwords = int(count.sum()), int(count @ size)
    per_word = 1 / max(1, num_words)
    return {
        "num_words": num_words,
        "fertility": num_subwords * per_word,
        "continued": int(count @ (size > 1)) * per_word,
        "unknown": int(count @ num_unknown) / max(1, num_subwords),
    }


def write_vocabulary(command: VocabularyCommand) -> None:
    """Train a vocabulary, write the folder and print how it covers the text."""
    sources = text_sources(command.texts, text_encoding(command.encoding))
    old = None
    if command.for_ is not None:
        old = SubwordTokenizer.from_pretrained(
            command.for_, words=True, trust_remote_code=command.trust_remote_code
        )
    kind = command.kind or (kind_of(old) if old else "bpe")
    lowercase = command.lowercase
    if lowercase is None:
        lowercase = old is not None and lowercases(old)
    rows = []
    with Reporter() as reporter, replace_folder(Path(command.out)) as folder:
        samples = measure_sources(sources, command.alpha, reporter)

        def lines() -> Iterator[str]:
            return sampled_lines(samples, command.seed)

        reporter.log(f"training a vocabulary: {kind}, {command.size:,} subwords")
        template = SpecialTokenTemplate.of(old) if old else None
        tokenizer = train_tokenizer(
            lines, kind, command.size, lowercase=lowercase, template=template
        )
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
        for sample in samples:
            measured, facts = coverage(new, sample), sample._asdict()
            del facts["source"]
            saved["sources"][sample.source.name] = facts | measured
            rows.append(_row(sample, "new" if old else "", measured))
            if old is not None:
                rows.append(_row(sample, "old", coverage(old, sample)))
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


def _row(sample: Sample, vocabulary: str, measured: Mapping[str, Any]) -> tuple[str, ...]:
    rates = (sample.fraction, sample.sampled, *list(measured.values())[1:])
    words = f"{measured['num_words']:,}"
    return (sample.source.name, vocabulary, words, *map("{:.3f}".format, rates))
