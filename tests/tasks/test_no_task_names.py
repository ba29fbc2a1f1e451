"""No module outside ``tasks/`` chooses by the name or class of a task: it asks for an object."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.registry import TASKS
from finetune.tasks import task_class
from finetune.tasks.base import Task
from finetune.tasks.state import TaskState
from tests.tasks.test_tasks import kinds
from tests.test_layers import MODULES, ROOT, tree

OWNED = ("tasks.", "config.tasks", "preprocessing.text_labels", "registry")
"""Modules that define tasks."""


def classes_of_tasks() -> set[str]:
    """Return the names of the classes of tasks, states and settings."""
    for name in TASKS:
        assert CONFIGS[name].description.name == name
        task_class(name)  # imports it
    bases = {Task, TaskState, TrainConfig}
    return {cls.__name__ for base in bases for cls in kinds(base) - bases}


def constants(node: ast.expr) -> set[str]:
    """Return the strings in an expression such as ``("tag", "ner")``."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {each.value for each in parts if isinstance(each, ast.Constant) and each.value in TASKS}


def choices(module: ast.Module, classes: set[str]) -> Iterator[ast.AST]:
    """Yield the nodes that compare the name or the class of a task."""
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if set().union(*map(constants, sides)):
                if re.search(r"\btask(_name)?\b", " ".join(map(ast.unparse, sides))):
                    yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            is_check = node.func.id in ("isinstance", "issubclass")
            if is_check and classes & set(re.findall(r"\w+", ast.unparse(node.args[1]))):
                yield node
        elif isinstance(node, ast.Dict) and len(node.keys) > 1:
            if all(key is not None and constants(key) for key in node.keys):
                yield node


def test_no_module_chooses_by_the_name_or_class_of_a_task() -> None:
    classes = classes_of_tasks()
    example = "run.task == 'tag' or isinstance(config, TextConfig) or {'tag': 1, 'ner': 2}[task]"
    assert len(list(choices(ast.parse(example), classes))) == 3
    found = [
        f"{module}: {ast.unparse(node)}"
        for module in MODULES
        if not f"{module}.".startswith(OWNED)
        for node in choices(tree(module), classes)
    ]
    assert not found


def test_no_template_chooses_by_the_name_of_a_task() -> None:
    for path in (*ROOT.rglob("*.md"), *ROOT.rglob("*.html")):
        assert not re.search(r"task(\.name)? (==|!=|in|not in) ", path.read_text("utf-8")), path
