"""What a run leaves for people: README, model card, environment, and a page to look at."""

from finetune.reporting.run_readme import write_readme
from finetune.reporting.scores import metrics_table, results
from finetune.reporting.write_report import FILE, write_or_say
from finetune.training.environment import command_line, environment, to_continue, to_predict

__all__ = [
    "FILE",
    "command_line",
    "environment",
    "metrics_table",
    "results",
    "to_continue",
    "to_predict",
    "write_or_say",
    "write_readme",
]
