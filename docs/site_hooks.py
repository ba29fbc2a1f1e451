"""Hooks of mkdocs: the navigation, the reference, and files that pages link.

Nothing is listed twice. The navigation follows the tables of docs/README.md. The reference of
Python shows the names in the tables of docs/python.md, and what the programs of the pages import
from modules; the reference of the command line shows the options of every command.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from finetune.cli.help import GROUPS, examples_of, options_of, summary_of
from finetune.cli.main import COMMANDS, command_class
from finetune.cli.train import RunOptions
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.registry import SUITE_COMMAND, imported

ROOT = Path(__file__).parents[1]
PAGES = sorted(Path(__file__).parent.glob("*.md"))
LINK = re.compile(r"(?<=\]\()\.\./([^)#]+)")
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
IMPORT = re.compile(r"^from (finetune\.[\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
LINKED = "files"
"""The folder of the site with files outside of docs that pages link."""


def sections(page: str) -> dict[str, list[list[str]]]:
    """Return the rows of the tables of names and pages by the heading above them."""
    found: dict[str, list[list[str]]] = {}
    heading, listed = "", False
    for line in (ROOT / "docs" / page).read_text("utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").replace("`", "")
        if not line.startswith("| ") or line.startswith(("| name |", "| page |")):
            listed = line.startswith("| ")
        elif listed and not line.startswith("| ---"):
            found.setdefault(heading, []).append([each.strip() for each in line[1:-1].split(" | ")])
    return found


def public_names() -> dict[str, list[str]]:
    """Return the names in the tables of docs/python.md by heading."""
    return {
        heading: [n for row in rows for n in re.findall(r"`(\w+)", row[0])]
        for heading, rows in sections("python.md").items()
    }


def imported_names() -> dict[str, list[str]]:
    """Return what the programs of the pages import, by module."""
    found: dict[str, set[str]] = defaultdict(set)
    for page in [ROOT / "README.md", *PAGES, *sorted((ROOT / "examples").glob("*.py"))]:
        text = page.read_text("utf-8")
        programs = PROGRAM.findall(text) if page.suffix == ".md" else [text]
        for module, names in (each for program in programs for each in IMPORT.findall(program)):
            found[module] |= set(re.findall(r"\w+", names))
    return {module: sorted(names) for module, names in sorted(found.items())}


def reference() -> dict[str, str]:
    """Return the pages of the reference by path."""
    pages = {}
    for heading, names in public_names().items():
        entries = "\n\n".join(f"::: finetune.{name}" for name in names)
        pages[f"reference/{heading.lower().replace(' ', '-')}.md"] = f"# {heading}\n\n{entries}\n"
    text = "# Parts by module\n\nNames that programs on the pages and in `examples/` import.\n"
    for module, names in imported_names().items():
        text += f"\n## {module}\n\n"
        for name in names:
            text += f"::: {module}.{name}\n    options: {{heading_level: 3}}\n\n"
    pages["reference/modules.md"] = text
    return pages | {"reference/command-line.md": command_line()}


def command_line() -> str:
    """Return the page with the options of every command."""
    parts = [
        "# Command line",
        "`finetune COMMAND --help` lists the options that people use, `--help-all` all of them. "
        "Every command takes `--quiet` (print results and errors only) and `--verbose` (also print "
        "the messages of libraries, and the traceback of an error). `finetune --version` prints "
        "the version. `NO_COLOR` in the environment turns off colors and bold.",
        "## Commands",
        "| command | |\n| --- | --- |\n"
        + "\n".join(
            f"| [`finetune {name}`](#finetune-{name}) | {summary_of(command_class(name))} |"
            for name in COMMANDS
        ),
    ]
    for name in COMMANDS:
        kind = command_class(name)
        examples = "\n".join(examples_of(kind))
        parts += [f"## finetune {name}", summary_of(kind), f"```\n{examples}\n```"]
        if name in CONFIGS:
            parts += [
                _options_table(CONFIGS[name], without=TrainConfig),
                "And the [settings of every task](#settings-of-every-task).",
            ]
        else:
            parts.append(_options_table(kind))
        if name == "run":
            parts += _run_of_suites()
    settings = [*options_of(TrainConfig), *options_of(RunOptions)]
    parts += ["## Settings of every task", *_tables(settings)]
    return "\n\n".join(parts) + "\n"


def _run_of_suites() -> list[str]:
    """Return the options of `finetune run` with a file that lists recipes."""
    kind = imported(SUITE_COMMAND)
    examples = "\n".join(examples_of(kind))
    return [summary_of(kind), f"```\n{examples}\n```", _options_table(kind)]


def _options_table(kind: type[Any], without: type[Any] | None = None) -> str:
    """Return the options of a dataclass as a Markdown table, except the same ones of another."""
    others = options_of(without) if without else []
    options = [option for option in options_of(kind) if option not in others]
    return _table(sorted(options, key=lambda option: not option.positional))


def _tables(options: list[Any]) -> list[str]:
    """Return a table for each group of options, with its heading."""
    found = {group: [each for each in options if each.group == group] for group in GROUPS}
    return [f"### {group.title()}\n\n{_table(each)}" for group, each in found.items() if each]


def _table(options: list[Any]) -> str:
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in options:
        unset = option.default in (None, (), "", dataclasses.MISSING)
        default = "" if unset else f"`{option.default}`"
        rows.append(f"| `{option.name}` | {default} | {option.text} |")
    return "\n".join(rows)


def on_config(config: Any) -> None:
    """Make the navigation from docs/README.md."""
    groups: list[Any] = [{"Overview": "README.md"}]
    for heading, rows in sections("README.md").items():
        links = [re.search(r"\[(.+)\]\((.+)\)", row[0]) for row in rows]
        groups.append({heading.split(":")[0]: [{m[1]: m[2]} for m in links if m]})
    titles = [{text.split("\n")[0].removeprefix("# "): path} for path, text in reference().items()]
    config.nav = [*groups, {"Reference": titles}]


def on_files(files: Any, config: Any) -> None:
    """Add the reference and the linked files to the site."""
    for path, text in reference().items():
        files.append(File.generated(config, path, content=text))
    linked = {name for page in PAGES for name in LINK.findall(page.read_text("utf-8"))}
    for name in sorted(linked):
        target = f"{LINKED}/{name}" + ".txt" * name.endswith(".md")
        files.append(File.generated(config, target, abs_src_path=str(ROOT / name)))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link files outside of docs in the site, and public names to their reference."""
    text = LINK.sub(lambda m: f"{LINKED}/{m[1]}" + ".txt" * m[1].endswith(".md"), markdown)
    if page.file.src_uri == "python.md":
        names = {name for each in public_names().values() for name in each}
        rows = r"(?m)^\| (.*?) \|"
        linked = lambda m: f"[{m[0]}][finetune.{m[1]}]" if m[1] in names else m[0]  # noqa: E731
        text = re.sub(rows, lambda row: re.sub(r"`(\w+)[^`]*`", linked, row[0]), text)
    return text
