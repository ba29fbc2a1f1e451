"""Which module may import which, how long things may be, and what imports cost."""

from __future__ import annotations

import ast
import functools
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "finetune"
LONGEST_MODULE = 320
LONGEST_FUNCTION = 60

WALLS = {
    "types": "",
    "context": "types",
    "config": "context",
    "families": "",
    "hub": "",
    "progress": "",
    "align": "types",
    "nesting": "types",
    "widths": "",
    "positive": "",
    "metrics": "align positive types",
    "span_metrics": "metrics nesting types",
    "span_matching": "types",
    "breakdown": "align types",
    "calibration": "",
    "expected": "types",
    "recipe": "config expected types",
    "reproduced": "config expected recipe",
    "data": "align hub nesting types widths",
    "models": "hub types",
    "tokenization": "hub models types",
    "encodings": "types",
    "prefetch": "",
    "batching": "encodings types",
    "dropout": "",
    "staging": "types",
    "layout": "staging",
    "grouping": "layout staging",
    "dense_attention": "dropout grouping layout",
    "attention": "dense_attention grouping layout",
    "deberta": "dropout grouping layout staging",
    "spans": "",
    "span_decoding": "types",
    "decoding": "align",
    "padding": "layout staging types",
    "rounding": "types",
    "encoder": "attention deberta dropout families layout models padding rounding types",
    "heads": "align encoder families models padding staging types",
    "initial": "config heads models types",
    "heap": "",
    "bench": "arguments batching config data encoder encodings graphs heads heap launch models "
    "optimization parsing prediction prefetch spans step tasks tokenization types vocabulary",
    "tasks": "align calibration config context data decoding encodings families heads initial "
    "metrics models nesting span_decoding span_metrics spans tokenization types widths",
    "prediction_rows": "data",
    "gold": "data types",
    "answers": "align data gold prediction_rows tasks.labels types",
    "scoring": "answers gold metrics prediction_rows span_metrics",
    "counts": "",
    "significance": "",
    "confidences": "answers types",
    "analysis_tables": "answers breakdown metrics types",
    "item_counts": "align answers counts positive types",
    "number_counts": "answers counts item_counts",
    "group_counts": "align analysis_tables answers breakdown calibration confidences counts "
    "item_counts nesting span_matching types",
    "sufficient_statistics": "answers confidences counts group_counts item_counts nesting "
    "number_counts span_matching types",
    "systems": "config data gold prediction_rows tasks types",
    "comparing": "answers data gold prediction_rows significance sufficient_statistics systems "
    "types",
    "evaluate_modules": "align metrics span_metrics types",
    "trainer_metrics": "align metrics types",
    "label_errors": "",
    "mistakes": "breakdown label_errors span_matching types",
    "analysis": "align analysis_tables answers breakdown calibration confidences gold label_errors "
    "metrics mistakes prediction_rows scoring span_matching systems types",
    "analysis_text": "analysis analysis_tables calibration mistakes types",
    "report": "align analysis analysis_tables answers arguments breakdown calibration comparing "
    "gold config data mistakes models prediction_rows significance sufficient_statistics systems "
    "tasks types",
    "publishing": "report tasks",
    "optimization": "batching config",
    "checkpoint": "",
    "interruption": "",
    "launch": "config",
    "vocabulary": "encodings families",
    "step": "config interruption optimization prediction staging tasks types",
    "static_batch": "staging types",
    "recording": "",
    "graphs": "optimization recording staging static_batch step types",
    "run_log": "checkpoint",
    "state": "checkpoint",
    "run_folder": "checkpoint config launch tasks types",
    "prediction": "batching encodings launch optimization prefetch progress staging tasks types",
    "encoding_cache": "encodings tasks types",
    "training_data": "batching config encoding_cache encodings optimization prefetch tasks types",
    "train": "checkpoint config graphs heap interruption launch optimization prediction progress "
    "run_folder run_log state step tasks training_data types vocabulary",
    "predictor": "align config launch prediction tasks types",
    "pipelines": "batching heads predictor staging tasks types",
    "submission": "data tasks.labels types",
    "onnx_graph": "",
    "export": "batching heads onnx_graph padding predictor tasks types",
    "cross_fitting": "config data interruption launch prediction progress tasks train types",
    "suspects": "align cross_fitting label_errors mistakes types",
    "label_check": "config cross_fitting interruption launch suspects types",
    "commands": "analysis_text comparing data export label_check models prediction "
    "predictor scoring submission tasks tokenization types",
    "baseline": "tasks types",
    "training": "baseline commands config expected gold interruption launch "
    "optimization progress publishing recipe report tasks train types",
    "seeds": "baseline commands config expected launch progress recipe report run_log tasks "
    "training",
    "arguments": "config field_docs types",
    "field_docs": "",
    "parsing": "config field_docs types",
    "start": "arguments config initial launch parsing recipe seeds training",
    "cli": "arguments bench commands config parsing publishing recipe report reproduced start "
    "types",
}
"""What each module may import of ours, at its top or inside functions; a package may import its
own modules. A new module gets a line here, which is the moment to think about where it stands."""

PARTS = {
    "heads": {
        "base",
        "crf",
        "own",
        "tagging",
        "span_scoring",
    },  # a CRF stands on the tagger of words
    # NLI is classification of pairs
    "tasks": {
        "",
        "base",
        "chains",
        "labels",
        "text",
        "classify",
        "words",
        "context",
        "span_targets",
        "temperature",
    },
}
"""What modules of a package may import of their own package ("" is the package itself)."""

ACCELERATE = {"train", "prediction", "launch", "bench.trainer"}
HEAVY = {"torch", "transformers", "accelerate", "datasets", "scipy", "sklearn", "pandas", "tyro"}
LIGHT = ("types", "config", "align", "metrics", "span_metrics", "data", "families", "models", "hub",
         "expected", "recipe", "reproduced", "report", "progress", "tokenization", "tasks",
         "scoring", "comparing", "start", "cli", "")  # fmt: skip
"""Modules whose import loads nothing of HEAVY (of `tasks`, the package itself)."""
STANDARD_ONLY = ("types", "config", "align", "positive", "nesting", "widths", "families", "")


def name_of(path: Path) -> str:
    """`tasks/nli.py` is ``tasks.nli``, a package's own file is the package, ours is ``""``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def walk(node: ast.AST, at_top: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node with whether importing the module runs it; blocks for type checkers left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child, at_top
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk(child, at_top and not inside)


@functools.cache
def imports(module: str, top_only: bool = False) -> frozenset[str]:
    """Full names of all modules that a module imports."""
    found = set()
    for node, at_top in walk(tree(module)):
        if top_only and not at_top:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide where a name comes from"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if name.removeprefix("finetune.") in MODULES}
            found |= modules
            if inner - modules:
                found.add(node.module)
    return frozenset(found)


def ours(module: str, top_only: bool = False) -> set[str]:
    names = imports(module, top_only)
    return {
        name.removeprefix("finetune").removeprefix(".")
        for name in names
        if name.split(".")[0] == "finetune"
    }


def others(module: str, top_only: bool = False) -> set[str]:
    return {name.split(".")[0] for name in imports(module, top_only)} - {"finetune"}


def test_the_reading_of_imports_reads() -> None:
    assert "accelerate" in others("train")
    assert {"prediction", "tasks", "checkpoint"} <= ours("train")
    assert "torch" in others("models")
    assert "torch" not in others("models", top_only=True)
    assert "torch" not in others("types"), "it stands there for type checkers only"
    assert {part for name in MODULES if (part := name.split(".")[0])} == set(WALLS)


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_wall(module: str) -> None:
    package = module.split(".")[0]
    for name in ours(module):
        if name.split(".")[0] == package and package in ("bench", "data", "report", *PARTS):
            part = name.removeprefix(package).removeprefix(".")
            assert package not in PARTS or part in PARTS[package], f"{module} imports {name}"
        else:
            legal = WALLS[package].split()
            assert name in legal or name.split(".")[0] in legal, f"{module} imports {name}"


def test_data_is_used_through_its_front_door() -> None:
    """Outside of `data` and what reads its files, only the package itself is imported."""
    inner = {
        (module, name)
        for module in MODULES
        if module.split(".")[0] not in ("data", "answers", "gold", "prediction_rows")
        for name in ours(module)
        if name.startswith("data.")
    }
    assert not inner


def test_nobody_imports_the_command_line() -> None:
    assert [module for module in MODULES if "cli" in ours(module)] == []


def test_the_trainer_knows_no_concrete_task_and_no_head() -> None:
    for module in ("train", "prediction", "launch", "run_folder", "step", "graphs", "optimization"):
        concrete = {name for name in ours(module) if name.startswith(("tasks.", "heads", "data"))}
        assert not concrete, f"{module} imports {concrete}"
    assert {module for module in MODULES if "accelerate" in others(module)} == ACCELERATE


@pytest.mark.parametrize("module", STANDARD_ONLY)
def test_standard_library_only(module: str) -> None:
    assert others(module) <= sys.stdlib_module_names


def loaded_by(module: str) -> set[str]:
    """Third-party packages that importing a module imports, through all of ours."""
    seen: set[str] = set()
    todo = [module]
    packages: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or name not in MODULES:
            continue
        seen.add(name)
        packages |= others(name, top_only=True)
        todo += [*ours(name, top_only=True), name.rpartition(".")[0]]
    return packages - sys.stdlib_module_names


@pytest.mark.parametrize("module", [m for m in MODULES if m in LIGHT or m.startswith("data.")])
def test_light_modules_load_nothing_heavy(module: str) -> None:
    assert not loaded_by(module) & HEAVY


def test_what_is_heavy_is_seen_through_our_modules() -> None:
    assert {"torch", "accelerate"} <= loaded_by("train")
    assert {"torch", "transformers"} <= loaded_by("tasks.tag")


@pytest.mark.parametrize("module", MODULES)
def test_length_of_modules(module: str) -> None:
    length = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert length <= LONGEST_MODULE, f"{module} has {length} lines: split it"


def test_length_of_functions() -> None:
    lengths = {
        f"{module}.{node.name}": node.end_lineno - node.lineno + 1
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef)
    }
    too_long = {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION}
    assert not too_long


def test_no_drawers_for_everything() -> None:
    last = {name.rpartition(".")[2] for name in MODULES}
    assert not last & {"utils", "util", "helpers", "common", "misc", "manager"}


def seconds_of(code: str) -> tuple[float, set[str]]:
    """Processor time of a fresh interpreter (a busy machine does not count) and what it loaded."""
    code += "\nimport sys; print('|', *(name for name in sys.modules if '.' not in name))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    loaded = set(done.stdout.rpartition("|")[2].split())
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, loaded


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("import finetune", 0.4),
        ("from finetune.cli import main; main(['--help'])", 1.0),
        ("from finetune.data import read_text", 0.5),
    ],
)
def test_what_starting_costs(code: str, limit: float) -> None:
    seconds, loaded = min((seconds_of(code) for _ in range(2)), key=lambda found: found[0])
    assert "finetune" in loaded
    assert not loaded & HEAVY
    assert seconds < limit


@pytest.mark.parametrize("command", ["tag", "bench"])
def test_help_of_a_command_loads_no_torch(command: str) -> None:
    code = (
        "from finetune.cli import main\n"
        f"try: main(['{command}', '--help'])\n"
        "except SystemExit as end: assert not end.code"
    )
    _, loaded = seconds_of(code)
    assert not loaded & (HEAVY - {"tyro"})
