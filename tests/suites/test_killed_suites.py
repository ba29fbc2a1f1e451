"""A suite that is killed at any moment, twice, ends with the same models and the same table."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.drills.faults import serving
from tests.suites.conftest import write_suite

pytestmark = pytest.mark.slow

KILLS = 8
COMMAND = ("run", "tiny.yaml", "--seeds", "2", "--eval-every", "2", "--save-every", "1")


def content(folder: Path) -> dict[str, bytes]:
    """The weights of all models, the scores, and the table."""
    names = ("*.safetensors", "metrics.json", "seeds.json", "suite.*")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in names
        for path in sorted(folder.rglob(name))
    }


def test_killed_suites_end_with_the_same_table(tmp_path: Path) -> None:
    write_suite(tmp_path)
    with serving(tmp_path, tmp_path / "run") as server:
        command = [*COMMAND, "--out", "run"]
        whole = server.run(command, kills=True)
        assert whole.code == 0, whole.error
        expected = content(server.folder)
        assert sum("best" in name for name in expected) == 8 and "suite.html" in expected
        random_numbers, killed = random.Random("kills of suites"), 0
        while killed < KILLS:
            shutil.rmtree(server.folder)
            when = sorted(random_numbers.randint(1, whole.count) for _ in range(2))
            for number in (when[0], when[1] - when[0] + 1):
                ended = server.run(command, number=number, kills=True)
                assert ended.code in (0, -9), (when, ended)
                killed += ended.code == -9
            ended = server.run(command)
            assert ended.code == 0, (when, ended.error)
            assert content(server.folder) == expected, f"killed at operations {when}"
            left = list(server.folder.rglob(".*.new"))
            assert not left, (when, left)
