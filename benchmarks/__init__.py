"""`python -m benchmarks`: speed and memory of this toolkit and of its alternatives.

What makes the comparison fair:

- **The same work.** All variants of a workload have the same weights and texts. Random texts have
  the lengths of real data sets (``synthetic``); predictions are compared before they are timed.
- **Alternatives at their best.** Trainer also runs in bf16 with batches of similar lengths, and
  pipelines in batches; only tokens of the texts count, no padding (``training``, ``prediction``).
- **Variants take turns** in one process, every other round in reverse order, so that a busy machine
  slows all of them equally; the report has medians and the spread (``measure``).
- **Memory is measured apart**, as measuring it slows the work.
"""
