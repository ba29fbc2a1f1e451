"""Document context: each sentence is read with its neighbors in the document.

python examples/context.py
"""

import os

from finetune import TagConfig, fit, load, load_task

config = TagConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/ner",  # -DOCSTART- lines begin documents
    # Both sides are filled with words of the document up to max_length subwords; "64" would take
    # at most 64 subwords on each side. Only the sentence itself is trained on and predicted.
    context="doc",
    max_length=64,
    epochs=5,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-context"),
)
task, data = load_task(config, "tag")
example = data.splits["train"][1]
(window,) = task.encode([example])[0]
text = task.tokenizer.tokenizer.decode(window.input_ids)
print(
    f"{len(example.words)} words are predicted, {len(window.input_ids)} subwords are read: {text}"
)
result = fit(task, data, config)
print(f"test span_f1_conll: {result.metrics['test']['span_f1_conll']:.4f}")

# A saved model remembers its context setting. Sentences of one document are read together.
model = load(result.folder)
sentences = ["Nora Jordan was born in Antwerp.", "Jordan studied law.", "Jordan borders on Iraq."]
alone = model.predict(sentences)
together = model.predict({"text": sentences, "document": ["biography", "biography", "atlas"]})
for sentence, one, other in zip(sentences, alone, together, strict=True):
    print(f"{sentence:35} alone {one.tags[0]} {one.scores[0]:.3f}", end="  ")
    print(f"in its document {other.tags[0]} {other.scores[0]:.3f}")
