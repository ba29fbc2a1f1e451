"""Heads: modules that compute task scores from hidden states, one per kind of prediction."""
