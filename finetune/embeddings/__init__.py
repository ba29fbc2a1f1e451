"""Embeddings: similarity, word senses, words in context, maps, geometry, ranking."""
