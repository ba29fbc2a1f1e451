"""Metrics, significance, calibration, error analysis and prediction files."""
