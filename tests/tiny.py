"""Tiny random models and tokenizers of every family, made in memory: no network, milliseconds each.

save_tiny_checkpoint(tmp_path / "bert", "bert")     # then: finetune … --model FOLDER
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from finetune.models.loading import quiet

_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_MODERNBERT = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
_DEBERTA = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
_DEBERTA_V2 = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
_EUROBERT = ("<|begin_of_text|>", "<|end_of_text|>", "<unk>", "<|mask|>")  # pads with the end
_TOKENIZERS = {
    "bert": ("wordpiece", _BERT, True),
    "roberta": ("bytes", _ROBERTA, False),
    "xlm-roberta": ("unigram", _ROBERTA, False),
    "camembert": ("unigram", _ROBERTA, False),
    "electra": ("wordpiece", _BERT, True),
    "albert": ("unigram", _ALBERT, True),
    "distilbert": ("wordpiece", _BERT, False),
    "modernbert": ("bytes", _MODERNBERT, False),
    "ernie": ("wordpiece", _BERT, True),
    "roberta-prelayernorm": ("bytes", _ROBERTA, False),
    "data2vec-text": ("bytes", _ROBERTA, False),
    "xlm-roberta-xl": ("unigram", _ROBERTA, False),
    "eurobert": ("bytes", _EUROBERT, False),
    "nomic_bert": ("wordpiece", _BERT, True),
    "jina_embeddings_v3": ("unigram", _ROBERTA, False),
    "deberta": ("bytes", _DEBERTA, True),
    "deberta-v2": ("unigram", _DEBERTA_V2, True),
    "mpnet": ("wordpiece", _ROBERTA, False),
    "squeezebert": ("wordpiece", _BERT, True),
}
"""The algorithm of each family, its special tokens in the order of their ids, and whether it tells
the two texts of a pair apart by segments."""
FAMILIES = tuple(_TOKENIZERS)
PADDED = ("squeezebert", "deberta")
"""Families with a head of their own that are padded inside the Encoder."""
PACKED = tuple(family for family in FAMILIES if family not in PADDED)
"""Families that run packed."""

WIDTH, LAYERS, HEADS = 32, 2, 4
POSITIONS = 64
"""Positions of every tiny model (RoBERTa's kind has fewer tokens by its offset)."""

_TEXT = """\
the train from paris to berlin was late and nobody knew why
anna saw a big red dog in the garden of the old house
this film is good , that film is bad and the third one is boring
a man is playing a guitar while a woman is singing a song
two children run across the street because it rains
the bank of england raised its rates on monday
angela merkel visited new york in september 2019
john smith works for general motors in detroit , michigan
what a great story ! i could not stop reading it
unbelievably slow service , overpriced food , never again
does the second sentence follow from the first ?
nothing contradicts what the reporter wrote about the match
The European Union , the United Nations and IBM signed it in Geneva .
Peter Blackburn lives in Brussels ; Maria Garcia lives in Madrid .
"""


def tokenizer(family: str = "bert") -> PreTrainedTokenizerFast:
    """A fast tokenizer with the special tokens and the algorithm of a family."""
    names = _names(family)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend(family)),
        cls_token=names["cls"],
        sep_token=names["sep"],
        pad_token=names["pad"],
        unk_token=names["unk"],
        mask_token=names["mask"],
        bos_token=names["cls"],
        eos_token=names["sep"],
        model_input_names=["input_ids", "attention_mask"]
        + (["token_type_ids"] if _TOKENIZERS[family][2] else []),
    )


def config(
    family: str = "bert", *, dropout: float = 0.0, layers: int = LAYERS, **changes: Any
) -> Any:
    """A configuration of layers of ``WIDTH``; weights large enough to matter."""
    size = {
        "vocab_size": len(_vocabulary(family)),
        "hidden_size": WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    own: dict[str, dict[str, Any]] = {
        "electra": {"embedding_size": 24},
        "albert": {"embedding_size": 24, "classifier_dropout_prob": dropout},
        "distilbert": {
            "hidden_dim": 48,
            "dropout": dropout,
            "attention_dropout": dropout,
            "seq_classif_dropout": dropout,
        },
        "modernbert": {
            "local_attention": 8,
            "global_attn_every_n_layers": 2,
            "classifier_pooling": "cls",
            "attention_dropout": dropout,
            "embedding_dropout": dropout,
            "mlp_dropout": dropout,
            "classifier_dropout": dropout,
            "initializer_cutoff_factor": 2.0,
        },
        "eurobert": {"num_key_value_heads": HEADS // 2, "attention_dropout": dropout},
        "deberta": {
            "relative_attention": True,
            "max_relative_positions": -1,
            "type_vocab_size": 0,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
        },
        "deberta-v2": {
            "relative_attention": True,
            "max_relative_positions": -1,
            "type_vocab_size": 0,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        "squeezebert": {"embedding_size": WIDTH},
    }
    if family in ("roberta", "xlm-roberta", "camembert", "jina_embeddings_v3"):
        size["type_vocab_size"] = 1
    vocabulary, names = _vocabulary(family), _names(family)
    size |= {
        "pad_token_id": vocabulary[names["pad"]],
        "cls_token_id": vocabulary[names["cls"]],
        "bos_token_id": vocabulary[names["cls"]],
        "sep_token_id": vocabulary[names["sep"]],
        "eos_token_id": vocabulary[names["sep"]],
    }
    if family == "eurobert":  # whose own is beyond this vocabulary
        size["mask_token_id"] = vocabulary[names["mask"]]
    return AutoConfig.for_model(family, **(size | own.get(family, {}) | changes))


def model(
    family: str = "bert",
    auto_class: Any = AutoModel,
    *,
    dropout: float = 0.0,
    seed: int = 0,
    **changes: Any,
) -> PreTrainedModel:
    """A random model; biases and norms are random too, so that no gradient is zero by symmetry."""
    key = f"{family} {auto_class} {dropout} {seed} {changes}"
    if key not in _models:
        torch.default_generator.manual_seed(seed)
        made = auto_class.from_config(config(family, dropout=dropout, **changes)).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        _models[key] = made, torch.get_rng_state()
    made, state = _models[key]
    torch.set_rng_state(state)
    return copy.deepcopy(made)


_models: dict[str, tuple[PreTrainedModel, torch.Tensor]] = {}


def head_parameters(head: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters of a head above the hidden states, by name."""
    return {name: value for name, value in head.named_parameters() if head.is_head(name)}


def save_tiny_checkpoint(
    folder: str | Path, family: str = "bert", *, dropout: float = 0.1, seed: int = 0, **changes: Any
) -> Path:
    """Write a pretrained-like checkpoint (masked language model and tokenizer) and return it."""
    made = model(family, AutoModelForMaskedLM, dropout=dropout, seed=seed, **changes)
    with quiet():
        made.save_pretrained(folder)
    tokenizer(family).save_pretrained(folder)
    return Path(folder)


def _names(family: str) -> dict[str, str]:
    """cls, sep, pad, unk and mask of a family."""
    words = {
        "cls": ("[CLS]", "<s>", "<|begin_of_text|>"),
        "sep": ("[SEP]", "</s>", "<|end_of_text|>"),
        "pad": ("[PAD]", "<pad>", "<|end_of_text|>"),
        "unk": ("[UNK]", "<unk>"),
        "mask": ("[MASK]", "<mask>", "<|mask|>"),
    }
    special = _TOKENIZERS[family][1]
    return {role: next(s for s in special if s in either) for role, either in words.items()}


@functools.cache
def _backend(family: str) -> str:
    """A tokenizer with the words of the text above, as JSON."""
    algorithm, special, _ = _TOKENIZERS[family]
    names = _names(family)
    trained = _MADE[algorithm](names["unk"], list(special))
    cls, sep, double = names["cls"], names["sep"], "<s>" in special
    trained.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {sep} $B {sep}" if double else f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, trained.token_to_id(cls)), (sep, trained.token_to_id(sep))],
    )
    return trained.to_str()


@functools.cache
def _vocabulary(family: str) -> dict[str, int]:
    return Tokenizer.from_str(_backend(family)).get_vocab()


def _wordpiece(unknown: str, special: list[str]) -> Tokenizer:
    """Half of the words whole, the rest in pieces of up to three characters."""
    pieces = [*_CHARACTERS, *(f"##{c}" for c in _CHARACTERS)]
    for word in _words(_TEXT.lower()):
        parts = [word[i : i + 3] for i in range(0, len(word), 3)]
        pieces += [word] if len(word) % 2 else [parts[0], *(f"##{part}" for part in parts[1:])]
    names = list(dict.fromkeys([*special, *pieces]))
    made = Tokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token=unknown))
    made.add_special_tokens(special)
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made


def _bytes(unknown: str, special: list[str]) -> Tokenizer:
    """Merges that grow each word's first characters, so that long words end in single bytes."""
    merges: dict[tuple[str, str], None] = {}
    for word in _words(_TEXT):
        grown = "Ġ"
        for character in word[: 2 + len(word) // 2]:
            merges[grown, character] = None
            grown += character
    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    made = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, list(merges)))
    made.add_special_tokens(special)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _unigram(unknown: str, special: list[str]) -> Tokenizer:
    """Half of the words whole, the rest in pieces."""
    pieces = ["▁", *_CHARACTERS]
    for word in _words(_TEXT):
        pieces += [f"▁{word}"] if len(word) % 2 else [f"▁{word[:2]}", word[2:]]
    names = [name for name in dict.fromkeys([*special, *pieces]) if name]
    scores = [(n, 0.0 if n in special else -len(names) / (1.0 + len(n) ** 2)) for n in names]
    made = Tokenizer(models.Unigram(scores, unk_id=names.index(unknown)))
    made.add_special_tokens(special)
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(text.split()))


_CHARACTERS = [chr(code) for code in range(33, 127)]
_MADE = {"wordpiece": _wordpiece, "bytes": _bytes, "unigram": _unigram}
