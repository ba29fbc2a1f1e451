"""Probabilities whose logits are divided by a temperature (Guo et al., 2017).

Exported models decode with this file, so it imports only numpy.
"""

from __future__ import annotations

import numpy as np


def scale(probabilities: np.ndarray, temperature: float, independent: bool) -> np.ndarray:
    """Divide the logits of probabilities [..., C] by a temperature."""
    logs = log_probabilities(probabilities, independent)
    scaled: np.ndarray = np.exp(log_softmax(logs / temperature))
    return scaled[..., 1] if independent else scaled


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Compute log-probabilities [..., C] of logits [..., C]."""
    shifted = logits - logits.max(-1, keepdims=True)
    logs: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logs


def log_probabilities(probabilities: np.ndarray, independent: bool) -> np.ndarray:
    """Compute finite logarithms of probabilities [..., C], or [..., 2] of no and of yes for each
    ``independent`` probability [...]."""
    if independent:
        probabilities = np.clip(probabilities, 1e-15, 1 - 1e-15)
        return np.stack([np.log1p(-probabilities), np.log(probabilities)], axis=-1)
    logs: np.ndarray = np.log(np.maximum(probabilities, np.finfo(float).tiny))
    return logs
