"""Norms of the vectors that attention adds to each token."""
