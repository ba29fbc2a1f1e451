"""Train subword vocabularies: WordPiece, byte-level BPE and Unigram tokenizers on running text.

transformers trains a tokenizer like another one: like that of a model, or like an empty one of
BERT, RoBERTa or XLM-R. This module samples languages (Jurafsky & Martin, equation 11.7), fixes what
varies between two trainings, and measures how a vocabulary covers a text.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from tokenizers import Tokenizer, models, normalizers
from transformers import (
    BertTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from finetune.cli.output import print_table, show
from finetune.config.values import text_encoding
from finetune.data.running_text import TextSource, text_sources
from finetune.data.splitting import sampling_probabilities
from finetune.data.word_splitting import split_words
from finetune.models.loading import quiet
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.vocabulary_transfer import (
    embedding_weights,
    read_word_vectors,
    subword_vectors,
    with_vocabulary,
)
from finetune.runtime.files import replace_folder, write_text
from finetune.runtime.progress import Reporter
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.pretraining.commands import VocabularyCommand

Algorithm = Literal["wordpiece", "bpe", "unigram"]
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


def plain_tokenizer(algorithm: Algorithm, *, lowercase: bool = False) -> Any:
    """Make the tokenizer of BERT, RoBERTa or XLM-R with its special tokens alone."""
    if algorithm == "wordpiece":
        return BertTokenizer(do_lower_case=lowercase, strip_accents=False)
    steps: list[Any] = [normalizers.Lowercase()] * lowercase
    if algorithm == "bpe":
        special = "<s> <pad> </s> <unk> <mask>".split()
        ids = {token: id for id, token in enumerate(special)}
        tokenizer: Any = RobertaTokenizer(vocab=ids, merges=[])
    else:
        tokenizer = XLMRobertaTokenizer()
        steps = [normalizers.Nmt(), normalizers.NFKC(), *steps]
    if steps:
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def train_tokenizer(
    lines: Callable[[], Iterable[str]], size: int, like: Any
) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    BPE and WordPiece give the same tokenizer for the same lines each time. Unigram sums
    probabilities in an order that varies: its scores differ in their last digits.

    Args:
        lines: Makes an iterator over the text; WordPiece reads it twice.
        size: Number of subwords, with the special tokens. A small text may give fewer.
        like: A fast tokenizer of transformers (``plain_tokenizer``), whose algorithm, treatment of
            text and special tokens to take. Accents stay, as some scripts write vowels with them.

    Raises:
        UserError: ``size`` has no room for single characters or bytes, or there is no text.
    """
    backend = Tokenizer.from_str(like.backend_tokenizer.to_str())
    if isinstance(backend.normalizer, normalizers.BertNormalizer):
        backend.normalizer.strip_accents = False
    template = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=like.model_input_names,
        model_max_length=like.model_max_length,
        **like.special_tokens_map,
    )
    special, is_wordpiece = {*like.all_special_tokens}, isinstance(backend.model, models.WordPiece)
    options: dict[str, Any] = {"show_progress": False}
    if not isinstance(backend.model, models.Unigram):
        options["min_frequency"] = 2
    if is_wordpiece:  # most characters are there as x and ##x
        options["limit_alphabet"] = max(1, (size - len(special)) // 2)

    def train(size: int, first: list[str], text: Iterable[str]) -> PreTrainedTokenizerFast:
        trained: PreTrainedTokenizerFast = template.train_new_from_iterator(
            text, size, new_special_tokens=first, **options
        )
        return trained

    no_room = UserError(
        f"--size {size} has no room for the special tokens and the characters of the text, or all "
        "bytes: write a larger one."
    )
    try:
        if is_wordpiece:
            # The ids of the alphabet vary and decide between equal counts: fix them first.
            alphabet = sorted(train(0, [], lines()).get_vocab().keys() - special)
            vocabulary = train(size, alphabet, lines()).get_vocab()
            tokenizer = train(0, [], [])
            model = models.WordPiece(vocabulary, unk_token=like.unk_token)
            tokenizer.backend_tokenizer.model = model
        else:
            tokenizer = train(size, [], lines())
    except Exception as error:
        if type(error) is not Exception:  # the library's own errors have no class
            raise
        raise no_room from error
    if len(tokenizer) > size:
        raise no_room
    if len(tokenizer) <= len(special):
        raise UserError("the text has no words to train a vocabulary on.")
    return tokenizer


def coverage(tokenizer: SubwordTokenizer, source: TextSource, characters: int) -> dict[str, Any]:
    """Measure how a tokenizer covers the words (``split_words``) of a source.

    Returns:
        The number of words, of subwords per word, the fraction of words that it splits (Rust et al.
        2021), and the fraction of unknown subwords.
    """
    step = max(1, characters // MEASURED_CHARACTERS)
    lines = islice(source.lines(), 0, None, step)
    words = Counter(word for line in lines for word in split_words(line)[0])
    (subwords,) = tokenizer.raw_word_subwords([list(words)])
    counted, unknown = [*zip(words.values(), subwords, strict=True)], cast("int", tokenizer.unknown)
    num_words = max(1, words.total())
    num_subwords = sum(count * len(ids) for count, ids in counted)
    return {
        "words": words.total(),
        "subwords/word": num_subwords / num_words,
        "split words": sum(count for count, ids in counted if len(ids) > 1) / num_words,
        "unknown": sum(n * ids.count(unknown) for n, ids in counted) / max(1, num_subwords),
    }


def write_vocabulary(command: VocabularyCommand) -> None:
    """Train a vocabulary, write the folder and print how it covers the text."""
    sources = text_sources(command.texts, text_encoding(command.encoding))
    word_vectors = list(map(read_word_vectors, command.vectors))
    if len({rows.shape[1] for _, rows in word_vectors}) > 1:
        raise UserError("--vectors have different numbers of dimensions: name files in one space.")
    like, vocabularies = plain_tokenizer(command.kind or "bpe", lowercase=command.lowercase), {}
    if command.for_ is not None:
        like = SubwordTokenizer.from_pretrained(command.for_).tokenizer
        vocabularies["old"] = SubwordTokenizer.from_pretrained(command.for_, words=True)
    with Reporter() as reporter, replace_folder(Path(command.out)) as folder:
        samples = measure_sources(sources, command.alpha, reporter)
        lines = partial(sampled_lines, samples, command.seed)
        reporter.log(f"training a vocabulary: {command.size:,} subwords")
        tokenizer = train_tokenizer(lines, command.size, like)
        tokenizer.save_pretrained(folder)
        vocabularies = {"new": SubwordTokenizer.saved(folder, words=True), **vocabularies}
        rows = [
            {"source": source.name, "vocabulary": name, "fraction": fraction, "sampled": sampled}
            | coverage(subwords, source, characters)
            for source, characters, fraction, sampled in samples
            for name, subwords in vocabularies.items()
        ]
        saved: dict[str, Any] = {
            "kind": type(tokenizer.backend_tokenizer.model).__name__.lower(),
            "size": len(tokenizer),
            "alpha": command.alpha,
            "seed": command.seed,
            "sources": rows,
        }
        if command.for_ is not None:
            new, old = vocabularies["new"], vocabularies["old"]
            languages = zip(word_vectors, (old, new), strict=False)
            vectors = [subword_vectors(*of_words, subwords) for of_words, subwords in languages]
            weights = embedding_weights(old, new, command.init, lines(), vectors)
            seed = None if command.init == "mean" else command.seed
            model = with_vocabulary(command.for_, old, new, weights, seed)
            with quiet():
                model.save_pretrained(folder)
            other, copied, averaged = np.bincount(
                np.diff(weights.indptr).clip(max=2), minlength=3
            ).tolist()
            saved["embeddings"] = {"copied": copied, "averaged": averaged, "other": other}
        write_text(folder / "vocabulary.json", json.dumps(saved, indent=2) + "\n")
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    asked = "" if len(tokenizer) == command.size else f" (asked for {command.size:,})"
    show(f"{saved['kind']}, {len(tokenizer):,} subwords{asked}")
    if counts := saved.get("embeddings"):
        show(
            f"embeddings ({command.init}): {counts['copied']:,} copied, "
            f"{counts['averaged']:,} averaged from similar ones, {counts['other']:,} "
            + ("the mean of all" if command.init == "mean" else "drawn at random")
        )
    show(f"wrote {command.out}")
