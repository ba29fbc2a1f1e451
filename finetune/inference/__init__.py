"""Inference: the prediction loop, the predictor, explanations, vectors and pipelines."""
