"""Time from the start to the first step with `datasets`, as the scripts of transformers begin.

`python -m tests.drills.datasets_peer classify|nli|tag MODEL FILE` loads the file, tokenizes it with
`map` on all processors, and computes the gradients of one batch of 32.
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


def encode_texts(batch: Any, tokenizer: Any, ids: dict[str, int]) -> Any:
    columns = [batch[name] for name in ("text", "text_pair") if name in batch]
    labels = [ids[label] for label in batch["label"]]
    return {**tokenizer(*columns, **LENGTHS), "labels": labels}


def encode_words(batch: Any, tokenizer: Any, ids: dict[str, int]) -> Any:
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


def main(task: str, model: str, file: str) -> None:
    begin = time.monotonic()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    rows = datasets.load_dataset("json", data_files=file, split="train")
    print(f"loaded {time.monotonic() - begin:.1f} s", flush=True)
    words = task == "tag"
    golds = itertools.chain(*rows[:1000]["tags"]) if words else rows.unique("label")
    ids = {name: number for number, name in enumerate(sorted(set(golds)))}
    rows = rows.map(
        encode_words if words else encode_texts,
        batched=True,
        num_proc=len(os.sched_getaffinity(0)),
        fn_kwargs={"tokenizer": tokenizer, "ids": ids},
        remove_columns=rows.column_names,
    )
    print(f"tokenized {time.monotonic() - begin:.1f} s", flush=True)
    heads, collators = {
        False: ("AutoModelForSequenceClassification", "DataCollatorWithPadding"),
        True: ("AutoModelForTokenClassification", "DataCollatorForTokenClassification"),
    }[words]
    network = getattr(transformers, heads).from_pretrained(model, num_labels=len(ids))
    collate = getattr(transformers, collators)(tokenizer)
    batch = collate([dict(row) for row in rows.shuffle(seed=1).select(range(32))])
    network(**batch).loss.backward()
    print(f"first step {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
