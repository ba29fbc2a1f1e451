"""A loss of your own: generalized cross entropy, for labels with errors (Zhang & Sabuncu, 2018).

python examples/custom_loss.py
finetune classify … --custom-loss examples/custom_loss.py:generalized_cross_entropy
"""

import os

import torch

import finetune

Q = 0.7
"""Near 0 the loss is cross entropy; at 1 it is the mean absolute error."""


def generalized_cross_entropy(logits, targets):
    """Return the sum of (1 - p^q) / q over N texts, from logits [N, C], and their number."""
    labels, weights = targets["label"], targets["weight"]  # [N]; 1 / windows of the text
    log_p = torch.log_softmax(logits.float(), -1).gather(1, labels[:, None])[:, 0]
    losses = -torch.expm1(Q * log_p) / Q
    return (losses * weights).sum(), weights.sum()


if __name__ == "__main__":
    run = finetune.train(
        "classify",
        data="examples/data/sentiment",
        model=os.environ.get("MODEL", "minilm"),
        steps=int(os.environ.get("STEPS", "0")) or None,
        out=os.environ.get("OUT", "runs/example-custom-loss"),
        loss=generalized_cross_entropy,
    )
    print(f"test accuracy: {run.metrics['test']['accuracy']:.4f}")
