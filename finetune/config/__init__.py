"""Settings of tasks, recipes, and the scores that recipes expect."""
