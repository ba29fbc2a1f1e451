"""Devices, processes, precision, progress and signals."""
