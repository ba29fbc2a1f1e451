"""Training: the loop, the step, checkpoints, and the run folder."""
