"""A callback, and a metric of one's own that selects the model.

python examples/custom_metric.py          # MODEL, STEPS and OUT in the environment override
"""

import os

import finetune


def weighted_errors(gold: list[str], predicted: list[str]) -> float:
    """Return the mean cost, where a missed positive text costs six and another error one."""
    pairs = list(zip(gold, predicted, strict=True))
    return sum((6 if g == "positive" else 1) * (g != p) for g, p in pairs) / len(pairs)


cost = finetune.CustomMetric(weighted_errors, lower_is_better=True)


class Progress(finetune.Callback):
    """Print what happens."""

    def on_evaluation(self, event) -> None:
        """Print each evaluation."""
        print(f"step {event.step}: cost {event.metrics['cost']:.3f}")

    def on_save(self, event) -> None:
        """Print each saved folder."""
        print("saved", event.folder)


if __name__ == "__main__":
    run = finetune.train(
        "classify",
        data="examples/data/sentiment",
        model=os.environ.get("MODEL", "minilm"),
        steps=int(os.environ.get("STEPS", "0")) or None,
        out=os.environ.get("OUT", "runs/example-custom-metric"),
        callbacks=[Progress()],
        metrics={"cost": cost},
        metric="cost",
    )
    print("test cost:", round(run.metrics["test"]["cost"], 4))
