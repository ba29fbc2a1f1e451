"""The commands `export` and `serve`."""
