"""Prediction: the loop, the predictor, pipelines and export."""
