"""Suites: YAML files that list recipes, how they depend on each other, and their average.

```yaml
title: GLUE
source: "Wang et al. (2019), GLUE: a multi-task benchmark …"
models: [roberta-base, roberta-large]      # {model} in the names of recipes; the first is usual
average: members                           # or scores, or none
members:
  mnli:
    recipe: nli/mnli-{model}
    scores: [validation_matched accuracy, validation_mismatched accuracy]
  rte:
    recipe: nli/rte-{model}-from-mnli
    from: mnli                             # starts from the run of mnli with the same seed
    scores: [validation accuracy]
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from finetune.config.expected_scores import is_split, metrics_of
from finetune.config.recipes import Recipe, load_recipe, open_recipe
from finetune.config.values import typed_values
from finetune.types import UserError, abbreviated, did_you_mean, quantity

Format = Literal["glue", "squad"]
"""The formats of submissions."""
MEMBER_KEYS: Mapping[str, Any] = {
    "recipe": str,
    "from": str,
    "scores": tuple[str, ...],
    "weight": float,
    "published": str,
    "note": str,
}
"""The keys of a member with their types."""
_NAME = r"\w[\w.-]*"
"""A name without folders."""
AVERAGES = {
    "members": "mean over the data sets; a data set with several scores counts with their mean",
    "scores": "mean over the scores",
}
"""The definitions of the average in words."""


@dataclass(frozen=True, slots=True)
class Score:
    """A score that a suite reports: a metric on a split."""

    split: str
    metric: str

    def __str__(self) -> str:
        """Return the score as a suite names it."""
        return f"{self.split} {self.metric}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A recipe of a suite."""

    name: str
    """Its name in the suite, and its folder in the folder of the suite."""
    recipe: Recipe
    start: str | None = None
    """The member whose run with the same seed is the start of training."""
    scores: tuple[Score, ...] = ()
    weight: float = 1.0
    """Weight in the average; 0 leaves the member out."""
    published: Recipe | None = None
    """Another recipe whose expected scores stand in the table, for comparison."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmissionFile:
    """A file of a submission: the predictions of a member on a split without labels."""

    name: str
    member: str
    split: str
    data: str | None = None
    """The data of the split; None are the data of the member's run."""

    def __post_init__(self) -> None:
        """Raise UserError for a name that would be written elsewhere."""
        if not re.fullmatch(_NAME, self.name):
            raise UserError(
                f"{self.name!r} is no plain name of a file: use letters, digits, -, . and _."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """The keys of a suite file besides ``members`` and ``submission``."""

    title: str
    description: str = ""
    source: str = ""
    models: tuple[str, ...] = ()
    """The models with recipes of their own."""
    average: Literal["members", "scores", "none"] = "members"


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite(Heading):
    """The content of a suite file, with the recipes of one model."""

    path: Path
    members: Mapping[str, Member]
    """The members in the order of the file."""
    submission: Format | None = None
    """The format of a submission; None if the suite has none."""
    files: tuple[SubmissionFile, ...] = ()

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.stem

    def order(self, only: Sequence[str] = ()) -> list[Member]:
        """Return members so that each follows the member that it starts from.

        ``only`` selects members, to which those that they start from are added. Raises UserError
        for an unknown name.
        """
        for name in only:
            if name not in self.members:
                raise UserError(
                    f"--only {name}: {self.name} has {abbreviated(self.members, 30)}."
                    f"{did_you_mean(name, self.members)}"
                )
        found: dict[str, Member] = {}
        for name in only or self.members:
            before: list[str] = []
            following: str | None = name
            while following is not None and following not in found:
                before.append(following)
                following = self.members[following].start
            found |= {each: self.members[each] for each in reversed(before)}
        return list(found.values())


Where = Callable[..., str]
"""Returns the file and line of a key by its path."""


def load_suite(path: str | Path, model: str | None = None) -> Suite:
    """Read and check a suite: a file, or the name of a packaged one, such as ``glue``.

    Args:
        path: The file or name.
        model: The encoder. Its last part replaces ``{model}`` in the names of recipes if the suite
            lists it under ``models``, else the first of ``models`` does.

    Raises:
        UserError: A key or value is illegal, a recipe is missing or wrong, or members start from
            each other.
    """
    path, content, where = open_recipe(path)
    own = {key: value for key, value in content.items() if key not in ("members", "submission")}
    values = _typed(where, "a suite", get_type_hints(Heading), own)
    if "title" not in values:
        raise UserError(f"{path}: a suite needs a `title`.")
    models = values.get("models", ())
    last = (model or "").rstrip("/").split("/")[-1]
    chosen = last if last in models else next(iter(models), "")
    listed = content.get("members")
    if not isinstance(listed, dict) or not listed:
        raise UserError(
            f"{where('members')}: `members` must have one or more names, each with a recipe, such "
            "as `rte: {recipe: nli/rte-minilm}`."
        )
    members = {name: _member(path, where, name, listed[name], chosen) for name in listed}
    _check_starts(where, members)
    kind, files = _submission(where, content.get("submission"), members)
    return Suite(path=path, members=members, submission=kind, files=files, **values)


def _typed(
    where: Where, what: str, hints: Mapping[str, Any], entry: Any, *above: str
) -> dict[str, Any]:
    typed: dict[str, Any] = {}
    for key, value in (entry if isinstance(entry, dict) else {}).items():
        place = where(*above, key)
        typed |= typed_values(place, f"key {{!r}} of {what}", hints, {key: value})
    return typed


def _member(path: Path, where: Where, name: str, entry: Any, model: str) -> Member:
    at = where("members", name)
    if not re.fullmatch(_NAME, name):
        raise UserError(f"{at}: {name!r} names a folder: use letters, digits, -, . and _.")
    values = _typed(where, "a member", MEMBER_KEYS, entry, "members", name)
    if "recipe" not in values:
        raise UserError(
            f"{at}: {name} has no recipe: write its file or name, such as "
            f"`{name}: {{recipe: nli/rte-minilm}}`."
        )
    recipes = {
        key: _recipe(path, where("members", name, key), values[key], model)
        for key in ("recipe", "published")
        if key in values
    }
    recipe = recipes["recipe"]
    weight = values.get("weight", 1.0)
    if not 0 <= weight < float("inf"):
        raise UserError(f"{where('members', name, 'weight')}: weight must be 0 or more.")
    if weight == 0 and not values.get("note"):
        raise UserError(f"{at}: {name} is left out of the average: say why in its `note`.")
    if not values.get("scores"):
        scores = tuple(dict.fromkeys(Score(e.split, e.metric) for e in recipe.expected))
        if not scores:
            raise UserError(
                f"{at}: {name} has no scores, and its recipe expects none: list some, such as "
                "`scores: [test accuracy]`."
            )
    else:
        line = where("members", name, "scores")
        scores = tuple(_score(line, recipe, text) for text in values["scores"])
    return Member(
        name=name,
        recipe=recipe,
        start=values.get("from"),
        scores=scores,
        weight=weight,
        published=recipes.get("published"),
        note=values.get("note", ""),
    )


def _recipe(path: Path, where: str, named: str, model: str) -> Recipe:
    if "{model}" in named and not model:
        raise UserError(f"{where}: {named!r} names a model: list the `models` of the suite.")
    name = named.replace("{model}", model)
    own = path.parent / name
    try:
        return load_recipe(own if own.is_file() else name)
    except UserError as error:
        if str(error).startswith(f"{name}: no such"):
            raise UserError(
                f"{where}: there is no recipe {name!r}. `finetune run` lists the recipes."
            ) from error
        raise UserError(f"{where}: {error}") from error


def _score(where: str, recipe: Recipe, text: str) -> Score:
    split, _, metric = text.partition(" ")
    legal = metrics_of(recipe.task)
    if not is_split(split):
        raise UserError(
            f"{where}: {text!r}: unknown split {split!r}: write SPLIT METRIC, as in `test "
            "accuracy`."
        )
    if metric.partition(":")[0] not in legal:
        raise UserError(
            f"{where}: {text!r}: {recipe.task} has no metric {metric!r}."
            f"{did_you_mean(metric, legal)} Legal are {abbreviated(legal, 20)}."
        )
    return Score(split, metric)


def _check_starts(where: Where, members: Mapping[str, Member]) -> None:
    for name in members:
        chain = [name]
        while (start := members[chain[-1]].start) is not None:
            line = where("members", chain[-1], "from")
            if start not in members:
                raise UserError(
                    f"{line}: {chain[-1]} starts from {start!r}, which is no member."
                    f"{did_you_mean(start, members)}"
                )
            if start in chain:
                cycle = " from ".join([*chain[chain.index(start) :], start])
                raise UserError(f"{line}: members start from each other: {cycle}.")
            chain.append(start)


def _submission(
    where: Where, entry: Any, members: Mapping[str, Member]
) -> tuple[Format | None, tuple[SubmissionFile, ...]]:
    if entry is None:
        return None, ()
    listed = entry.get("files") if isinstance(entry, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise UserError(
            f"{where('submission')}: a submission has a `format` and `files`, such as "
            "`RTE.tsv: {member: rte, split: test}`."
        )
    own = {key: value for key, value in entry.items() if key != "files"}
    values = _typed(where, "a submission", {"format": Format}, own, "submission")
    if "format" not in values:
        raise UserError(f"{where('submission')}: a submission needs a `format`.")
    files = []
    for name, own in listed.items():
        at = where("submission", "files", name)
        keys = {key: hint for key, hint in get_type_hints(SubmissionFile).items() if key != "name"}
        given = _typed(where, "a file", keys, own, "submission", "files", name)
        if given.get("member") not in members or "split" not in given:
            raise UserError(
                f"{at}: {name} needs a `member` (one of {abbreviated(members, 20)}) and a `split`."
            )
        try:
            files.append(SubmissionFile(name=name, **given))
        except UserError as error:
            raise UserError(f"{at}: {error}") from error
    return values["format"], tuple(files)


def suite_lines(path: Path) -> Iterator[str]:
    """Yield lines on a suite for a list of recipes."""
    suite = load_suite(path)
    models = f"; models {', '.join(suite.models)}" if suite.models else ""
    yield f"suite: {suite.title}" + (f": {suite.description}" if suite.description else "")
    yield f"{quantity(len(suite.members), 'member')}: {abbreviated(suite.members, 30)}{models}"
