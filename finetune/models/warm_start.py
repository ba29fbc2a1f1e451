"""Start from another training (``--init-from``): its encoder, and its head where that fits.

First an intermediate task with much data, then the one with little: Phang et al. (2018), "Sentence
encoders on STILTs". What was trained can be any model of ours, those with a class of their own
too, or any encoder of the hub. A checkpoint in plain form is written for the new labels, and a
fresh model begins with it as with any other.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModel

from finetune.config.tasks import TrainConfig
from finetune.models.heads.crf_tagger import CrfTagger
from finetune.models.heads.pretrained import PROBLEM_TYPES, PretrainedHead, select_classes
from finetune.models.heads.sequence_classification import SequenceClassifier
from finetune.models.heads.span_ner import SpanNer
from finetune.models.heads.token_classification import TokenTagger
from finetune.models.loading import load_config, load_weights, quiet
from finetune.types import UserError

_INNER = {"crf-tagger": "tagger", "span-ner": "encoder"}
"""Model types of our own, and where their configuration holds that of the model inside."""
_SAME = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
"""What two configurations of one architecture agree in."""


@dataclass(frozen=True)
class Initial:
    """A trained model to begin with.

    ``source`` is its folder or hub id, ``config`` the Hugging Face configuration of its encoder,
    ``labels`` are the new ones. ``rows`` are the classes of the old head that the new labels were;
    None where the head will be fresh.
    """

    name: str
    source: str
    config: Any
    own_type: str | None
    labels: tuple[str, ...]
    rows: tuple[int, ...] | None
    head_class: type[PretrainedHead] | None
    where: dict[str, Any]

    @property
    def note(self) -> str:
        """What is taken, in a line."""
        commit = getattr(self.config, "_commit_hash", None)
        named = f"{self.name}{f' (commit {commit})' if commit else ''}"
        if self.rows is None:
            return f"encoder from {named}; head fresh"
        return f"encoder and head from {named}; classes by name: {', '.join(self.labels)}"

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[str]:
        """A folder, while the block runs, with the encoder alone, or with a head for the labels."""
        with tempfile.TemporaryDirectory(prefix="finetune-", ignore_cleanup_errors=True) as folder:
            self._write(folder)
            yield folder

    def _write(self, folder: str) -> None:
        if self.rows is not None:
            head = self._old_head()
            select_classes(head.model, self.rows, self.labels)
            head.save_pretrained(folder)
        elif self.own_type is None:
            model = load_weights(AutoModel, self.source, self.config, **self.where)
            with quiet():
                model.save_pretrained(folder)
        else:
            own = SpanNer if self.own_type == "span-ner" else CrfTagger
            encoder = own.from_pretrained(self.source).encoder
            with quiet():
                encoder.model.save_pretrained(folder)

    def _old_head(self) -> Any:
        if self.own_type == "crf-tagger":
            return CrfTagger.from_pretrained(self.source).tagger
        assert self.head_class is not None
        return self.head_class.from_pretrained(self.source, labels=None, **self.where)


def find_initial(
    config: TrainConfig, task: str, labels: Sequence[str], problem: str | None
) -> Initial:
    """What ``config.init_from`` names and what of it is taken, from its configuration alone.

    Raises ValueError where there is no model under that name, and where --model asks for another
    architecture.
    """
    source, own_type, inner, where = _found(config)
    if config.model is not None:
        _check_model(config, inner, Path(source))
    head_class = _HEADS.get(task)
    old = _old_labels(inner, own_type, head_class, problem)
    rows = _rows(old, labels)
    name = str(config.init_from)
    return Initial(name, source, inner, own_type, tuple(labels), rows, head_class, where)


def _found(config: TrainConfig) -> tuple[str, str | None, Any, dict[str, Any]]:
    """The folder or hub id to begin with, its model type if that is ours, the configuration of its
    encoder, and how it is loaded."""
    name = str(config.init_from)
    source = _model_in(name)
    content = _content(Path(source))
    own_type = content["model_type"] if content.get("model_type") in _INNER else None
    where = {
        "revision": None if Path(source).is_dir() else config.revision,
        "trust_remote_code": config.trust_remote_code,
    }
    if own_type:
        return source, own_type, AutoConfig.for_model(**content[_INNER[own_type]]), where
    try:
        return source, None, load_config(source, **where), where
    except ValueError as error:
        raise UserError(f"--init-from {name}: {error}") from error


_HEADS: dict[str, type[PretrainedHead]] = {
    "classify": SequenceClassifier,
    "nli": SequenceClassifier,
    "tag": TokenTagger,
}
"""The tasks whose heads can be taken over, label by label."""


def _model_in(name: str) -> str:
    """The folder that holds the model: the one named or its ``best``; else the name itself."""
    folder = Path(name)
    if not folder.exists():
        if name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1:
            raise UserError(
                f"--init-from {name}: no such folder: train that model first, or name another run "
                "folder, saved model or hub id."
            )
        return name
    for candidate in (folder / "best", folder):
        if "model_type" in _content(candidate):
            return str(candidate)
    inside = sorted(path.parent for path in folder.glob("*/best"))
    hint = f" It holds several runs: name one, such as {inside[0]}." if inside else ""
    raise UserError(
        f"--init-from {name}: there is no model in it or in its best/: name a run folder with a "
        f"finished evaluation, a saved model or a hub id.{hint}"
    )


def _content(folder: Path) -> dict[str, Any]:
    """The configuration file of a folder; empty where there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _check_model(config: TrainConfig, inner: Any, source: Path) -> None:
    """Refuse a --model of another architecture than the model to begin with."""
    origin: Any = None
    with contextlib.suppress(OSError, ValueError, KeyError):
        origin = json.loads((source / "finetune.json").read_text("utf-8"))["config"]["model"]
    if config.model in (origin, config.init_from):
        return
    asked = load_config(
        config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
    )
    for name in _SAME:
        one, other = getattr(asked, name, None), getattr(inner, name, None)
        if one != other:
            raise UserError(
                f"--model {config.model} has {name} {one}, but --init-from {config.init_from} has "
                f"{other}: leave --model out."
            )


def _old_labels(
    inner: Any, own_type: str | None, head_class: Any, problem: str | None
) -> list[str] | None:
    """The labels of the old head where it is of the kind that is wanted, else None."""
    if head_class is None:
        return None
    names = [inner.id2label[index] for index in range(len(inner.id2label))]
    if head_class is TokenTagger:
        tags = any(n.endswith("ForTokenClassification") for n in inner.architectures or ())
        return names if tags or own_type == "crf-tagger" else None
    if not any(n.endswith("ForSequenceClassification") for n in inner.architectures or ()):
        return None
    before = inner.problem_type or PROBLEM_TYPES["regression" if len(names) == 1 else "single"]
    return names if before == PROBLEM_TYPES[problem or "single"] else None


def _rows(old: Sequence[str] | None, new: Sequence[str]) -> tuple[int, ...] | None:
    """The old class of each new label; None unless all of them are among the old ones."""
    lowered = [name.lower() for name in old or ()]
    wanted = [name.lower() for name in new]
    if len(set(lowered)) < len(lowered) or not set(wanted) <= set(lowered):
        return None
    return tuple(lowered.index(name) for name in wanted)
