"""Completion in shells."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from finetune.cli.completion import SHELLS
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


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        outcome = run("--print-completion", shell)
        assert outcome.code == 0 and outcome.err == ""
        (folder / shell).write_text(outcome.out, "utf-8")
    return folder


def completed(shell: str, script: Path, typed: str) -> set[str]:
    """Return what a shell that has read the script suggests for the last word."""
    words = shlex.join(["finetune", *typed.split()])
    command = {
        "bash": f"source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "_finetune; printf '%s\\n' \"${COMPREPLY[@]}\"",
        "fish": f"source {script}; complete -C '{words}' | cut -f1",
    }[shell]
    done = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_shells_complete(shell: str, scripts: Path):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    for typed, expected in TYPED.items():
        assert completed(shell, scripts / shell, typed) == expected


def test_zsh_reads_the_script(scripts: Path):
    assert "bashcompinit" in (scripts / "zsh").read_text("utf-8")
    if shutil.which("zsh") is None:
        pytest.skip("needs zsh")
    command = f"source {scripts / 'zsh'}; echo $_comps[finetune]"
    done = subprocess.run(["zsh", "-fc", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("_bash_complete -o default -F _finetune\n", "")


def test_other_shells():
    run("--print-completion=tcsh").refused("write bash, zsh, fish")
