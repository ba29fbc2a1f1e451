"""Masked language modeling: this toolkit against the behavior of transformers' run_mlm example.

The example encodes each line with special tokens, joins all of them and cuts the result into rows
of equal length (``run-mlm``), or pads each line to the longest of its batch (``run-mlm-lines``). It
masks with its collator, and computes the logits of all positions. This toolkit packs whole lines,
and computes logits of chosen positions. Both read the same
documents, with the same batch size and longest sequence; only tokens of the text count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

from finetune.benchmark.measure import Arm, Case, Work
from finetune.benchmark.subject import Size, longest
from finetune.benchmark.synthetic_texts import LIKE, Words
from finetune.benchmark.training import seconds_of_steps
from finetune.benchmark.transformers_trainer import TrainerRun
from finetune.data import Dataset
from finetune.data.examples import Examples
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.loading import load_config, load_weights
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.settings import PretrainConfig
from finetune.runtime.device import resolve_precision
from finetune.runtime.launch import make_accelerator
from finetune.tasks import load_task
from finetune.training.optimizer import make_optimizer
from finetune.training.step import begin_step
from finetune.types import TextExample

LINE = replace(LIKE["classify"], name="prose", mean=25, deviation=12, vocabulary=0.6)
"""Lengths of lines in subwords, as of sentences of prose."""
NUM_LINES = 8
"""Lines of a document."""


def case_of(model: str, size: Size) -> Case:
    """Return the arms of masked language modeling."""
    accelerator = make_accelerator()
    device = accelerator.device
    length = longest(model)
    config = PretrainConfig(
        model=model, data="random text", max_length=length, validation="none", lr=1e-4
    )
    tokenizer = SubwordTokenizer.from_pretrained(model)
    number = size.num_batches * size.batch_size
    documents = _documents(tokenizer, int(2 * number * length / (LINE.mean * NUM_LINES)) + 1)
    data = Dataset("random text", {"train": Examples(documents)}, fingerprint_of=lambda: "random")
    task, packed = load_task(config, "pretrain", data)
    blocks = packed.splits["train"][:number]
    encoded = task.encode(blocks)
    batches = [list(range(i, i + size.batch_size)) for i in range(0, number, size.batch_size)]
    best = resolve_precision(config, device)

    def ours(name: str, precision: str) -> Arm:
        torch.manual_seed(0)
        head = MaskedLanguageModel(task.head().model).to(device)
        step = begin_step(task, head, make_optimizer(head, config), config, accelerator, precision)

        work = Work(number, int(encoded.lengths.sum()) - number * tokenizer.single.num_special)
        return _arm(name, precision, work, partial(seconds_of_steps, step, head, encoded))

    subwords = tokenizer.text_subwords(
        [line for document in documents for line in document.text.split("\n")]
    )
    lines = [tokenizer.build(line)[0] for line in subwords]
    joined = list(chain.from_iterable(lines))
    rows = [joined[start : start + length] for start in range(0, len(joined) - length, length)]
    model_of_hub = load_weights(AutoModelForMaskedLM, model, load_config(model)).to(device)
    collator = DataCollatorForLanguageModeling(tokenizer.tokenizer)

    def theirs(name: str, rows: Sequence[Sequence[int]], precision: str) -> Arm:
        used = [{"input_ids": list(row)} for row in rows[:number]]
        run = TrainerRun(model_of_hub, used, collator, device, config.lr or 0.0)
        special = {*tokenizer.single.prefix, *tokenizer.single.suffix}
        real = sum(id not in special for row in rows[:number] for id in row)
        bf16 = precision == "bf16"
        return _arm(name, precision, Work(number, real), lambda own: run.seconds(own, bf16=bf16))

    def _arm(
        name: str, precision: str, work: Work, seconds: Callable[[Sequence[Sequence[int]]], float]
    ) -> Arm:
        return Arm(name, precision, work, lambda: seconds(batches), lambda: seconds(batches[:1]))

    arms = [
        ours("finetune", best),
        *([ours("finetune-fp32", "fp32")] if best != "fp32" else []),
        *([theirs("run-mlm", rows, best)] if best != "fp32" else []),
        theirs("run-mlm-fp32", rows, "fp32"),
        theirs("run-mlm-lines-fp32", lines, "fp32"),
    ]
    name = f"{number} sequences of up to {length} tokens, batches of {size.batch_size}"
    return Case("pretrain", name, tuple(arms))


def _documents(tokenizer: SubwordTokenizer, number: int) -> list[TextExample]:
    """Draw documents of lines."""
    words = Words(tokenizer, LINE.vocabulary, random.Random(0))
    return [
        TextExample(
            index,
            "\n".join(" ".join(words.draw(LINE.draw(words.random))) for _ in range(NUM_LINES)),
        )
        for index in range(number)
    ]
