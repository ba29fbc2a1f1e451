"""Readers of word senses, similarity pairs and occurrences of words."""
