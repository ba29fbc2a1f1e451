"""Annotation: the formats of annotation tools, and label errors."""
