"""Inference: the prediction loop, the predictor, pipelines and export."""
