"""From words to subwords, windows, flat encodings and batches."""
