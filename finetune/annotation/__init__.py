"""Annotation: formats of tools, agreement, suspected labels, suggestions, the review page."""
