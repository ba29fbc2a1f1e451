"""The task `sentence`."""
