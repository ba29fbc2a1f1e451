"""Vectors of texts and words, compared, ranked, mapped and labeled with senses."""
