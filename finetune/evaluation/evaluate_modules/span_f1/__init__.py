"""F1 of entities; see ``span_f1.py``."""
