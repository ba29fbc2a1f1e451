"""Measures of vectors: cosines, geometry, projections, scores of word senses."""
