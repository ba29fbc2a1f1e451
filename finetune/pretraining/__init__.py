"""Pretraining: masked language models, their objectives, vocabularies and perplexity."""
