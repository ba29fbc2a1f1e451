"""The folder of a run: what is written into it, by the main process, whole or not at all."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from finetune.config.tasks import TrainConfig, settings
from finetune.runtime.launch import on_main_process
from finetune.tasks import Task
from finetune.training import checkpoint
from finetune.types import Prediction


class RunFolder:
    """``best/`` and ``last/``, predictions, metrics and configuration of one run.

    The main process writes while the others wait; that it could not is raised on all of them.
    """

    def __init__(self, path: Path, accelerator: Any) -> None:
        self.path, self.accelerator = path, accelerator
        self.best, self.last = path / "best", path / "last"
        if accelerator.is_main_process:
            checkpoint.recover(self.best)
            checkpoint.recover(self.last)
        accelerator.wait_for_everyone()

    @property
    def is_empty(self) -> bool:
        """Whether no model was saved here yet."""
        return not (self.best.exists() or self.last.exists())

    def write_start(self, task: Task, config: TrainConfig, facts: Mapping[str, Any]) -> None:
        """The resolved configuration, before anything can go wrong."""

        def write() -> None:
            self._make()
            content = {"task": task.name, **settings(config), **facts}
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            checkpoint.write_text(self.path / "config.json", text)

        on_main_process(write)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise checkpoint.SaveError(
                f"{self.path}: cannot be made ({error.strerror}). Choose another --out."
            ) from error

    def save_best(self, task: Task, head: Any) -> None:
        """Model, tokenizer and task file."""

        def write() -> None:
            with checkpoint.replacing(self.best) as fresh:
                head.save_pretrained(fresh)
                task.save(fresh)

        on_main_process(write)

    def save_last(
        self, task: Task, head: Any, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """The checkpoint to continue from; every process adds its random state."""
        parts = self.path / "random.new"
        parts.mkdir(parents=True, exist_ok=True)
        checkpoint.save_random(parts, self.accelerator.process_index)
        self.accelerator.wait_for_everyone()

        def write() -> None:
            try:
                with checkpoint.replacing(self.last) as fresh:
                    head.save_pretrained(fresh)
                    task.save(fresh)
                    checkpoint.save_training(fresh, optimizer, state)
                    for part in parts.iterdir():
                        part.rename(fresh / part.name)
            finally:
                shutil.rmtree(parts, ignore_errors=True)

        on_main_process(write)

    def write_predictions(self, split: str, predicted: Sequence[Prediction]) -> None:
        """``predictions.<split>.jsonl``, one line for each example in the data's order."""
        lines = (json.dumps(p.record(), ensure_ascii=False) + "\n" for p in predicted)
        on_main_process(lambda: checkpoint.write_text(self._predictions(split), "".join(lines)))

    def compare_predictions(
        self,
        split: str,
        predicted: Sequence[Prediction],
        fitted: Sequence[Prediction] | None = None,
    ) -> None:
        """The saved model must answer as the trained one did when it was saved.

        ``fitted`` is what it answers after calibration: a finished run that is resumed finds
        those in its folder. A near tie may be decided otherwise, on other hardware for instance: of
        50 answers on, one may differ, of 2,000 on, one in a thousand. Raises RuntimeError where
        more do.
        """
        if not self.accelerator.is_main_process:
            return
        with self._predictions(split).open(encoding="utf-8") as lines:
            before = [json.loads(line) for line in lines]
        differing = _differing(before, predicted)
        if fitted is not None:
            differing = min(differing, _differing(before, fitted), key=len)
        if len(differing) > max(len(before) // 1000, len(before) >= 50):
            raise RuntimeError(
                f"{self.best}: the saved model answers {len(differing)} of {len(before)} {split} "
                f"examples otherwise than when it was saved (first: id {differing[0]})"
            )

    def write_metrics(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """``metrics.json``: metrics by split."""
        text = json.dumps(metrics, indent=2) + "\n"
        on_main_process(lambda: checkpoint.write_text(self.path / "metrics.json", text))

    def _predictions(self, split: str) -> Path:
        return self.path / f"predictions.{split}.jsonl"


def _differing(before: list[dict[str, Any]], predicted: Sequence[Prediction]) -> list[int]:
    """Ids of the examples that are now answered otherwise."""
    after = (json.loads(json.dumps(prediction.record())) for prediction in predicted)
    pairs = zip(before, after, strict=True)
    return [old["id"] for old, new in pairs if not _same_answer(old, new)]


def _same_answer(old: dict[str, Any], new: dict[str, Any]) -> bool:
    if isinstance(old.get("label"), float):
        return math.isclose(old["label"], new["label"], rel_tol=1e-2, abs_tol=1e-2)
    same = all(old.get(key) == new.get(key) for key in ("id", "label", "tags"))
    return same and _extents(old) == _extents(new)


def _extents(record: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [(span["start"], span["end"], span["label"]) for span in record.get("spans") or ()]
