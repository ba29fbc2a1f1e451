"""Whole texts: the kind of problem, class weights, truncation and windows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from finetune.config.tasks import ClassifyConfig, TextConfig
from finetune.data import Dataset
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.types import Encoding, TextExample, UserError, did_you_mean, quantity

if TYPE_CHECKING:
    from finetune.models.heads.pretrained import Problem


def problem_of(config: TextConfig, data: Dataset) -> Problem:
    """Return the configured kind of problem, or the one that the type of the labels implies."""
    if isinstance(config, ClassifyConfig) and config.problem != "auto":
        return config.problem
    labels = [example.label for example in data.splits.get("train", ())]
    labels = [label for label in labels if label is not None]
    if any(isinstance(label, tuple) for label in labels):
        return "multi"
    return "regression" if labels and all(isinstance(x, float) for x in labels) else "single"


def in_one_form(data: Dataset, problem: str) -> Dataset:
    """Drop training and validation rows without a label, and convert the labels for the problem."""
    splits, notes = {}, list(data.notes)
    for split, examples in data.splits.items():
        labeled = [example for example in examples if example.label is not None]
        if labeled and len(labeled) < len(examples):
            rows = quantity(len(examples) - len(labeled), "row")
            notes.append(f"{rows} of {split} without label dropped")
        kept = labeled or (examples if split.startswith("test") else [])
        if not kept:
            raise UserError(f"{data.name}: no row of {split} has a label: --columns label=?")
        splits[split] = [with_problem(example, problem) for example in kept]
    given = [example.label for example in data.splits.get("train", ())]
    if problem == "multi" and not any(isinstance(label, tuple) for label in given):
        notes.append(
            "each row has one label; write several as a list in JSON Lines or Parquet, as in "
            '"label": ["a", "b"]'
        )
    return replace(data, splits=splits, notes=notes)


def with_problem(example: TextExample, problem: str) -> TextExample:
    """Convert the label for the problem; raise UserError if that is impossible."""
    label = example.label
    if label is None:
        return example
    if problem == "regression":
        return replace(example, label=_number(example))
    if problem == "multi":
        return example if isinstance(label, tuple) else replace(example, label=(_name(label),))
    if isinstance(label, tuple):
        raise UserError(
            f"{example.where}: the label is a list {list(label)!r} in place of one label: "
            "write --problem multi, or correct the row."
        )
    return example if isinstance(label, str) else replace(example, label=_name(label))


def _name(label: object) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def _number(example: TextExample) -> float:
    with contextlib.suppress(TypeError, ValueError):
        if math.isfinite(number := float(example.label)):  # type: ignore[arg-type]
            return number
    raise UserError(
        f"{example.where}: label {example.label!r} is not a number, as regression needs: "
        "correct the row, or write --problem single."
    )


def class_weights(
    setting: str, labels: Sequence[str], counts: Mapping[str, int], num_rows: int, problem: str
) -> list[float] | None:
    """Return the class weights: None, inverse frequency (``auto``), or the given (`a=1,b=2`).

    ``auto`` is n / (C n_c), so that every class weighs the same in total (King & Zeng, 2001, as
    scikit-learn's ``balanced``); with several labels it is negatives / positives of each label.
    """
    if setting == "none":
        return None
    if setting == "auto" and problem == "multi":
        return [(num_rows - counts[name]) / counts[name] for name in labels]
    if setting == "auto":
        each = sum(counts.values()) / sum(counts[name] > 0 for name in labels)
        return [each / counts[name] if counts[name] else 1.0 for name in labels]
    given: dict[str, float] = {}
    for item in setting.split(","):
        name, _, value = item.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise UserError(
                f"--class-weights {setting!r}: {item!r} is not LABEL=NUMBER (0 or more); write "
                f"none, auto or for instance {labels[0]}=1,{labels[-1]}=2."
            )
        if (name := name.strip()) not in labels:
            raise UserError(
                f"--class-weights: no label {name!r}; legal are {', '.join(labels)}."
                f"{did_you_mean(name, labels)}"
            )
        given[name] = weight
    return [given.get(name, 1.0) for name in labels]


def encode_texts(
    examples: Sequence[TextExample],
    tokenizer: SubwordTokenizer,
    max_length: int,
    long_text: str,
    overlap: int,
) -> tuple[list[list[Encoding]], int]:
    """Return the sequences of each text or pair, and how many texts were cut."""
    firsts = tokenizer.text_subwords([example.text for example in examples])
    pairs = [example.pair for example in examples if example.pair is not None]
    seconds = iter(tokenizer.text_subwords(pairs))
    result, num_cut = [], 0
    for example, first in zip(examples, firsts, strict=True):
        second = None if example.pair is None else next(seconds)
        template = tokenizer.single if second is None else tokenizer.pair
        room = max_length - template.num_special
        size = len(first) + len(second or ())
        if size <= room:
            parts = [(first, second)]
        elif long_text == "error":
            raise UserError(
                f"{example.where}: the text has {size} tokens, --max-length {max_length} leaves "
                f"room for {room}: raise it, or write --long-text truncate or --long-text window."
            )
        elif long_text == "truncate":
            parts = [truncated(first, second, room)]
            num_cut += 1
        else:
            parts = _windows(first, second, room, overlap)
            num_cut += min(len(first), len(second or ())) > room // 2  # the shorter is cut
        built = [tokenizer.build(*part) for part in parts]
        result.append([Encoding(example.id, *b, first_word=k) for k, b in enumerate(built)])
    return result, num_cut


def encode_apart(
    examples: Sequence[TextExample], tokenizer: SubwordTokenizer, max_length: int, long_text: str
) -> tuple[list[list[Encoding]], int]:
    """Return a sequence for each pair: its texts, each with its special tokens, one after another.

    They are the two "words" of the sequence. Texts longer than ``max_length`` are cut, and their
    pairs counted.
    """
    firsts = tokenizer.text_subwords([example.text for example in examples])
    seconds = tokenizer.text_subwords([example.pair or "" for example in examples])
    room = max_length - tokenizer.single.num_special
    result, num_cut = [], 0
    for example, *pair in zip(examples, firsts, seconds, strict=True):
        size = max(map(len, pair))
        _check_size(example, size, max_length, room, long_text)
        num_cut += size > room
        (first, segments), (second, more) = (tokenizer.build(text[:room]) for text in pair)
        both = None if segments is None or more is None else segments + more
        starts = [0, len(first), len(first) + len(second)]
        result.append([Encoding(example.id, first + second, both, starts)])
    return result, num_cut


def encode_marked(
    examples: Sequence[TextExample],
    tokenizer: SubwordTokenizer,
    max_length: int,
    long_text: str,
    apart: bool,
) -> tuple[list[list[Encoding]], int]:
    """Return a sequence for each pair, whose "words" are its targets and what is around them.

    The texts form one sequence: before, target, between, target, after. Or each has its special
    tokens (``apart``): before, target, after, before, target, after. Long texts are cut around
    their targets, and their pairs counted.
    """
    texts = [text for example in examples for text in (example.text, example.pair or "")]
    targets = [target for example in examples for target in example.targets or ()]
    flat = tokenizer.marked_subwords(texts, targets)
    room = max_length - (tokenizer.single if apart else tokenizer.pair).num_special
    result, num_cut = [], 0
    for example, one, other in zip(examples, flat[::2], flat[1::2], strict=True):
        both = (one[0], other[0])
        rooms = [room, room] if apart else [len(ids or ()) for ids in truncated(*both, room)]
        size = (max if apart else sum)(map(len, both))
        _check_size(example, size, max_length, room, long_text)
        num_cut += size > room
        (first, *at), (second, *pair_at) = (
            _around(*side, most) for side, most in zip((one, other), rooms, strict=True)
        )
        begin = len(tokenizer.single.prefix)
        if apart:
            (ids, segments), (more, more_segments) = map(tokenizer.build, (first, second))
            ends = [len(ids)]
            next_begin = len(ids) + begin
            ids, segments = ids + more, segments and segments + (more_segments or [])
        else:
            ids, segments = tokenizer.build(first, second)
            ends, next_begin = [], begin + len(first) + len(tokenizer.pair.middle)
        starts = [0, *(begin + i for i in at), *ends, *(next_begin + i for i in pair_at), len(ids)]
        result.append([Encoding(example.id, ids, segments, starts)])
    return result, num_cut


def _around(ids: list[int], start: int, end: int, room: int) -> tuple[list[int], int, int]:
    """Cut a text to its part around a target, and return where that is; a long target is cut."""
    left = max(0, min((start + end - room) // 2, len(ids) - room, start))
    return ids[left : left + room], start - left, min(end - left, room)


def _check_size(
    example: TextExample, size: int, max_length: int, room: int, long_text: str
) -> None:
    """Raise UserError for a text of more than ``room`` tokens if long texts are errors."""
    if size > room and long_text == "error":
        raise UserError(
            f"{example.where}: a text has {size} tokens, --max-length {max_length} leaves room "
            f"for {room}: raise it, or write --long-text truncate."
        )


def truncated(
    first: list[int], second: list[int] | None, room: int
) -> tuple[list[int], list[int] | None]:
    """Cut the end of the longer text until both fit (`longest_first` of fast tokenizers).

    If both are cut, the longer one (the second of equal ones) keeps the odd subword.
    """
    if second is None:
        return first[:room], None
    short = min(len(first), len(second))
    if short * 2 >= room:
        keep_first = (room + 1) // 2 if len(first) > len(second) else room // 2
        return first[:keep_first], second[: room - keep_first]
    if len(first) > len(second):
        return first[: room - short], second
    return first, second[: room - short]


def _windows(
    first: list[int], second: list[int] | None, room: int, overlap: int
) -> list[tuple[list[int], list[int] | None]]:
    """Split the longer text into windows, each with the shorter one, cut to half the room."""
    second_is_longer = second is not None and len(first) <= len(second)
    long, short = (second or [], first) if second_is_longer else (first, second or [])
    short = short[: room // 2]
    size = room - len(short)
    step = size - min(overlap, size // 2)
    last = max(0, len(long) - size)
    parts = [long[start : start + size] for start in [*range(0, last, step), last]]
    if second is None:
        return [(part, None) for part in parts]
    return [(short, part) if second_is_longer else (part, short) for part in parts]
