"""Files of one test, read as train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune.data import DataError


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Any]:
    """Write a file and return what a function makes of its path."""

    def write_and_call(function: Callable[..., Any], name: str, content: str | bytes) -> Any:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return function(str(path))

    return write_and_call


@pytest.fixture
def error(read: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """The message for a file that the module's ``read`` cannot read, without the folder."""

    def message(*arguments: Any, **options: Any) -> str:
        with pytest.raises(DataError) as caught:
            read(*arguments, **options)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return message
