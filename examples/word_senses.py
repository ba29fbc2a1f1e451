"""Find the senses of words by the nearest sense vector, with an inventory in WordNet's format.

python examples/word_senses.py
"""

import os
from pathlib import Path

from finetune.embeddings.disambiguation import sense_scores
from finetune.embeddings.sense_data import read_senses
from finetune.embeddings.senses import SenseSettings, WordSenses, first_senses

data = read_senses("examples/data/senses")
settings = SenseSettings(
    model=os.environ.get("MODEL", "minilm"), inventory="examples/data/senses/wordnet"
)
senses = WordSenses.fit(settings, data.splits["train"], data.splits["validation"])
targets, predictions = senses.predict(data.splits["test"])
for target, prediction in zip(targets, predictions, strict=True):
    print(f"{target.lemma:10} {prediction.sense:20} gold {', '.join(target.senses)}")
baseline = first_senses(senses.model, targets)
print(
    f"F1 {sense_scores(targets, predictions)['f1']:.3f}, "
    f"first sense {sense_scores(targets, baseline)['f1']:.3f}"
)

out = Path(os.environ.get("OUT", "runs/word-senses"))
out.mkdir(parents=True, exist_ok=True)
senses.save(out)
