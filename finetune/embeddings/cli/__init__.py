"""The commands `embed`, `similarity`, `geometry`, `map`, `wsd` and `wic`."""
