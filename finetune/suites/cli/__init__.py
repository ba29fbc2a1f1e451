"""Commands of suites."""
