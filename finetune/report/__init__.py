"""What a run leaves for people: its environment, its README, its results on the screen."""

from finetune.report.environment import command_line, environment, to_continue, to_predict
from finetune.report.readme import write_readme
from finetune.report.scores import metrics_table, results

__all__ = [
    "command_line",
    "environment",
    "metrics_table",
    "results",
    "to_continue",
    "to_predict",
    "write_readme",
]
