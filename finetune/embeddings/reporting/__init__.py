"""The pages of geometry and of word maps."""
