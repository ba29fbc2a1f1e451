"""Files for people: the HTML report, the model card, the README of a run, uploads to the hub."""

from finetune.reporting.html import REPORT_FILE, write_report, write_run_report
from finetune.reporting.model_card import write_run_readme
from finetune.reporting.rendering import format_score

__all__ = ["REPORT_FILE", "format_score", "write_report", "write_run_readme", "write_run_report"]
