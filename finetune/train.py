"""Training and prediction for any task. The only module that knows accelerate.

The loss is a sum and a count, gradients are summed over micro-batches and processes and divided
by the whole count once, and the order of the data is a pure function of seed and epoch. So
neither ``max_tokens`` nor packing nor the number of processes changes what is computed, and a run
continued from a checkpoint is the run that was never interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from finetune import checkpoint
from finetune.batching import micro_batches, pack, share
from finetune.config import TrainConfig, settings
from finetune.interruption import Interruption, Stopped
from finetune.optimization import (
    Plan,
    autocast,
    make_optimizer,
    precision_of,
    result_settings,
    set_rate,
)
from finetune.launch import make_accelerator
from finetune.prediction import full_precision, predict
from finetune.progress import Reporter
from finetune.run_log import RunLog
from finetune.tasks import Task
from finetune.types import Encoding, Example, Prediction

LOG_POINTS = 200
"""About how many training-loss lines a run logs."""


@dataclass
class FitResult:
    """What a run came to: its folder, the metrics by split, and how it went."""

    folder: Path
    metrics: dict[str, dict[str, float]]
    best_step: int
    num_steps: int
    notes: list[str] = field(default_factory=list)
    stopped_early: bool = False


@dataclass
class State:
    """What must be remembered between steps, beyond weights, optimizer and random state."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    bad_evaluations: int = 0
    finished: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    num_processes: int = 1


def fit(
    task: Task,
    config: TrainConfig,
    accelerator: Accelerator | None = None,
    reporter: Reporter | None = None,
    head: Any = None,
) -> FitResult:
    """Train a task's model, keep the best on validation, score the test split once with it.

    ``config.out`` names the run folder. Raises ValueError for what a user can mend (a loss that
    is no number, a full disk, settings that differ from those of the run to resume), and Stopped
    after Ctrl-C or SIGTERM once the checkpoint is written.
    """
    if config.out is None:
        raise ValueError("--out must name the run folder.")
    accelerator = accelerator or make_accelerator(config)
    reporter = reporter or Reporter(quiet=not accelerator.is_main_process)
    return _Run(task, config, accelerator, reporter, head).run()


class _Run:
    """One training run, from data to metrics."""

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        accelerator: Accelerator,
        reporter: Reporter,
        head: Any,
    ) -> None:
        self.task, self.config, self.accelerator, self.reporter = (
            task,
            config,
            accelerator,
            reporter,
        )
        self.folder = Path(config.out or "")
        self.device = accelerator.device
        self.precision = precision_of(config, self.device)
        self.rank, self.world = accelerator.process_index, accelerator.num_processes
        self.train = task.read("train")
        self.plan = Plan.of(config, len(self.train))
        self.state = State(
            settings=result_settings(config), fingerprint=task.fingerprint, num_processes=self.world
        )
        self.encoded = self._encode("train", self.train)
        self.lengths = [sum(len(e.input_ids) for e in windows) for windows in self.encoded]
        self.validation = selection_split(task.splits)
        self.validation_data: tuple[Any, Any] = (None, None)
        if self.validation:
            examples = task.read(self.validation)
            self.validation_data = examples, self._encode(self.validation, examples)
        self._prepare(head)

    def _encode(self, split: str, examples: Sequence[Example]) -> list[list[Encoding]]:
        encoded = self.task.encode(examples)
        windows = sum(len(parts) > 1 for parts in encoded)
        if windows:
            self.task.notes.append(f"{windows:,} examples of {split} are read in several windows")
        if cut := self.task.num_cut:
            self.task.notes.append(f"{cut:,} texts or words of {split} are cut to fit --max-length")
            self.task.num_cut = 0
        return encoded

    def _prepare(self, head: Any) -> None:
        """Model, optimizer, and the state of the run: fresh, or that of the last checkpoint."""
        last = self.folder / "last"
        if self.accelerator.is_main_process:
            checkpoint.recover(last)
            checkpoint.recover(self.folder / "best")
        self.accelerator.wait_for_everyone()
        resuming = self.config.resume and last.is_dir()
        set_seed(self.config.seed)
        if resuming:
            self._check_same(json.loads((last / checkpoint.STATE).read_text(encoding="utf-8")))
        self.head = self.task.head(last) if resuming else head or self.task.head()
        self.head.encoder.freeze(self.config.freeze)
        self.head.to(self.device)
        self.optimizer = make_optimizer(self.head, self.config)
        if resuming:
            self.state = State(**checkpoint.load_training(last, self.optimizer))
            checkpoint.load_random(last, self.rank)
            self.reporter.say(f"continuing from step {self.state.step} of {self.plan.num_steps}")
        else:
            torch.manual_seed(self.config.seed * 1_000_003 + self.rank)  # dropout

    def _check_same(self, saved: dict[str, Any]) -> None:
        """A run may only be continued with what it was started with."""
        now = json.loads(json.dumps(dataclasses.asdict(self.state)))
        differing = [
            name for name, value in now["settings"].items() if saved["settings"].get(name) != value
        ]
        if differing:
            name = differing[0]
            raise ValueError(
                f"{self.folder}: started with {name} = {saved['settings'].get(name)!r}, now "
                f"{now['settings'][name]!r}: continue with the same settings, or start anew with "
                "another --out."
            )
        for name, what in (("fingerprint", "other data"), ("num_processes", "other processes")):
            if saved[name] != now[name]:
                raise ValueError(
                    f"{self.folder}: was started with {what} ({name} "
                    f"{saved[name]!r}, now {now[name]!r}): start anew with --out."
                )

    def run(self) -> FitResult:
        """Train to the end, then score the best model."""
        self._write_start()
        if not self.state.finished:
            with Interruption(self.accelerator) as interruption:
                self._train(interruption)
        result = self._finish()
        self.accelerator.wait_for_everyone()
        return result

    def _train(self, interruption: Interruption) -> None:
        state, plan = self.state, self.plan
        log = RunLog(self.folder / "log.jsonl", self.accelerator, state.step)
        every = max(1, plan.num_steps // LOG_POINTS)
        self.reporter.start("training", plan.num_steps, state.step)
        with self.reporter:
            while state.step < plan.num_steps and not state.finished:
                log.add(*self._step(plan.batch(state.step)))
                state.step += 1
                at_end = state.step == plan.num_steps
                stop = interruption.asked()
                evaluating = state.step % plan.eval_every == 0 or at_end
                saving = state.step % plan.save_every == 0 or at_end or stop
                if state.step % every == 0 or evaluating or saving:
                    line = log.flush(state.step, plan.num_steps, self.optimizer)
                    self.reporter.update(state.step, line)
                if evaluating:
                    self._evaluate(log)
                state.finished |= at_end
                if saving or state.finished:
                    self._save_last()
                if stop and not state.finished:
                    raise Stopped(
                        f"stopped at step {state.step} of {plan.num_steps}; the "
                        f"checkpoint is in {self.folder / 'last'}"
                    )

    def _step(self, examples: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """One optimizer step: (loss sum, count, gradient norm, examples)."""
        mine = share(examples, self.rank, self.world, self.lengths)
        weight = 1.0 if mine else 0.0  # a process without a share takes part with no effect
        encodings = [e for index in mine or examples[:1] for e in self.encoded[index]]
        self.head.train()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        for group in micro_batches(encodings, self.config.max_tokens):
            batch = pack(group, self.task.collate(group)).to(self.device)
            with autocast(self.precision, self.device):
                logits = self.head(batch)
            loss, count = self.task.loss(full_precision(logits), batch)
            (loss * weight).backward()
            totals += torch.stack([loss.detach().double(), count.double()]) * weight
        totals = self.accelerator.reduce(totals, "sum")
        norm = self._reduce_gradients(totals[1])
        set_rate(self.optimizer, self.plan.rate(self.state.step))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return totals[0], totals[1], norm, len(examples)

    def _reduce_gradients(self, count: torch.Tensor) -> torch.Tensor:
        """Sum gradients over processes, divide by the count, clip; returns the norm before."""
        weights = [
            w for g in self.optimizer.param_groups for w in g["params"] if w.grad is not None
        ]
        gradients: list[torch.Tensor] = [w.grad for w in weights if w.grad is not None]
        if self.world > 1:
            flat = torch._utils._flatten_dense_tensors(gradients)
            flat = self.accelerator.reduce(flat, "sum")
            for gradient, summed in zip(
                gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True
            ):
                gradient.copy_(summed)
        torch._foreach_div_(gradients, count.to(gradients[0].dtype).clamp_min(1e-12))
        limit = self.config.clip or math.inf
        return torch.nn.utils.clip_grad_norm_(weights, limit)

    def _evaluate(self, log: RunLog) -> None:
        """Score the validation split; keep the model if it is the best so far."""
        state = self.state
        if self.validation is None:
            state.best_step = state.step
            self._save(self.folder / "best")
            return
        examples, encoded = self.validation_data
        predicted = predict(
            self.task,
            self.head,
            examples,
            self.accelerator,
            encoded=encoded,
            precision=self.precision,
        )
        metrics = self.task.score(examples, predicted)
        score = chosen(metrics, self.task.metric)
        better = state.best_score is None or score > state.best_score
        if better:
            state.best_score, state.best_step, state.bad_evaluations = score, state.step, 0
            self._save(self.folder / "best")
            self._write_predictions(self.validation, predicted)
        else:
            state.bad_evaluations += 1
        log.evaluation(state.step, self.validation, metrics)
        self.reporter.say(
            f"step {state.step}: {self.validation} {self.task.metric} {score:.4f}"
            + (" (best so far)" if better else f" (best {state.best_score:.4f})")
        )
        if self.config.patience and state.bad_evaluations >= self.config.patience:
            state.finished = True
            self.reporter.say(f"no better score in {state.bad_evaluations} evaluations: stopping")

    def _save(self, folder: Path) -> None:
        """Write model, tokenizer and task file, whole or not at all."""
        if self.accelerator.is_main_process:
            with checkpoint.replacing(folder) as fresh:
                self.head.save_pretrained(fresh)
                self.task.save(fresh)
        self.accelerator.wait_for_everyone()

    def _save_last(self) -> None:
        """Write the checkpoint to continue from."""
        place = self.folder / "last"
        parts = self.folder / "random.new"
        parts.mkdir(parents=True, exist_ok=True)
        checkpoint.save_random(parts, self.rank)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            with checkpoint.replacing(place) as fresh:
                self.head.save_pretrained(fresh)
                self.task.save(fresh)
                checkpoint.save_training(fresh, self.optimizer, dataclasses.asdict(self.state))
                for part in parts.iterdir():
                    part.rename(fresh / part.name)
            parts.rmdir()
        self.accelerator.wait_for_everyone()

    def _finish(self) -> FitResult:
        """Load the best model back, prove it is the one that was saved, score it."""
        best = self.task.head(self.folder / "best").to(self.device)
        result = FitResult(
            self.folder,
            {},
            self.state.best_step,
            self.plan.num_steps,
            self.task.notes,
            self.state.step < self.plan.num_steps,
        )
        for split in self.task.splits[1:]:
            examples = self.task.read(split)
            encoded = (
                self.validation_data[1]
                if split == self.validation
                else self._encode(split, examples)
            )
            predicted = predict(
                self.task,
                best,
                examples,
                self.accelerator,
                encoded=encoded,
                precision=self.precision,
                reporter=self.reporter,
                title=split,
            )
            if split == self.validation:
                self._compare(split, predicted)
            pairs = [
                (e, p) for e, p in zip(examples, predicted, strict=True) if self.task.has_gold(e)
            ]
            if pairs:
                gold, answers = zip(*pairs, strict=True)
                result.metrics[split] = self.task.score(gold, answers)
            self._write_predictions(split, predicted)
        if self.accelerator.is_main_process:
            text = json.dumps(result.metrics, indent=2) + "\n"
            checkpoint.write_text(self.folder / "metrics.json", text)
            if self.config.track != "none":
                flat = {f"{s}/{n}": v for s, m in result.metrics.items() for n, v in m.items()}
                self.accelerator.log(flat, step=self.state.step)
        if self.config.track != "none":
            self.accelerator.end_training()
        return result

    def _compare(self, split: str, predicted: Sequence[Prediction]) -> None:
        """The saved model must answer as the trained one did when it was saved."""
        if not self.accelerator.is_main_process:
            return
        lines = (
            (self.folder / f"predictions.{split}.jsonl").read_text(encoding="utf-8").splitlines()
        )
        before = [json.loads(line) for line in lines]
        differing = [
            old["id"]
            for old, new in zip(before, predicted, strict=True)
            if not _same_answer(old, json.loads(json.dumps(new.record())))
        ]
        if len(differing) > len(before) // 1000:
            raise RuntimeError(
                f"{self.folder / 'best'}: the saved model answers {len(differing)} of {len(before)} "
                f"{split} examples otherwise than when it was saved (first: id {differing[0]})"
            )

    def _write_predictions(self, split: str, predicted: Sequence[Prediction]) -> None:
        if self.accelerator.is_main_process:
            lines = (json.dumps(p.record(), ensure_ascii=False) + "\n" for p in predicted)
            checkpoint.write_text(self.folder / f"predictions.{split}.jsonl", "".join(lines))

    def _write_start(self) -> None:
        """The resolved configuration, before anything can go wrong."""
        if self.accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            content = {
                "task": self.task.name,
                **settings(self.config),
                "fingerprint": self.task.fingerprint,
                "precision_used": self.precision,
            }
            checkpoint.write_text(self.folder / "config.json", json.dumps(content, indent=2) + "\n")
            if self.config.track != "none":
                flat = {
                    n: v if isinstance(v, int | float | str | bool) else str(v)
                    for n, v in settings(self.config).items()
                }
                self.accelerator.init_trackers("finetune", config=flat)
        self.accelerator.wait_for_everyone()


def selection_split(splits: Iterable[str]) -> str | None:
    """The split that selects the best model, or None where there is none."""
    names = [name for name in splits if name.startswith("validation")]
    return next(
        (n for n in ("validation", "validation_matched") if n in names), next(iter(names), None)
    )


def chosen(metrics: dict[str, float], name: str) -> float:
    """One metric by name; ValueError that lists those that can select (higher is better)."""
    legal = [metric for metric in metrics if metric not in ("mse", "hamming_loss")]
    if name not in legal:
        raise ValueError(f"--metric {name!r} cannot select a model; legal are {', '.join(legal)}.")
    return metrics[name]


def _same_answer(old: dict[str, Any], new: dict[str, Any]) -> bool:
    if isinstance(old.get("label"), float):
        return math.isclose(old["label"], new["label"], rel_tol=1e-2, abs_tol=1e-2)
    return all(old.get(key) == new.get(key) for key in ("id", "label", "tags"))
