"""Trained models elsewhere: ONNX graphs, int8, a predictor without torch, an HTTP server."""
