"""Heads: what turns the Encoder's states into scores, one module per kind of answer."""
