"""Check the guarantees of `finetune thresholds` by simulation.

The predictions of a run are taken for the whole world. Each draw chooses a threshold or a rule of
prediction sets on a sample of them, and its risk or coverage is measured on all: the risk may
exceed its bound in 5 % of the draws, and the mean coverage of sets must be near the level.

    python examples/guarantees.py runs/trec6/predictions.test.jsonl --risk 0.05 --sets 0.9
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from finetune import UserError
from finetune.evaluation.decisions.abstaining import answers_of, at_confidence, at_risk
from finetune.evaluation.decisions.sets import fit_sets, table_of_sets
from finetune.evaluation.predictions import align_runs
from finetune.evaluation.tables import Tables


def sample(scored: Tables, rng: np.random.Generator, number: int) -> Tables:
    """Return examples drawn with replacement."""
    rows = rng.integers(len(scored), size=number)
    gold, predicted, examples, predictions = (
        [values[row] for row in rows]
        for values in (scored.gold, scored.predicted, scored.examples, scored.predictions)
    )
    return scored.type.of_values(gold, predicted, examples=examples, predictions=predictions)


def main() -> None:
    """Print the share of draws that break each guarantee."""
    parser = argparse.ArgumentParser()
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument("--sets", type=float, help="level of prediction sets")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--number", type=int, default=1000, help="examples of each draw")
    given = parser.parse_args()
    scored = align_runs([given.predictions])[0]
    world, rng = answers_of(scored), np.random.default_rng(0)
    broken, coverages, unsafe = 0, [], 0
    for _ in range(given.draws):
        try:
            drawn = answers_of(sample(scored, rng, given.number))
            chosen = at_risk(drawn, given.risk)
        except UserError:
            unsafe += 1  # no threshold is safe, so no answer is given
            continue
        answered = at_confidence(world, chosen.confidence)
        broken += answered.risk > given.risk
        coverages.append(answered.coverage)
    low, high = binomtest(broken, given.draws).proportion_ci()
    print(f"risk of all answers {at_confidence(world, 0.0).risk:.4f}")
    print(
        f"risk above {given.risk:g} in {broken / given.draws:.3f} of draws "
        f"({low:.3f} to {high:.3f}), mean coverage {np.mean(coverages or [0]):.3f}, "
        f"without a threshold {unsafe}"
    )
    if given.sets:
        rows = []
        for _ in range(given.draws):
            rule = fit_sets(sample(scored, rng, given.number), given.sets)
            row, *_ = table_of_sets(scored, rule)
            rows.append((row["coverage"], row["size"]))
        coverage, size = np.mean(rows, axis=0)
        print(f"sets: coverage {coverage:.4f}, size {size:.3f}")


if __name__ == "__main__":
    main()
