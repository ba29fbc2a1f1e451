"""What a run leaves for people: README, model card, environment, and a page to look at."""

from finetune.report.command import FILE, write_or_say
from finetune.report.environment import command_line, environment, to_continue, to_predict
from finetune.report.readme import write_readme
from finetune.report.scores import metrics_table, results

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
