"""What the attention of an encoder adds to each vector."""
