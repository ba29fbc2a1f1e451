"""Random models of well-known shapes, and random texts with the lengths of well-known data sets.

Each word of a random text is one subword of the model's vocabulary, so that lengths in tokens are
as drawn. Lengths follow a log-normal distribution with the mean and standard deviation below. Words
follow Zipf's law (the n-th most frequent word is drawn 1/n as often as the first); their number is
the number of subwords in the data set. Labels are random too.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from finetune.models.loading import quiet
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.types import Example, TextExample, TokenExample, UserError


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of sequences in tokens, special tokens included, and the fraction of the vocabulary's
    subwords that occur in the training data."""

    name: str
    mean: float
    deviation: float
    shortest: int
    longest: int
    vocabulary: float
    example: Callable[[int, int, Words], Example]
    """Draw the example of a number and of a length in tokens."""

    def draw(self, random_: random.Random) -> int:
        """Draw a length in tokens."""
        variance = math.log(1 + (self.deviation / self.mean) ** 2)
        drawn = random_.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return min(max(round(drawn), self.shortest), self.longest)


NUM_TAGS = 9


class Words:
    """Words of one subword each, drawn by Zipf's law."""

    def __init__(self, tokenizer: SubwordTokenizer, share: float, random_: random.Random) -> None:
        """Choose words: the fraction ``share`` of the vocabulary, or all if there are fewer."""
        vocabulary = tokenizer.backend.get_vocab()
        forms = {piece.lstrip("Ġ▁").lower() for piece in vocabulary if not piece.startswith("##")}
        listed = sorted(form for form in forms if form.isalnum() and form.isascii())
        pieces = tokenizer.text_subwords(listed)
        unknown = tokenizer.tokenizer.unk_token_id
        known = [
            (word, found[0])
            for word, found in zip(listed, pieces, strict=True)
            if len(found) == 1 and found[0] != unknown
        ]
        random_.shuffle(known)
        known = known[: max(1, int(share * len(vocabulary)))]
        if not known:
            raise UserError(
                f"{tokenizer.name}: its vocabulary has no whole words, so that no texts can be "
                "drawn: name some with --data."
            )
        self.words, self.ids = (list(column) for column in zip(*known, strict=True))
        self.weights = list(accumulate(1 / rank for rank in range(1, len(self.words) + 1)))
        self.random = random_

    def draw(self, number: int) -> list[str]:
        """Draw words."""
        total = self.weights[-1]
        indices = (bisect.bisect(self.weights, self.random.random() * total) for _ in range(number))
        return [self.words[min(index, len(self.words) - 1)] for index in indices]


def _labeled(index: int, size: int, words: Words) -> TextExample:
    return TextExample(index, " ".join(words.draw(size - 2)), None, str(index % 2))


def _pair(index: int, size: int, source: Words) -> TextExample:
    words = source.draw(size - 3)
    cut = max(1, len(words) * 2 // 3)
    label = ("contradiction", "entailment", "neutral")[index % 3]
    return TextExample(index, " ".join(words[:cut]), " ".join(words[cut:]), label)


def _tagged(index: int, size: int, source: Words) -> TokenExample:
    words = source.draw(size - 2)
    tags = tuple(f"T{source.random.randrange(NUM_TAGS)}" for _ in words)
    return TokenExample(index, tuple(words), tags=tags)


LIKE = {
    "classify": Lengths("SST-2", 20, 12, 4, 128, 0.38, _labeled),
    "nli": Lengths("MNLI", 39, 19.5, 8, 128, 0.8, _pair),
    "tag": Lengths("CoNLL-2003", 20, 13, 4, 128, 0.46, _tagged),
    "reviews": Lengths("IMDB", 307, 219, 28, 512, 0.9, _labeled),
}
"""Lengths by task, measured with the vocabulary of bert-base-uncased, with two exceptions: SST-2
has a mean of 13 in its training phrases and 25 in whole sentences; MNLI's vocabulary was counted in
a part of the data. ``reviews`` are long texts for ``classify``."""


def strata(lengths: Sequence[int], num_batches: int, batch_size: int) -> list[list[int]]:
    """Return batches of texts of similar length, evenly spaced among all batches sorted by length.

    Do not make random batches of these texts, as the longest of the data are missing: see
    ``sample``. Raises UserError if there is less than one batch.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    whole = len(order) // batch_size
    if not whole:
        raise UserError(
            f"--data: {len(order)} training examples are less than a batch of {batch_size}."
        )
    chosen = sample(range(whole), min(num_batches, whole))
    return [order[index * batch_size : (index + 1) * batch_size] for index in chosen]


def sample(lengths: Sequence[int], number: int) -> list[int]:
    """Return indices of texts with the lengths of the whole, in ascending order.

    They are the middle texts of slices of equal size, so that the longest are represented too.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[(2 * part + 1) * len(order) // (2 * number)] for part in range(number)]


_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
"""Special tokens by role, in the order of their ids."""


def _modernbert(**settings: int) -> tuple[str, dict[str, Any]]:
    ids = {"pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3}
    return "modernbert", {**ids, "eos_token_id": 3, **settings}


def _deberta(num_hidden_layers: int) -> tuple[str, dict[str, Any]]:
    return "deberta-v2", {
        "hidden_size": 768,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "relative_attention": True,
        "position_buckets": 256,
        "position_biased_input": False,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": ["p2c", "c2p"],
        "pooler_hidden_size": 768,
    }


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("bert", {}),
    "minilm": ("bert", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}),
    "roberta-base": (
        "roberta",
        {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "deberta-v3-small": _deberta(6),
    "deberta-v3-base": _deberta(12),
    "modernbert-base": _modernbert(),
    "ettin-17m": _modernbert(
        hidden_size=256, num_hidden_layers=7, intermediate_size=384, num_attention_heads=4
    ),
    "ettin-32m": _modernbert(
        hidden_size=384, num_hidden_layers=10, intermediate_size=576, num_attention_heads=6
    ),
    "mmbert-small": _modernbert(
        hidden_size=384,
        num_hidden_layers=22,
        intermediate_size=1152,
        num_attention_heads=6,
        vocab_size=256000,
    ),
}
"""Model type, and the settings of the checkpoint of this name that are not the type's defaults."""


def write_shape(shape: str, folder: Path) -> None:
    """Write a model and a tokenizer with the words w5, w6, … into a folder."""
    model_type, settings = SHAPES[shape]
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModel.from_config(config)
    with quiet():
        model.save_pretrained(folder)
    _tokenizer(model_type, config.vocab_size).save_pretrained(folder)


def _tokenizer(model_type: str, size: int) -> PreTrainedTokenizerFast:
    special = _ROBERTA if model_type == "roberta" else _BERT
    names = [*special.values(), *(f"w{number}" for number in range(len(special), size))]
    ids = {name: index for index, name in enumerate(names)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=special["unk"]))
    backend.add_special_tokens(list(special.values()))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    begin, end = special["cls"], special["sep"]
    middle = f"{end} {end} $B {end}" if model_type == "roberta" else f"{end} $B:1 {end}:1"
    backend.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {middle}",
        special_tokens=[(begin, ids[begin]), (end, ids[end])],
    )
    token_type_ids = ["token_type_ids"] if model_type == "bert" else []
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "attention_mask", *token_type_ids],
        model_max_length=512,
        **{f"{role}_token": name for role, name in special.items()},
    )
