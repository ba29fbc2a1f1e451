"""Files of one test, read as train: in memory, and once more from disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.data import DataError, Dataset, check_data, examples, rows
from finetune.data.columns import stored


def on_disk(values: Iterable[Any], title: str = "") -> examples.Examples:
    """Keep even a few examples on disk, in chunks of four."""
    held = examples.Examples(values)
    if not held:
        return held
    return examples.Examples._mapped(held.example_type, stored(held._batches()))


def rows_of(data: Dataset) -> Any:
    return {split: [(e, e.where, e.key) for e in rows] for split, rows in data.splits.items()}


def all_of(data: Dataset) -> Any:
    return rows_of(data), data.notes, data.fingerprint, check_data(data)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Write a file and return what a function makes of its path.

    Data, and the message of an error, are the same if examples are on disk.
    """

    def write_and_call(function: Callable[..., Any], name: str, content: str | bytes) -> Any:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            data = function(str(path))
        except DataError as error:
            with kept_on_disk(), pytest.raises(DataError) as caught:
                function(str(path))
            assert str(caught.value) == str(error)
            raise
        if isinstance(data, Dataset):
            with kept_on_disk():
                large = function(str(path))
                assert large.is_large and all_of(large) == all_of(data)
        return data

    @contextlib.contextmanager
    def kept_on_disk() -> Iterator[None]:
        with monkeypatch.context() as patched:
            for module in (examples, rows):
                patched.setattr(module, "collected", on_disk)
            patched.setattr(examples, "CHUNK", 4)
            yield

    return write_and_call


@pytest.fixture
def error(read: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """The message for a file that the module's ``read`` cannot read, without the folder."""

    def message(*arguments: Any, **options: Any) -> str:
        with pytest.raises(DataError) as caught:
            read(*arguments, **options)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return message
