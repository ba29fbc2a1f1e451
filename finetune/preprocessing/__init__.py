"""From rows to batches: data prepared for a task, subwords, windows, flat encodings."""
