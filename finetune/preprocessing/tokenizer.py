"""Load a tokenizer, check that it aligns subwords with words, build sequences, and check data.

Special tokens come from a template that is read off the tokenizer once, so all sequences are built
in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.values import conforms
from finetune.data import Finding, check_data
from finetune.data.in_memory import input_list
from finetune.data.word_splitting import UNSPACED
from finetune.models.families import FAMILIES, position_limit
from finetune.models.loading import load_config, load_pretrained_tokenizer
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import WHOLE, DType
from finetune.preprocessing.subwords import Subwords, Template
from finetune.preprocessing.texts import Input, as_example, encode_texts
from finetune.preprocessing.windows import WINDOW_OVERLAP, encode_words
from finetune.types import Batch, TextExample, TokenExample, UserError

MAX_UNKNOWN = 0.05
"""A vocabulary does not cover a text if at least this fraction of its subwords is unknown."""
LONGEST = 512
"""Default limit in tokens for models that could take more."""


class SubwordTokenizer(Subwords):
    """A fast Hugging Face tokenizer, reduced to subwords and templates.

    Args:
        tokenizer: The tokenizer.
        words: Prepare it for text that is already split into words: a byte-level BPE then reads
            each word with its leading space, as in running text (Liu et al., 2019).

    Raises:
        UserError: The tokenizer adds no special tokens or does not align subwords with words.
    """

    def __init__(self, tokenizer: Any, *, words: bool = False) -> None:
        self.tokenizer, self.words = tokenizer, words
        self.name = str(tokenizer.name_or_path)
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{self.name}: its tokenizer has no tokenizer.json (no fast version), which is "
                "needed to know the word of each subword: choose another model, or convert it."
            )
        self.backend = tokenizer.backend_tokenizer
        if self.backend.get_vocab_size() <= len(set(tokenizer.all_special_ids)):
            # transformers silently makes such a tokenizer for a folder that has none
            raise UserError(
                f"{self.name}: its tokenizer has no vocabulary: the tokenizer files "
                "(tokenizer.json, vocab.txt and the like) are missing. Copy them from the source "
                "of the model."
            )
        self.backend.no_truncation()
        self.backend.no_padding()
        self.leading_space = words and _set_prefix_space(tokenizer)
        self.uses_token_types = "token_type_ids" in tokenizer.model_input_names
        self.single = self._template(pair=False)
        self.pair = self._template(pair=True)
        if not self.single.prefix or not self.pair.middle:
            raise UserError(
                f"{self.name}: its tokenizer adds no special tokens around a text, so there is no "
                "first token to classify from. The tokenizer files are damaged or not from an "
                "encoder: choose another model."
            )
        if words:
            probe = self.backend.encode(
                ["one", "two", "three"], is_pretokenized=True, add_special_tokens=False
            )
            if sorted(set(probe.word_ids)) != [0, 1, 2]:
                raise UserError(
                    f"{self.name}: its tokenizer does not align subwords with words "
                    f"(word ids {probe.word_ids} for three words): choose another model."
                )
        special = (tokenizer.unk_token_id, tokenizer.mask_token_id, tokenizer.sep_token_id)
        tokens = [token for token in special if token is not None]
        self.placeholder = int(tokens[0] if tokens else self.single.prefix[0])
        """Id that represents a word without subwords."""
        around = (*self.single.prefix, *self.single.suffix)
        self.unknown = None if tokenizer.unk_token_id in around else tokenizer.unk_token_id
        """Id of the unknown subword; None if the vocabulary has none."""

    def __call__(self, inputs: Iterable[Input], max_length: int | None = None) -> Batch:
        """Build a batch of texts or pairs of texts, or of words if the tokenizer is made for words.

        Texts are cut to ``max_length`` tokens. Longer sentences are divided into several sequences:
        a ``TokenClassifier`` then has one row of logits for each word, in order.

        Raises:
            UserError: An input is no text, pair or list of words, or there is no room for text.

        Examples:
            >>> tokenizer = SubwordTokenizer.from_pretrained("roberta-base")  # doctest: +SKIP
            >>> tokenizer(["A film.", "Dull."]).lengths  # doctest: +SKIP
            (5, 5)
            >>> tokenizer([("A man sleeps.", "A man is awake.")])  # doctest: +SKIP
        """
        inputs = input_list(inputs, "tokenizer")
        longest = self.max_length(None, max_length)
        example_type = TokenExample if self.words else TextExample
        examples: list[Any] = [
            as_example(index, item, example_type, pairs=None) for index, item in enumerate(inputs)
        ]
        if self.words:
            overlap = min(WINDOW_OVERLAP, self.room(longest) // 2)
            sequences, _ = encode_words(examples, self, longest, overlap, core_only=True)
        else:
            sequences, _ = encode_texts(examples, self, longest, "truncate")
        return pack(list(chain.from_iterable(sequences)))

    @cached_property
    def id_dtype(self) -> DType:
        """The type of arrays that hold every subword id."""
        highest = max(self.backend.get_vocab().values())
        return np.dtype(np.uint16) if highest <= np.iinfo(np.uint16).max else WHOLE

    def unreadable(self, num_unknown: int, num_subwords: int) -> list[str]:
        """A note for the log if the vocabulary does not cover a text."""
        if num_unknown < MAX_UNKNOWN * num_subwords or not num_unknown:
            return []
        return [
            f"{num_unknown / num_subwords:.0%} of the subwords are unknown to the model: choose a "
            "model for this language or script"
        ]

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        words: bool = False,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> SubwordTokenizer:
        """Load the tokenizer of an encoder by hub id, short name or folder.

        Examples:
            >>> tokenizer = SubwordTokenizer.from_pretrained("roberta-base")  # doctest: +SKIP
            >>> tokenizer.build(*tokenizer.text_subwords(["A film."]))  # doctest: +SKIP
            ([0, 250, 822, 4, 2], None)
        """
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        load_config(str(name), **options)  # raises the better error for a wrong name
        return cls.saved(name, words=words, **options)

    @classmethod
    def saved(cls, name: str | Path, *, words: bool = False, **options: Any) -> SubwordTokenizer:
        """Load the tokenizer saved with a model, also with one of a custom class."""
        tokenizer = load_pretrained_tokenizer(str(name), **options)
        try:
            return cls(tokenizer, words=words)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust; its class has no module
                raise
            raise UserError(
                f"{name}: its tokenizer.json is damaged ({error}): restore it from its source."
            ) from None

    def equals(self, other: SubwordTokenizer) -> bool:
        """Whether another tokenizer gives the same ids for the same texts."""
        same_fields = self.fields() == other.fields()
        return same_fields and self.backend.to_str() == other.backend.to_str()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the tokenizer into the folder of a model."""
        self.tokenizer.save_pretrained(str(folder))

    def max_length(self, model_limit: int | None, configured: int | None) -> int:
        """The configured length of the longest sequence in tokens, or the default.

        Raises UserError if model or tokenizer allow less, or if it leaves no room for text.
        """
        limits = [self.tokenizer.model_max_length, model_limit]
        model_limits = [limit for limit in limits if limit is not None and limit < 1_000_000]
        limit = min(model_limits, default=LONGEST)
        if configured is None:
            return min(limit, LONGEST)
        if not conforms(configured, int):
            raise UserError(f"--max-length must be a whole number, not {configured!r:.60}.")
        if configured > limit:
            raise UserError(
                f"--max-length {configured} exceeds the {limit} tokens that {self.name} can take: "
                f"write --max-length {limit} or less."
            )
        if configured < (least := self.pair.num_special + 2):
            raise UserError(
                f"--max-length {configured} leaves no room for text: write {least} or more."
            )
        return configured

    def subwords_with_words(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """The subword ids of each text, and the index of the first subword of each word.

        The tokenizer decides on the words. In scripts that are written without spaces each letter,
        or subword of several letters, is a word.
        """
        result = []
        encoded = self.backend.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encoded, strict=True):
            words = encoding.word_ids
            starts = [i for i, word in enumerate(words) if i == 0 or word != words[i - 1]]
            if not text.isascii() and UNSPACED.search(text):
                offsets = encoding.offsets
                inner = (
                    index
                    for index in range(1, len(words))
                    if (begin := offsets[index][0]) >= (end := offsets[index - 1][1])
                    and (UNSPACED.match(text, begin) or UNSPACED.match(text, end - 1))
                )
                starts = sorted({*starts, *inner})
            result.append((encoding.ids, starts))
        return result

    def _template(self, pair: bool) -> Template:
        size = len(self.text_subwords(["a"])[0])
        if size == 0:
            raise UserError(
                f"{self.name}: its tokenizer has no subwords for the letter a. The tokenizer files "
                "are damaged or not from a text encoder: choose another model."
            )
        encoding = self.backend.encode("a", "a") if pair else self.backend.encode("a")
        ids, types, special = encoding.ids, encoding.type_ids, encoding.special_tokens_mask
        text = [index for index, mask in enumerate(special) if not mask]
        first, second = text[0], text[size] if pair else text[0]
        end = text[-1] + 1
        middle = ids[first + size : second] if pair else ()
        token_types = (types[0], types[first], types[second - 1], types[second], types[-1])
        return Template(tuple(ids[:first]), tuple(middle), tuple(ids[end:]), token_types)


def _set_prefix_space(tokenizer: Any) -> bool:
    """Make a byte-level BPE put a space before each word; True if the caller must do it."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    current = backend.pre_tokenizer
    if isinstance(current, pre_tokenizers.ByteLevel):
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=True, use_regex=current.use_regex
        )
        tokenizer.add_prefix_space = True
        tokenizer.init_kwargs["add_prefix_space"] = True
        return False
    if not isinstance(current, pre_tokenizers.Sequence):
        return False
    members: Any = current  # its type stubs lack iteration
    return any(isinstance(member, pre_tokenizers.ByteLevel) for member in members)


def check_with_tokenizer(
    data: Any, model: str, words: bool, max_length: int | None
) -> list[Finding]:
    """Check data, and count all subwords and subwords unknown to a model.

    Args:
        data: The data set.
        model: The name of the model.
        words: Whether its examples are words.
        max_length: The longest sequence in tokens; None is the limit of the model, at most 512.
    """
    tokenizer = SubwordTokenizer.from_pretrained(model, words=words)
    config = load_config(model)
    limit = position_limit(config, FAMILIES.get(config.model_type))
    seen: Counter[int | None] = Counter()  # subword ids

    def count(items: Sequence[Any]) -> list[Any]:
        if words:
            sentences = tokenizer.raw_word_subwords(items)
            seen.update(id for sentence in sentences for word in sentence for id in word)
            return [list(map(len, sentence)) for sentence in sentences]
        texts = tokenizer.text_subwords(items)
        seen.update(id for text in texts for id in text)
        return list(map(len, texts))

    findings = check_data(
        data,
        count_subwords=count,
        max_length=tokenizer.max_length(limit, max_length),
        num_special=(tokenizer.single.num_special, tokenizer.pair.num_special),
    )
    unreadable = tokenizer.unreadable(seen[tokenizer.unknown], seen.total())
    return [*findings, *(Finding("warning", "subwords", line) for line in unreadable)]
