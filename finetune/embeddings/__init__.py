"""Embeddings: sentence encoders, similarity, word senses, maps, geometry, ranking."""
