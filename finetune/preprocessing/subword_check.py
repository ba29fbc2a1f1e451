"""The checks of data that need the tokenizer of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from finetune.data import Finding, check_data
from finetune.models.families import FAMILIES, position_limit
from finetune.models.loading import load_config
from finetune.preprocessing.tokenizer import SubwordTokenizer


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
