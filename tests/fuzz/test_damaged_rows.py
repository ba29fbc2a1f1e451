"""Every reader meets damaged input with a UserError, or reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.annotation.reading import read_annotations
from finetune.data import (
    check_data,
    input_type_of,
    read_text,
    read_text_file,
    read_token_file,
    read_tokens,
)
from finetune.data.choices import CHOICES
from finetune.data.questions import QUESTIONS
from finetune.data.tokens import read_gold
from finetune.embeddings.sense_data import read_senses
from finetune.embeddings.similarity import read_similarity
from finetune.evaluation.predictions import read_predictions
from finetune.pretraining.documents import read_running_text
from finetune.types import UserError
from tests.fuzz.mutations import SEEDS, fuzz

pytestmark = pytest.mark.slow


def _checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda path: check_data(read(path), max_length=None)


READERS: dict[str, Callable[[str], Any]] = {
    "read_text": _checked(read_text),
    "read_tokens": _checked(read_tokens),
    "relations": _checked(lambda path: read_tokens(path, relations=True)),
    "read_questions": _checked(QUESTIONS.read),
    "read_choices": _checked(CHOICES.read),
    "read_text_file": read_text_file,
    "read_token_file": read_token_file,
    "read_gold": read_gold,
    "input_type_of": input_type_of,
    "read_annotations": read_annotations,
    "read_senses": read_senses,
    "read_running_text": read_running_text,
    "read_similarity": read_similarity,
    "read_predictions": lambda path: read_predictions(Path(path)),
}


@pytest.mark.parametrize("name", SEEDS)
def test_readers(name: str, tmp_path: Path) -> None:
    path = tmp_path / name

    def check(content: bytes) -> None:
        path.write_bytes(content)
        for reader in READERS.values():
            try:
                found = reader(str(path))
                if isinstance(found, Iterator):
                    list(found)
            except UserError as error:
                assert str(error)

    fuzz(SEEDS[name], check)


def test_standoff(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ana saw Oslo.")
    seed = b"T1\tPER 0 3\tAna\nT2\tLOC 8 12\tOslo\nR1\tsaw Arg1:T1 Arg2:T2\n"

    def check(content: bytes) -> None:
        (tmp_path / "a.ann").write_bytes(content)
        for read in (
            read_tokens,
            lambda path: read_tokens(path, relations=True),
            read_gold,
            read_annotations,
        ):
            try:
                read(str(tmp_path))
            except UserError as error:
                assert str(error)

    fuzz(seed, check)
