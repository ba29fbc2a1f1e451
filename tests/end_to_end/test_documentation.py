"""Every command, program and link of README.md and docs/ works, on a tiny model.

Each command is a test of its own. A command that reads a run folder first runs the documented
command that writes it. Commands train, validate and test on fewer examples than there are; one test
reads all of them.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from finetune.cli.main import COMMANDS, main, parse
from finetune.config.tasks import CONFIGS
from tests import fixtures as fx
from tests.command import run
from tests.covering import few

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
SET_UP = ("python3 -m venv", ". .venv", "pip install", "python -m pytest")
"""Beginnings of commands that the continuous integration runs in a fresh environment."""
NOT_RUN = {"push", "serve"}
"""Commands that need minutes or a network, or do not end; their own tests cover them."""


TRAINED_ON, EVALUATED = 160, 20
"""Examples of each file to train on, and to validate or test on."""


def copy_examples(folder: Path) -> None:
    """Copy the scripts and the data of the examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for path in (folder / "examples" / "data").glob("*/*"):
        if path.stem in ("train", "validation", "test", "answers"):
            _shorten(path, TRAINED_ON if path.stem == "train" else EVALUATED)


def _shorten(path: Path, number: int) -> None:
    between = "\n\n" if path.suffix == ".conll" else "\n"
    examples = path.read_text("utf-8").split(between)
    path.write_text(between.join(examples[:number]).rstrip("\n") + "\n", "utf-8")


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands_of(page: Path) -> list[str]:
    lines = re.split(r"\n|&&", "\n".join(blocks(page, "bash")))
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith(SET_UP)]


def documented_programs() -> dict[str, str]:
    return {
        f"{page.stem}-{number}": program
        for page in PAGES
        for number, program in enumerate(blocks(page, "python"))
    }


DOCUMENTED = {line: shlex.split(line) for page in PAGES for line in commands_of(page)}
"""The commands of all pages: the line as it stands, and its words."""
FAST = {words[1]: line for line, words in reversed(DOCUMENTED.items())}.values()
FAST = {*FAST, *commands_of(PAGES[0]), *(line for page in PAGES for line in commands_of(page)[:1])}
"""The first line of each command and of each page, and those of README.md: others are slow."""
PROGRAMS = documented_programs()


def output_of(words: list[str]) -> str | None:
    """The path that a command writes."""
    named = [words[i + 1] for i, word in enumerate(words) if word == "--out"]
    return named[0] if named else None


def data_of(words: list[str]) -> str:
    return words[words.index("--data") + 1]


TRAINED = {
    (words[1], data_of(words))
    for words in DOCUMENTED.values()
    if words[1] in CONFIGS and "--data" in words and (ROOT / data_of(words)).is_dir()
}
"""The tasks, and the data of the examples that they are trained on."""
PRODUCERS = {
    output: line
    for line, words in DOCUMENTED.items()
    if (output := output_of(words)) and "--resume" not in words
}
READ = {
    output
    for output, line in PRODUCERS.items()
    if any(output in text for text in (*DOCUMENTED, *PROGRAMS.values()) if text != line)
}
"""The folders that other commands or programs read. A command that trains into another one is
planned; it trains in the slow test."""


class Workspace:
    """A folder with a tiny model, in which documented commands run once each."""

    def __init__(self, folder: Path, *, trains_all: bool = False) -> None:
        self.folder, self.outputs, self.trains_all = folder, dict[str, str](), trains_all
        self.model = str(fx.checkpoint(layers=3, max_position_embeddings=256))
        (folder / "recipes").symlink_to(ROOT / "recipes")
        copy_examples(folder)

    def run(self, line: str) -> str:
        """Run a documented command (once) after those that it depends on; return its output."""
        if line not in self.outputs:
            words = DOCUMENTED[line]
            self.provide(line, own_output=None if "--resume" in words else output_of(words))
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                if {"--label-errors", "--risk"} & {*words}:  # need a model that learns, or data
                    parse(words[1:])
                    print("parsed")
                else:
                    main(self.on_tiny_model(words[1:]))
            self.outputs[line] = printed.getvalue()
        return self.outputs[line]

    def provide(self, text: str, own_output: str | None = None) -> None:
        """Run the commands that write the run folders named in a text."""
        for output in re.findall(r"runs/[\w-]+(?:\.\w+)?|[\w-]+\.\w+", text):
            if output != own_output and output in PRODUCERS:
                self.run(PRODUCERS[output])

    def on_tiny_model(self, words: list[str]) -> list[str]:
        stands_for = {"minilm", "roberta-base"} if words[0] == "perplexity" else {"minilm"}
        words = [self.model if word in stands_for else word for word in words]
        if words[0] == "run" and words[1:2] in ([], ["--only"]):  # a table of recipes
            return words
        if words[:2] == ["run", "examples/multitask.yaml"]:
            words[words.index("--limit") + 1] = "16"
            return words
        if words[0] == "run":
            words += ["--model", self.model]
        if words[0] in CONFIGS and output_of(words) not in READ and not self.trains_all:
            return [*words, "--steps", "1", "--limit", "16", "--dry-run"]
        if words[0] in {*CONFIGS, "run", "distill"}:
            words += ["--steps", "1"]
            words += [] if "--sizes" in words else ["--limit", "20"]
        if "--seeds" in words:
            words[words.index("--seeds") + 1] = "2"
        if words[0] == "search":
            words[words.index("--trials") + 1] = "2"
            words += ["--steps", "1", "--limit", "16"]
        return words


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("documentation"))


@pytest.mark.parametrize(
    "line", few(DOCUMENTED, *FAST), ids=lambda line: line.replace("finetune ", "")[:60]
)
def test_command(line: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(workspace.folder)
    workspace.run(line)
    output = output_of(DOCUMENTED[line])
    assert workspace.outputs[line] or (output and Path(output).exists())


def test_every_command_is_known_with_its_options():
    for words in DOCUMENTED.values():
        assert words[0] == "finetune", "a documented command that no test runs"
        if words[1] != "run":  # reads the recipe
            parse(words[1:])


@pytest.mark.slow
def test_all_commands_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    workspace = Workspace(tmp_path, trains_all=True)
    monkeypatch.chdir(workspace.folder)
    for line, words in DOCUMENTED.items():
        if words[1] in CONFIGS and "--dry-run" not in words:
            workspace.run(line)
            assert Path(output_of(words) or "runs").exists(), line


@pytest.mark.parametrize("name", few(PROGRAMS, *(n for n in PROGRAMS if n.endswith("-0"))))
def test_program(name: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(workspace.folder)
    workspace.provide(PROGRAMS[name], own_output="runs/python")
    program = re.sub('"(minilm|roberta-base)"', f'"{workspace.model}"', PROGRAMS[name])
    program = re.sub(r"\b(steps|epochs)=\d+", "steps=2", program)
    exec(program, {})
    assert "assert" not in PROGRAMS[name], "documentation shows use, tests assert"


@pytest.mark.parametrize("task, data", sorted(TRAINED))
def test_the_data_of_the_examples_is_read_whole(
    task: str, data: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    planned = run(task, "--model", workspace.model, "--data", data, "--dry-run").ok()
    assert "skipped" not in planned.out + planned.err


def test_every_command_is_documented():
    assert {words[1] for words in DOCUMENTED.values()} >= set(COMMANDS) - NOT_RUN


def test_every_output_has_one_command():
    outputs = [output_of(words) for words in DOCUMENTED.values() if "--resume" not in words]
    named = [output for output in outputs if output]
    assert len(named) == len(set(named))


def test_blocks_are_of_known_kinds():
    for page in PAGES:
        kinds = set(re.findall(r"^```(\w*)$", page.read_text("utf-8"), flags=re.MULTILINE))
        assert kinds <= {"bash", "python", "yaml", ""}, page


def anchor(heading: str) -> str:
    """The anchor that a heading gets when Markdown is rendered."""
    plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return plain.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links(page: Path):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, part = target.partition("#")
        linked = (page.parent / name) if name else page
        assert linked.exists(), f"{page.name} links {target}"
        if part:
            headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), flags=re.MULTILINE)
            assert part in map(anchor, headings), f"{page.name} links {target}"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_the_index_of_docs_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(page for page in pages if f"({page})" not in index) == []


def test_the_walks_name_what_is_there():
    """Files and names of the package that docs/development.md names in its walks."""
    text = (ROOT / "docs" / "development.md").read_text("utf-8")
    walks = text[text.index("## The way of the data") : text.index("## Runs")]
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "finetune").rglob("*.py"))
    quoted = re.findall(r"`([\w./]+)`", walks)
    files = [name for name in quoted if name.endswith(".py")]
    missing = [name for name in files if not (ROOT / "finetune" / name).is_file()]
    names = [n.rpartition(".")[2] for n in quoted if not re.search(r"/|\.py|\.json", n)]
    defined = re.findall(r"(?:def|class) (\w+)|^ *(?!def )(\w+)\b.* = ", source, re.M)
    missing += {*names} - {name for pair in defined for name in pair}
    assert len(files) > 20 and len(names) > 30 and not missing
