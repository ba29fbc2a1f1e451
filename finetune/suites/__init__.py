"""Suites: recipes that are run together, with one table of their scores."""
