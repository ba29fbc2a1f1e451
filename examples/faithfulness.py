"""Measure how faithful the scores of `--explain` are, against random words.

Faithfulness (DeYoung et al., 2020, "ERASER"): the words of the highest scores, a fraction of all,
are taken away, and are kept alone. Faithful scores have a high comprehensiveness, by how much the
probability of the label falls without them, and a low sufficiency, by how much it falls with them
alone. Both are means over texts and fractions.

python examples/faithfulness.py RUN DATA          # a run of `classify` or `nli`, and texts
python examples/faithfulness.py                   # MODEL, STEPS and OUT in the environment override
"""

import itertools
import math
import os
import sys
from collections.abc import Sequence

import numpy as np

import finetune
from finetune.inference.explanation import label_scores, without, words_of

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)


def faithfulness(
    model: finetune.Predictor, inputs: Sequence, fractions: Sequence[float] = FRACTIONS
) -> dict[str, tuple[float, float]]:
    """Return comprehensiveness and sufficiency of leaving out, and of random words."""
    random = np.random.default_rng(0)
    examples = [each for each in model.examples(inputs) if words_of(each).words]
    explained = model.explain(examples)
    found = {}
    for method in ("leave-out", "random"):
        falls = []
        for number, example in enumerate(examples):
            (why,) = explained[number]
            scores = random.random(len(why.scores)) if method == "random" else np.array(why.scores)
            order = np.argsort(-scores, kind="stable").tolist()
            cuts = [max(1, math.ceil(share * len(order) - 1e-9)) for share in fractions]
            left_out = [order[:cut] for cut in cuts] + [order[cut:] for cut in cuts]
            changed = [example, *(without(model.task, example, {*each}) for each in left_out)]
            scores = label_scores(
                model.task, model.model, changed, [why.label], model.accelerator.device
            )
            whole, *others = np.exp(scores[:, 0])
            falls.append((whole - np.array(others)).reshape(2, -1).mean(1))
        found[method] = tuple(np.mean(falls, axis=0).tolist())
    return found


def main() -> None:
    """Print the faithfulness on the first 300 texts of a file."""
    run, data = sys.argv[1:] or (os.environ.get("OUT", "runs/example-faithfulness"), "")
    if not data:
        finetune.train(
            "classify",
            data="examples/data/sentiment",
            model=os.environ.get("MODEL", "minilm"),
            steps=int(os.environ.get("STEPS", "0")) or None,
            out=run,
        )
        data = "examples/data/sentiment/validation.jsonl"
    model = finetune.load(run)
    texts = list(itertools.islice(model.task.state.read(data), 300))
    for method, (comprehensiveness, sufficiency) in faithfulness(model, texts).items():
        print(f"{method} comprehensiveness {comprehensiveness:.3f} sufficiency {sufficiency:.3f}")


if __name__ == "__main__":
    main()
