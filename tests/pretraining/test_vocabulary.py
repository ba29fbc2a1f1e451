"""Vocabularies: the same each time, aligned with words, sampled by size, measured on text."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from finetune.data.running_text import TextSource
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.vocabulary import (
    coverage,
    measure_sources,
    plain_tokenizer,
    sampled_lines,
    train_tokenizer,
)
from finetune.runtime.progress import Reporter
from tests.command import run
from tests.tiny import FAMILIES, tokenizer

ALGORITHMS = ("wordpiece", "bpe", "unigram")
LINES = [
    "The train from Paris to Berlin was late, and nobody knew why.",
    "Der Zug von Paris nach Berlin hatte Verspätung; niemand wusste, warum.",
    "ጠቅላይ ሚኒስትሩ በአዲስ አበባ ተናገሩ። አዲስ አበባ ትልቅ ከተማ ናት።",
    "北京是中国的首都。上海是中国的城市。",
    "हिन्दी भारत की भाषा है। हिन्दी की लिपि देवनागरी है।",
] * 4


def trained(algorithm: str, lines: Any = lambda: LINES, size: int = 400, **options: Any) -> Any:
    return train_tokenizer(lines, size, plain_tokenizer(algorithm, **options))


def split_rules(tokenizer: Any) -> str:
    return str(tokenizer.backend_tokenizer.to_str())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_saved_tokenizer_is_accepted(algorithm: str, tmp_path: Path):
    trained_tokenizer = trained(algorithm)
    trained_tokenizer.save_pretrained(tmp_path)
    plain = AutoTokenizer.from_pretrained(tmp_path)
    assert split_rules(plain) == split_rules(trained_tokenizer)
    assert len(plain) <= 400
    loaded = SubwordTokenizer.saved(tmp_path, words=True)
    assert type(loaded.backend.model).__name__.lower() == algorithm
    assert loaded.text_subwords(["THE"]) != loaded.text_subwords(["the"])
    names = "[PAD] [UNK] [CLS] [SEP] [MASK]", "<s> <pad> </s> <unk> <mask>"
    first = names[algorithm != "wordpiece"]
    assert " ".join(plain.convert_ids_to_tokens(list(range(5)))) == first
    running = SubwordTokenizer.saved(tmp_path)
    pair = plain("Paris", "Berlin")["input_ids"]
    assert pair == running.build(*running.text_subwords(["Paris", "Berlin"]))[0]
    for line in LINES[:5]:
        back = plain.decode(plain(line)["input_ids"], skip_special_tokens=True)
        assert back.replace(" ", "") == line.replace(" ", "")


def test_same_vocabulary_in_any_order():
    for algorithm in ("wordpiece", "bpe"):
        orders = (LINES, LINES[::-1], LINES)
        rules = [split_rules(trained(algorithm, lambda lines=lines: lines)) for lines in orders]
        assert len({*rules}) == 1


def test_lower_case_keeps_accents_and_vowel_signs():
    for algorithm in ALGORITHMS:
        lower = SubwordTokenizer(trained(algorithm, lowercase=True))
        assert lower.text_subwords(["THE"]) == lower.text_subwords(["the"])
        text = lower.tokenizer.decode(lower.text_subwords(["VERSPÄTUNG हिन्दी"])[0])
        assert "".join(text.split()) == "verspätungहिन्दी"


@pytest.mark.parametrize("family", FAMILIES)
def test_layout_of_a_model_gives_the_same_template(family: str):
    old = SubwordTokenizer(tokenizer(family))
    new = SubwordTokenizer(train_tokenizer(lambda: LINES, 400, old.tokenizer))
    assert new.tokenizer.pad_token_id == old.tokenizer.pad_token_id
    assert new.uses_token_types == old.uses_token_types
    for before, after in ((old.single, new.single), (old.pair, new.pair)):
        assert before.token_types == after.token_types
        for name in ("prefix", "middle", "suffix"):
            tokens = (
                subwords.tokenizer.convert_ids_to_tokens(list(getattr(template, name)))
                for subwords, template in ((old, before), (new, after))
            )
            assert len(set(map(tuple, tokens))) == 1


def source(folder: Path, name: str, lines: list[str]) -> TextSource:
    path = folder / f"{name}.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return TextSource(name, (path,))


def test_sampled_fractions(tmp_path: Path):
    sources = [source(tmp_path, "en", ["many"] * 2000), source(tmp_path, "am", ["few."] * 20)]
    samples = measure_sources(sources, 0.3, Reporter(quiet=True))
    drawn = Counter(sampled_lines(samples, 1))
    assert drawn.total() == pytest.approx(2020, abs=60)
    assert drawn["few."] / drawn.total() == pytest.approx(0.201, abs=0.02)
    assert drawn == Counter(sampled_lines(samples, 1))
    (alone,) = measure_sources(sources[:1], 0.3, Reporter(quiet=True))
    assert list(sampled_lines([alone], 1)) == ["many"] * 2000


def test_coverage_by_hand(tmp_path: Path):
    (sample,) = measure_sources([source(tmp_path, "am", ["abc abd ሀ", "abc"])], 1, Reporter(True))
    tiny = trained("wordpiece", lambda: ["abc abc abd"] * 3, 14)  # abc whole
    measures = coverage(SubwordTokenizer(tiny, words=True), sample.source, sample.characters)
    assert measures["words"] == 4
    subwords = [len(tiny.tokenize(word)) for word in ("abc", "abd", "ሀ", "abc")]
    assert measures["subwords/word"] == pytest.approx(sum(subwords) / 4)
    assert measures["unknown"] == pytest.approx(1 / sum(subwords))
    assert measures["split words"] == pytest.approx(sum(n > 1 for n in subwords) / 4)


def test_command(tmp_path: Path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(LINES), encoding="utf-8")
    options = ("--kind", "unigram", "--size", "5000", "--out", tmp_path / "v")
    done = run("vocabulary", texts, *options).ok()
    assert "asked for 5,000" in done.out
    content = json.loads((tmp_path / "v" / "vocabulary.json").read_text())
    assert content["size"] == len(AutoTokenizer.from_pretrained(tmp_path / "v"))
