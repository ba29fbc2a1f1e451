"""Small data written into a folder by the tests that need some."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from finetune.data import examples

_PEOPLE = ["Ana", "Bruno", "Carla", "Dmitri", "Elena", "Farid"]
_PLACES = ["Lagos", "Oslo", "Quito", "New York", "Addis Ababa"]
_GOOD = ["lovely", "bright", "excellent", "warm"]
_BAD = ["dreadful", "dull", "broken", "cold"]


def write_splits(folder: Path, **splits: list[dict]) -> Path:
    """Write a file of rows for each split."""
    for name, rows in splits.items():
        write_jsonl(folder / f"{name}.jsonl", rows)
    return folder


def jsonl(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(jsonl(*rows), "utf-8")
    return path


def read_jsonl(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def close(found: Any, expected: Any, tolerance: float = 5e-6) -> bool:
    """Whether rows are equal, probabilities up to the rounding of another batch."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            close(found[key], own, tolerance) for key, own in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            close(*pair, tolerance) for pair in zip(found, expected, strict=True)
        )
    near = pytest.approx(expected, abs=tolerance) if isinstance(expected, float) else expected
    return bool(found == near)


def keep_on_disk(monkeypatch: pytest.MonkeyPatch, processes: int = 1) -> None:
    """Keep five examples in memory and more on disk, in chunks of four, for some processors."""
    monkeypatch.setattr(examples, "MOST_IN_MEMORY", 5)
    monkeypatch.setattr(examples, "CHUNK", 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(processes))


def sentiment(folder: Path, sizes: tuple[int, int, int] = (40, 12, 12)) -> Path:
    """Texts of very different lengths whose label is said by one word."""
    rng = random.Random(1)

    def row() -> dict:
        label = rng.choice(["neg", "pos"])
        word = rng.choice(_GOOD if label == "pos" else _BAD)
        filler = "the room was " * rng.randint(1, 6)
        return {"text": f"{filler}{word} in {rng.choice(_PLACES)}", "label": label}

    return _splits(folder, row, sizes)


def pairs(folder: Path, sizes: tuple[int, int, int] = (30, 9, 9)) -> Path:
    rng = random.Random(2)

    def row() -> dict:
        label = rng.choice(["entailment", "neutral", "contradiction"])
        one, other = rng.sample(_PLACES, 2)
        person = rng.choice(_PEOPLE)
        second = {
            "entailment": f"{person} is in {one}",
            "neutral": f"{person} is happy",
            "contradiction": f"{person} is in {other}",
        }[label]
        return {"text": f"{person} lives in {one}", "text_pair": second, "label": label}

    return _splits(folder, row, sizes)


def entities(folder: Path, sizes: tuple[int, int, int] = (30, 9, 9), words: int = 1) -> Path:
    """Tagged sentences; ``words`` repeats each sentence so that windows are needed."""
    rng = random.Random(3)

    def row() -> dict:
        tokens: list[str] = []
        tags: list[str] = []
        for _ in range(rng.randint(1, 2) * words):
            tokens += [rng.choice(_PEOPLE), "saw", "the", "river", "near"]
            tags += ["B-PER", "O", "O", "O", "O"]
            place = rng.choice(_PLACES).split()
            tokens += [*place, "."]
            tags += ["B-LOC", *["I-LOC"] * (len(place) - 1), "O"]
        return {"tokens": tokens, "tags": tags}

    return _splits(folder, row, sizes)


def windows(folder: Path) -> Path:
    """Tagged sentences that are read in several windows."""
    return entities(folder, words=3)


def relations(folder: Path, sizes: tuple[int, int, int] = (30, 9, 9)) -> Path:
    """Sentences with a person and two places, of which one is where the person lives."""
    rng = random.Random(9)

    def row() -> dict:
        lives, saw = ([*name.split()] for name in rng.sample(_PLACES, 2))
        tokens = [rng.choice(_PEOPLE), "lives", "in", *lives, "and", "saw", *saw]
        begin = len(tokens) - len(saw)
        spans = [(0, 1, "PER"), (3, 3 + len(lives), "LOC"), (begin, len(tokens), "LOC")]
        return {
            "tokens": tokens,
            "spans": [{"start": s, "end": e, "label": label} for s, e, label in spans],
            "relations": [{"subject": 0, "object": 1, "label": "lives_in"}],
        }

    return _splits(folder, row, sizes)


def questions(folder: Path, sizes: tuple[int, int, int] = (30, 9, 9)) -> Path:
    """Questions about a person and a place; every fourth has no answer in its context."""
    rng = random.Random(10)
    count = 0

    def row() -> dict:
        nonlocal count
        count += 1
        person, place = rng.choice(_PEOPLE), rng.choice(_PLACES)
        context = f"{person} saw the river near {place} ."
        asked = ("who saw the river", person) if count % 2 else ("where is the river", place)
        if count % 4 == 0:
            return {"question": "why", "context": context, "answers": _answer(context, None)}
        return {"question": asked[0], "context": context, "answers": _answer(context, asked[1])}

    return _splits(folder, row, sizes)


def _answer(context: str, text: str | None) -> dict:
    """Return answers in the columns of SQuAD."""
    if text is None:
        return {"text": [], "answer_start": []}
    return {"text": [text], "answer_start": [context.index(text)]}


def documents(folder: Path, sizes: tuple[int, int, int] = (36, 12, 12)) -> Path:
    """Tagged sentences of documents; what a name is, is said by the sentence before or after."""
    rng = random.Random(6)
    rest: list[dict] = []
    count = 0

    def row() -> dict:
        nonlocal count
        if not rest:
            count += 1
            name, tag = rng.choice(_PEOPLE + _PLACES[:3]), rng.choice(["PER", "LOC"])
            hint = {"tokens": ["a", "river" if tag == "LOC" else "guitar", "."], "tags": ["O"] * 3}
            said = {"tokens": [name, "saw", "it"], "tags": [f"B-{tag}", "O", "O"]}
            more = {"tokens": ["near", "the", "river", "."], "tags": ["O"] * 4}
            rest.extend([[hint, said, more], [said, hint], [more, said, hint, more]][count % 3])
        return {**rest.pop(), "document": f"d{count}"}

    return _splits(folder, row, sizes)


def speech(folder: Path, sizes: tuple[int, int, int] = (30, 9, 9)) -> Path:
    """Words with parts of speech: tags that spell no spans."""
    rng = random.Random(7)

    def row() -> dict:
        tokens = [rng.choice(_PEOPLE), "saw", "the", rng.choice(_GOOD), "river"]
        return {"tokens": tokens, "tags": ["PROPN", "VERB", "DET", "ADJ", "NOUN"]}

    return _splits(folder, row, sizes)


def _splits(folder: Path, row, sizes: tuple[int, int, int]) -> Path:
    for split, size in zip(("train", "validation", "test"), sizes, strict=True):
        write_jsonl(folder / f"{split}.jsonl", [row() for _ in range(size)])
    return folder


def running_text(
    folder: Path, sizes: tuple[int, int, int] = (20, 5, 5), short: bool = False
) -> Path:
    """Documents of one to four sentences, one a line, with blank lines between them."""
    rng = random.Random(8)

    def sentence() -> str:
        person, place = rng.choice(_PEOPLE), rng.choice(_PLACES)
        if short:
            return f"{person} saw {place} ."
        return f"{person} saw the {rng.choice(_GOOD + _BAD)} river near {place} and the old house ."

    folder.mkdir(parents=True, exist_ok=True)
    for split, size in zip(("train", "validation", "test"), sizes, strict=True):
        made = ["\n".join(sentence() for _ in range(rng.randint(1, 4))) for _ in range(size)]
        (folder / f"{split}.txt").write_text("\n\n".join(made) + "\n", "utf-8")
    return folder


def short_text(folder: Path) -> Path:
    """Documents whose sentences fit into a sequence with another one."""
    return running_text(folder, short=True)


def numbers(folder: Path, sizes: tuple[int, int, int] = (30, 9, 9)) -> Path:
    """Pairs of texts with a number: how many words they share."""
    rng = random.Random(4)

    def row() -> dict:
        one, other = (" ".join(rng.choices(_GOOD, k=3)) for _ in range(2))
        shared = len(set(one.split()) & set(other.split()))
        return {"text": one, "text_pair": other, "label": shared + 0.5}

    return _splits(folder, row, sizes)


_SENTENCES = [
    "the train from paris was late",
    "anna saw a big red dog in the garden",
    "a man is playing",
    "two children run across the street because it rains",
    "what a great story !",
    "the bank",
    "nothing contradicts what the reporter wrote about the match",
    "this film is good",
    "john smith works for general motors in detroit",
    "a man is playing",
]


def similar(folder: Path) -> Path:
    """Pairs of sentences of very different lengths with a number."""
    return _sentence_pairs(folder, label=[number / 4 for number in range(10)])


def related(folder: Path) -> Path:
    """The same pairs with one of three names."""
    return _sentence_pairs(folder, label=list("abcabcabca"))


def triples(folder: Path) -> Path:
    """The same pairs with a third sentence that does not fit the first."""
    return _sentence_pairs(folder, negative=(_SENTENCES[:4] * 3)[:10])


def _sentence_pairs(folder: Path, **column: list) -> Path:
    turned = _SENTENCES[3:] + _SENTENCES[:3]
    ((name, values),) = column.items()
    found = zip(_SENTENCES, turned, values, strict=True)
    rows = [{"text": a, "text_pair": b, name: value} for a, b, value in found]
    return write_splits(folder, train=rows, validation=rows)


def topics(folder: Path, sizes: tuple[int, int, int] = (30, 9, 9)) -> Path:
    """Texts with any number of labels, one for each kind of name in them."""
    rng = random.Random(5)

    def row() -> dict:
        kinds = {"person": _PEOPLE, "place": _PLACES, "praise": _GOOD}
        labels = [tag for tag in kinds if rng.random() < 0.5]
        words = [rng.choice(kinds[tag]) for tag in labels]
        return {"text": " ".join(["so", *words, "it", "was"]), "labels": labels}

    return _splits(folder, row, sizes)


def choices(folder: Path) -> Path:
    """Questions of two or three choices: the right one repeats a word of the context."""
    for split, size in (("train", 24), ("validation", 6), ("test", 6)):
        rows = []
        for number in range(size):
            words = ["lovely", "dull", "warm", "cold", "bright"][number % 4 :]
            texts = [f"it was {word}" for word in words[:3]]
            row = {"id": f"q{number}", "context": f"the room was {words[number % 2]}"}
            rows.append({**row, "question": "what?", "choices": texts, "label": number % 2})
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder
