"""A new vocabulary for a trained encoder, fitted to one's own text.

python examples/vocabulary.py
"""

import os
from pathlib import Path

from finetune.data.running_text import text_sources
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.vocabulary import train_tokenizer
from finetune.pretraining.vocabulary_transfer import embedding_weights, with_vocabulary

model = os.environ.get("MODEL", "minilm")
folder = Path(os.environ.get("OUT", "runs/example-vocabulary"))
(source,) = text_sources("examples/data/ner/train.conll")

# The new tokenizer treats text as the old one does, and has its special tokens.
old = SubwordTokenizer.from_pretrained(model)
tokenizer = train_tokenizer(source.lines, 1000, like=old.tokenizer)
new = SubwordTokenizer(tokenizer)

# Shared subwords keep their embeddings; the others get means of similar ones.
weights = embedding_weights(old, new, "similarity", source.lines())
averaged = (weights.max(axis=1).toarray() < 1).sum()
print(f"{weights.shape[0] - averaged} embeddings copied, {averaged} averaged or drawn")
with_vocabulary(model, old, new, weights).save_pretrained(folder)
tokenizer.save_pretrained(folder)
print("any command takes it: --model", folder)
