"""Extensions: the core works without them, and imports none."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import small_data
from tests.forks import in_fork
from tests.test_layers import EXTENSIONS, ROOT
from tests.tiny import save_tiny_checkpoint

HIDDEN = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith({hidden}):
            raise ModuleNotFoundError(f"{{name}} is hidden")

for name in [name for name in sys.modules if name.startswith({hidden})]:
    del sys.modules[name]  # which other tests have imported
sys.meta_path.insert(0, Hidden())
from finetune.cli.main import main

for task in ("tag", "classify"):
    main([task, "--model", "model", "--data", task, "--steps", "2", "--lr", "1e-3",
          "--max-length", "48", "--out", f"run-{{task}}"])
    main(["predict", f"run-{{task}}", "--file", f"{{task}}/test.jsonl",
          "--out", f"{{task}}.jsonl"])
    main(["score", f"{{task}}.jsonl", f"{{task}}/test.jsonl"])
    main(["report", f"run-{{task}}"])
assert not [name for name in sys.modules if name.startswith({hidden})]
"""
"""A program that cannot import extensions."""


def test_core_works_without_extensions(tmp_path: Path):
    """No extension can be imported, which includes the absence of each alone."""
    assert all((ROOT / extension).is_dir() for extension in EXTENSIONS)
    save_tiny_checkpoint(tmp_path / "model", "bert")
    small_data.entities(tmp_path / "tag", (16, 4, 4))
    small_data.sentiment(tmp_path / "classify", (16, 4, 4))
    hidden = tuple(f"finetune.{extension}" for extension in EXTENSIONS)
    # Modules of the core are imported already: tests/test_layers.py reads what they import.
    done = in_fork([sys.executable, "-c", HIDDEN.format(hidden=hidden)], tmp_path)
    assert done.wait(120) == 0, done.communicate()
    for task in ("tag", "classify"):
        assert (tmp_path / f"run-{task}" / "report.html").is_file()
