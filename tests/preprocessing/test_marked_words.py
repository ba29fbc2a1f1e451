"""Sequences of pairs with a marked word in each text: where the words are, and what is cut."""

from __future__ import annotations

import pytest

from finetune.preprocessing.texts import TextSequences
from finetune.types import TextExample, UserError
from tests import laboratory as lab


def example(first: str, word: str, second: str, other: str) -> TextExample:
    places = tuple(
        (text.index(w), text.index(w) + len(w)) for text, w in ((first, word), (second, other))
    )
    return TextExample(0, first, second, where="x:1", targets=(places[0], places[1]))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_targets_are_words_of_the_sequence(family: str, apart: bool) -> None:
    tokenizer = lab.tokenizer(family)
    around = "the dog saw it and the guitar , " * 3
    pairs = [
        example("he saw the dog", "dog", "the bank of england", "bank of"),
        example("dog", "dog", "a \u200b dog", "\u200b"),  # a target without subwords
        example(f"{around}Brussels {around}", "Brussels", "he lives in Paris", "Paris"),
        example("the dog", "the", f"{around}{around}Brussels", "Brussels"),
        example(f"{around}Brussels", "Brussels", f"Paris {around}", "Paris"),
    ]
    limit = 20
    encoded, num_cut = TextSequences(tokenizer, limit, "truncate").encode_marked(pairs, apart)
    assert num_cut == 3
    for pair, (sequence,) in zip(pairs, encoded, strict=True):
        starts, ids = sequence.word_starts, sequence.input_ids
        assert starts == sorted({*starts}) and (starts[0], starts[-1]) == (0, len(ids))
        assert len(starts) == 6 + apart
        assert max(starts[3], len(ids) - starts[3]) <= limit if apart else len(ids) <= limit
        assert pair.targets is not None
        for (begin, end), text, start in zip(
            pair.targets, (pair.text, pair.pair or ""), (1, len(starts) - 3), strict=True
        ):
            own = ids[starts[start] : starts[start + 1]]
            if text[begin:end].isprintable():
                read = tokenizer.tokenizer.decode(own, clean_up_tokenization_spaces=False).strip()
                assert read.lower() == text[begin:end].lower()
            else:
                assert len(own) >= 1
        if sum(map(len, (pair.text, pair.pair or ""))) < 40:
            texts = tokenizer.text_subwords([pair.text, pair.pair or ""])
            whole = [*tokenizer.build(texts[0])[0], *tokenizer.build(texts[1])[0]]
            whole = whole if apart else tokenizer.build(*texts)[0]
            assert ids == whole or "\u200b" in (pair.pair or "")
    with pytest.raises(UserError, match=r"x:1: a text has .* tokens, --max-length 20 leaves room"):
        TextSequences(tokenizer, limit, "error").encode_marked(pairs, apart)
