"""The commands `embed`, `similarity`, `geometry`, `map` and `wsd`."""
