"""Time from the start to the first step with `datasets`, as the scripts of transformers begin.

`python -m benchmarks.datasets_peer TASK MODEL FILE` loads the file, tokenizes it with `map` on
all processors, and computes the gradients of one batch of 32, for classify, nli, tag or pretrain.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

import datasets
import transformers

LENGTHS = {"truncation": True, "max_length": 256}


def _encode_texts(batch: Any, tokenizer: Any, ids: dict[str, int]) -> Any:
    columns = [batch[name] for name in ("text", "text_pair") if name in batch]
    labels = [ids[label] for label in batch["label"]]
    return {**tokenizer(*columns, **LENGTHS), "labels": labels}


def _encode_words(batch: Any, tokenizer: Any, ids: dict[str, int]) -> Any:
    """As `run_ner.py`: the first subword of a word has its tag."""
    encoded = tokenizer(batch["tokens"], is_split_into_words=True, **LENGTHS)
    encoded["labels"] = []
    for number, tags in enumerate(batch["tags"]):
        before, labels = None, []
        for word in encoded.word_ids(batch_index=number):
            labels.append(-100 if word in (None, before) else ids[tags[word]])
            before = word
        encoded["labels"].append(labels)
    return encoded


def _encode_lines(batch: Any, tokenizer: Any) -> Any:
    """As `run_mlm.py --line_by_line`."""
    lines = [line for line in batch["text"] if line and not line.isspace()]
    return tokenizer(lines, **LENGTHS, return_special_tokens_mask=True)


TASKS = {
    "classify": ("AutoModelForSequenceClassification", "DataCollatorWithPadding", _encode_texts),
    "nli": ("AutoModelForSequenceClassification", "DataCollatorWithPadding", _encode_texts),
    "tag": ("AutoModelForTokenClassification", "DataCollatorForTokenClassification", _encode_words),
    "pretrain": ("AutoModelForMaskedLM", "DataCollatorForLanguageModeling", _encode_lines),
}
"""By task: the class of the model, the class that collates, and the function to map."""


def _main(task: str, model: str, file: str) -> None:
    begin = time.monotonic()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    head, collator, encode = TASKS[task]
    builder = "text" if task == "pretrain" else "json"
    rows = datasets.load_dataset(builder, data_files=file, split="train")
    print(f"loaded {time.monotonic() - begin:.1f} s", flush=True)
    arguments: dict[str, Any] = {"tokenizer": tokenizer}
    sizes = {}
    if task != "pretrain":
        golds = itertools.chain(*rows[:1000]["tags"]) if task == "tag" else rows.unique("label")
        arguments["ids"] = {name: number for number, name in enumerate(sorted(set(golds)))}
        sizes["num_labels"] = len(arguments["ids"])
    rows = rows.map(
        encode,
        batched=True,
        num_proc=len(os.sched_getaffinity(0)),
        fn_kwargs=arguments,
        remove_columns=rows.column_names,
    )
    print(f"tokenized {time.monotonic() - begin:.1f} s", flush=True)
    network = getattr(transformers, head).from_pretrained(model, **sizes)
    collate = getattr(transformers, collator)(tokenizer)
    batch = collate([dict(row) for row in rows.shuffle(seed=1).select(range(32))])
    network(**batch).loss.backward()
    print(f"first step {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    _main(*sys.argv[1:])
