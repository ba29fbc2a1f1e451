"""The commands `convert`, `agreement`, `suggest` and `review`, and `check --label-errors`."""
