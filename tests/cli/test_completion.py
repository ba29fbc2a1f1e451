"""Completion in shells."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command import run

TYPED = {
    "nl": {"nli"},
    "nli --prec": {"--precision"},
    "nli --precision b": {"bf16"},
    "search ta": {"tag"},
    "search tag --tria": {"--trials"},
    "search tag --epo": {"--epochs"},
    "tag --siz": {"--sizes"},
}
"""Words after `finetune`, and what completes the last."""


def test_bash_completes(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    (tmp_path / "script").write_text(run("--print-completion", "bash").ok().out, "utf-8")
    lines = [f"source {tmp_path / 'script'}"]
    for typed in TYPED:
        words = shlex.join(["finetune", *typed.split()])
        lines.append(f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))")
        lines.append('COMPREPLY=(); _shtab_finetune; echo "${COMPREPLY[@]}"')
    command = ["bash", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    completed = [set(line.split()) for line in done.stdout.splitlines()]
    assert dict(zip(TYPED, completed, strict=True)) == TYPED
