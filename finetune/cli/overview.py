"""The help of `finetune` itself: every command with one line, in groups, on one screen."""

from __future__ import annotations

from finetune.registry import TASKS

HEAD = """\
usage: finetune COMMAND [INPUT …] [--option value …]   (fine-tune pretrained text encoders)"""
FOOT = """\
options
  --help      this help, or the options of a command (--help-all: every option); --version
  --quiet     results and errors only; --verbose: more; --print-completion {bash,zsh,fish}
First run, without a download: finetune nli --model minilm --data examples/data/nli"""
GROUPS: dict[str, dict[str, str]] = {
    "train": {
        **{name: row.summary for name, row in TASKS.items()},
        "vocabulary": "a subword vocabulary, also for a trained encoder",
        "distill": "a small student of a trained model",
        "run": "a recipe, a suite of recipes, several tasks, or a run; list recipes",
        "search": "search for the best settings",
    },
    "predict and score": {
        "predict": "predict texts or words with a trained model",
        "score": "score predictions, or a model on a file",
        "compare": "test whether systems differ; tables for papers",
        "thresholds": "choose the thresholds of labels",
        "report": "a page on runs, or scores by subgroup, confusions and errors as text",
    },
    "data and annotation": {
        "check": "find problems in data before training",
        "cache": "list or clear tokenized data",
        "convert": "convert annotated data to the format of another tool",
        "agreement": "measure how far annotators agree",
        "suggest": "choose examples to label next",
        "review": "write a page to review labels, tags and spans",
    },
    "inspect encoders": {
        "embed": "vectors of texts, words or subwords",
        "similarity": "cosines of texts or words, against gold",
        "geometry": "anisotropy and attention, layer by layer",
        "map": "a map of one word in many contexts",
        "wsd": "the senses of words",
        "perplexity": "pseudo-perplexity of texts, minimal pairs",
    },
    "share and serve": {
        "export": "an ONNX graph with a program that predicts from it, also in int8",
        "serve": "trained models over HTTP",
        "push": "upload a model to the hub",
        "bench": "measure speed and memory",
    },
}


def overview() -> str:
    """Return the help of all commands."""
    parts = [HEAD]
    for group, commands in GROUPS.items():
        parts.append(group)
        parts += [f"  {name:<12}{summary}" for name, summary in commands.items()]
    return "\n".join([*parts, FOOT])
