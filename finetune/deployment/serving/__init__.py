"""Trained models behind HTTP: `finetune serve`."""
