"""The order of the layers, what each may load, and what importing the package costs."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "finetune"

LAYERS = (
    "types",
    "registry",
    "config",
    "runtime",
    "data",
    "evaluation",
    "models",
    "preprocessing",
    "tasks",
    "inference",
    "training",
    "reporting",
    "api",
    "cli",
)
"""The core. Each layer imports only those before it."""
EXTENSIONS = ("annotation", "deployment", "embeddings", "pretraining", "suites")
"""Subjects beside the core, which imports none of them; an extension imports the core."""

STANDARD_LIBRARY_ONLY = (
    "types",
    "registry",
    "config.tasks",
    "data.tag_schemes",
    "models.families",
    "",
)
LIGHT = ("types", "registry", "config", "data", "evaluation", "")
"""Layers whose import loads nothing of HEAVY."""
HEAVY = {"torch", "transformers", "accelerate", "datasets", "scipy", "sklearn", "pandas"}
WITHOUT_TORCH = ("config", "data", "evaluation", "reporting")
"""Layers that torch and transformers are not imported in, not even inside functions."""


def name_of(path: Path) -> str:
    """`tasks/base.py` is ``tasks.base``, a package's own file is the package, ours is ``""``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


MOST_REPEATED_NAMES = 20
"""Public names that more than one module defines, at most. Lower it with each that goes."""


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node; blocks for type checkers left out."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from walk(child)


@functools.cache
def imports(module: str) -> frozenset[str]:
    """Full names of all modules that a module imports."""
    found = set()
    for node in walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide where a name comes from"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if name.removeprefix("finetune.") in MODULES}
            found |= modules
            if inner - modules:
                found.add(str(node.module))
    return frozenset(found)


@functools.cache
def imported_names(module: str) -> frozenset[str]:
    """The names that a module has from others."""
    return frozenset(
        alias.asname or alias.name
        for statement in walk(tree(module))
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for alias in statement.names
    )


def ours(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    return {
        name.removeprefix("finetune").removeprefix(".")
        for name in imports(module)
        if name.split(".")[0] == "finetune"
    }


def others(module: str) -> set[str]:
    """The packages that a module imports, at its top or in a function."""
    return {name.split(".")[0] for name in imports(module)} - {"finetune"}


def of_layers(*layers: str) -> list[str]:
    return [module for module in MODULES if module.split(".")[0] in layers]


def test_the_reading_of_imports_reads():
    assert "accelerate" in others("training.trainer")
    assert "torch" in others("models.loading")
    assert "torch" not in others("types"), "it stands there for type checkers only"
    entries = {part for name in MODULES if (part := name.split(".")[0])}
    assert entries == {*LAYERS, *EXTENSIONS, "__main__"}


def borrowed(layers: Sequence[str], forbidden: Set[str]) -> list[tuple[str, str]]:
    """Pairs of a module of these layers and what it imports of forbidden layers."""
    return [
        (module, name)
        for module in of_layers(*layers)
        for name in ours(module)
        if name.split(".")[0] in forbidden
    ]


def test_a_layer_imports_only_layers_before_it():
    for number, layer in enumerate(LAYERS):
        assert not borrowed([layer], {*LAYERS[number + 1 :], *EXTENSIONS})


def test_extensions_do_not_import_each_other():
    for extension in EXTENSIONS:
        assert not borrowed([extension], {*EXTENSIONS} - {extension})


def test_names_are_imported_from_where_they_are_defined():
    """A name comes from the module that defines it, or from a package that offers it."""
    for module in MODULES:
        for node in walk(tree(module)):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("finetune."):
                continue
            source = str(node.module).removeprefix("finetune.")
            if MODULES[source].name == "__init__.py":
                continue
            found = {alias.name for alias in node.names} & imported_names(source)
            assert not found, f"{module} takes {found} from {source}, which imports them"


def test_the_package_has_few_entries():
    entries = {path.name for path in ROOT.iterdir()} - {"__pycache__", *EXTENSIONS}
    assert len(entries) <= 18


def test_training_knows_no_concrete_task_and_no_head():
    for module in ("trainer", "step", "optimizer", "run_folder"):
        names = ours(f"training.{module}")
        concrete = {n for n in names if n.startswith(("tasks.", "models.heads"))}
        concrete -= {"tasks.base", "tasks.calibration", "tasks.definition", "tasks.multitask"}
        assert not concrete, module


def test_packages_that_layers_do_without():
    for module in STANDARD_LIBRARY_ONLY:
        assert others(module) <= sys.stdlib_module_names, module
    for module in of_layers(*WITHOUT_TORCH):
        assert not others(module) & {"torch", "transformers", "accelerate"}, module


HELP = "from finetune.cli.main import main\ntry: main({words})\nexcept SystemExit: pass"
LIGHT_MODULES = (*of_layers(*LIGHT), "cli.main", "tasks", "models.loading")
IMPORTS = ", ".join(
    f"finetune.{module}".rstrip(".")
    for module in LIGHT_MODULES
    if "evaluate_modules" not in module  # loaded by the library evaluate itself
)


@pytest.mark.parametrize(
    "code",
    [
        *(HELP.format(words=words) for words in (["--help"], ["tag", "--help"], ["serve", "-h"])),
        f"import {IMPORTS}",
    ],
    ids=["help", "tag", "serve", "imports"],
)
def test_a_start_loads_no_torch(code: str):
    code += "\nimport sys; print('|', *(name for name in sys.modules if '.' not in name))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    loaded = set(done.stdout.rpartition("|")[2].split())
    assert "finetune" in loaded
    assert not loaded & HEAVY


def test_a_public_name_has_one_meaning() -> None:
    modules: dict[str, list[str]] = {}
    for module in MODULES:
        for node in tree(module).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign) and "TypeVar(" not in ast.unparse(node.value):
                names = [name.id for name in node.targets if isinstance(name, ast.Name)]
            else:
                names = [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []
            for name in names:
                if not name.startswith("_"):
                    modules.setdefault(name, []).append(module)
    repeated = {name: where for name, where in modules.items() if len(where) > 1}
    assert len(repeated) <= MOST_REPEATED_NAMES, repeated
