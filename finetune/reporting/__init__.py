"""Files for people: the HTML report, the model card, the README of a run, uploads to the hub."""

from finetune.reporting.run_readme import write_run_readme
from finetune.reporting.scores import results
from finetune.reporting.write_report import REPORT_FILE, write_report, write_run_report

__all__ = ["REPORT_FILE", "results", "write_report", "write_run_readme", "write_run_report"]
