"""The commands `vocabulary` and `perplexity`."""
