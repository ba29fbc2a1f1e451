"""Train on data in memory, here parts of speech.

python examples/own_data.py
"""

import os

from finetune import Dataset, TagConfig, TokenExample, fit, load, load_task

GRAMMAR = {
    "DET": ["the", "a", "every"],
    "ADJ": ["red", "old", "quiet"],
    "NOUN": ["dog", "teacher", "river"],
    "VERB": ["sleeps", "sings", "waits"],
}


def sentence(number: int) -> TokenExample:
    """``id`` is the index of the example in its split; messages use ``where``."""
    tags = ("DET", "ADJ", "NOUN", "VERB") if number % 2 else ("DET", "NOUN", "VERB")
    words = tuple(GRAMMAR[tag][(number // 2 + index) % 3] for index, tag in enumerate(tags))
    return TokenExample(id=number, words=words, tags=tags, where=f"sentence {number}")


# Without a validation split, a tenth of the examples is held out; the notes of the data say so.
data = Dataset("toy-pos", {"train": [sentence(number) for number in range(120)]})
config = TagConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="toy-pos",
    steps=int(os.environ.get("STEPS", "40")),
    out=os.environ.get("OUT", "runs/example-own-data"),
)
task, data = load_task(config, "tag", data)
print(*data.notes, sep="\n")
result = fit(task, data, config)
print("validation accuracy:", result.metrics["validation"]["accuracy"])

# Every input word gets exactly one tag, even one that the tokenizer drops.
(prediction,) = load(result.folder).predict([["every", "quiet", "teacher", "sings", "\u200b"]])
print(*zip(prediction.words, prediction.tags, strict=True))
