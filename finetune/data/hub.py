"""Data sets of the Hugging Face hub and folders written by ``datasets.save_to_disk``.

The `datasets` library is imported only here, and only when such a set is read.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from finetune.data import examples as holder
from finetune.data.files import ReadOptions, Row
from finetune.data.tables import Table, class_names, parquet_rows
from finetune.runtime.hub import COMMIT, HubError, Repository, find_repository, remembered
from finetune.runtime.processes import num_processes
from finetune.types import DataError, abbreviated, did_you_mean

PARQUET_COPY = "refs/convert/parquet"
"""Revision with the hub's Parquet copy: `datasets` no longer runs the scripts of some sets."""
_COPIED = re.compile(r"(?P<config>[^/]+)/(?P<split>[^/]+)/\d+\.parquet")
"""A file of a Parquet copy."""


class HubDataset(NamedTuple):
    """The id of a data set of the hub, its configuration and its revision."""

    id: str
    config: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        """The value of ``--data``."""
        config = f":{self.config}" if self.config else ""
        return f"{self.id}{config}" + (f"@{self.revision}" if self.revision else "")


_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
DATASET_ALIASES: dict[str, HubDataset] = {
    **{name: HubDataset("nyu-mll/glue", name) for name in _GLUE},
    "glue": HubDataset("nyu-mll/glue"),
    "snli": HubDataset("stanfordnlp/snli"),
    "multi_nli": HubDataset("nyu-mll/multi_nli"),
    "xnli": HubDataset("facebook/xnli", "en"),
    "paws": HubDataset("google-research-datasets/paws", "labeled_final"),
    "squad": HubDataset("rajpurkar/squad"),
    "squad_v2": HubDataset("rajpurkar/squad_v2"),
    "swag": HubDataset("allenai/swag", "regular"),
    "hellaswag": HubDataset("Rowan/hellaswag", None, PARQUET_COPY),
    "race": HubDataset("ehovy/race", "all"),
    "dream": HubDataset("dataset-org/dream", None, PARQUET_COPY),
    "copa": HubDataset("aps/super_glue", "copa", PARQUET_COPY),
    "commonsense_qa": HubDataset("tau/commonsense_qa"),
    "sst5": HubDataset("SetFit/sst5"),
    "ag_news": HubDataset("fancyzhx/ag_news"),
    "imdb": HubDataset("stanfordnlp/imdb"),
    "yelp": HubDataset("Yelp/yelp_review_full"),
    "dbpedia": HubDataset("fancyzhx/dbpedia_14"),
    "emotion": HubDataset("dair-ai/emotion", "split"),
    "go_emotions": HubDataset("google-research-datasets/go_emotions", "simplified"),
    "banking77": HubDataset("PolyAI/banking77", None, PARQUET_COPY),
    "clinc150": HubDataset("clinc/clinc_oos", "plus"),
    "scotus": HubDataset("coastalcph/lex_glue", "scotus"),
    "eurlex": HubDataset("coastalcph/lex_glue", "eurlex"),
    "anli": HubDataset("facebook/anli"),
    "wanli": HubDataset("alisawuffles/WANLI"),
    "trec": HubDataset("CogComp/trec", None, PARQUET_COPY),
    "conll2000": HubDataset("eriktks/conll2000", None, PARQUET_COPY),
    "conll2003": HubDataset("lhoestq/conll2003"),
    "conll2003_documents": HubDataset("tomaarsen/conll2003"),  # the same with a column document_id
    "wnut17": HubDataset("leondz/wnut_17", None, PARQUET_COPY),
    "ontonotes": HubDataset("tner/ontonotes5", None, PARQUET_COPY),
    "few_nerd": HubDataset("DFKI-SLT/few-nerd", "supervised", PARQUET_COPY),
    "multinerd": HubDataset("Babelscape/multinerd"),
    "wikiann": HubDataset("unimelb-nlp/wikiann", "en"),
    "ncbi_disease": HubDataset("ncbi/ncbi_disease", None, PARQUET_COPY),
    "germeval2014": HubDataset("GermanEval/germeval_14", None, PARQUET_COPY),
    "bc5cdr": HubDataset("tner/bc5cdr", None, PARQUET_COPY),
    "ud_ewt": HubDataset("universal-dependencies/universal_dependencies", "en_ewt", PARQUET_COPY),
}
"""Short names of well-known data sets; ``name:config`` selects another configuration."""

MANUAL_DOWNLOADS = {
    "genia": "GENIA is not on the hub: get the corpus from http://www.geniaproject.org (term "
    "annotation, version 3.02) and convert it to columns of tags, or to JSON Lines with spans"
}
"""Well-known data sets that are not on the hub, and how to get them."""

_ONTONOTES = (
    "O B-CARDINAL B-DATE I-DATE B-PERSON I-PERSON B-NORP B-GPE I-GPE B-LAW I-LAW B-ORG I-ORG "
    "B-PERCENT I-PERCENT B-ORDINAL B-MONEY I-MONEY B-WORK_OF_ART I-WORK_OF_ART B-FAC B-TIME "
    "I-CARDINAL B-LOC B-QUANTITY I-QUANTITY I-NORP I-LOC B-PRODUCT I-TIME B-EVENT I-EVENT I-FAC "
    "B-LANGUAGE I-PRODUCT I-ORDINAL I-LANGUAGE"
)
_MULTINERD = "PER LOC ORG ANIM BIO CEL DIS EVE FOOD INST MEDIA PLANT MYTH TIME VEHI SUPER PHY"
CLASS_NAMES = {
    "tner/ontonotes5": {"tags": _ONTONOTES.split()},
    "Babelscape/multinerd": {
        "ner_tags": ["O", *(f"{at}-{entity}" for entity in _MULTINERD.split() for at in "BI")]
    },
    "tner/bc5cdr": {"tags": "O B-Chemical B-Disease I-Disease I-Chemical".split()},
}
"""Class names of sets with numbers only, by column, from their cards on the hub."""


def hub_dataset(spec: str) -> HubDataset | None:
    """Parse ``NAME[:CONFIG][@REVISION]``; None if it names no hub data set.

    ``NAME`` is ``owner/name`` or one of ``ALIASES``.
    """
    name, _, revision = spec.partition("@")
    name, _, config = name.partition(":")
    known = DATASET_ALIASES.get(name.lower().replace("-", "_")) or DATASET_ALIASES.get(name.lower())
    if known is None and not re.fullmatch(r"[\w.\-]+/[\w.\-]+", name):
        return None
    known = known or HubDataset(name)
    return known._replace(config=config or known.config, revision=revision or known.revision)


@dataclass(frozen=True)
class Download:
    """A data set of the hub in the cache."""

    used: HubDataset
    """The data set with its commit."""
    size: int
    """Its bytes."""
    tables: Callable[[], dict[str, Table]]
    """Opens its tables, by the hub's split names; pickled for other processes."""


@remembered
def downloaded(chosen: HubDataset) -> Download:
    """Bring a data set of the hub into the cache, once in a process.

    Of several processes on one machine, only the main process asks the hub, and the others wait.

    Raises:
        UserError: The data set is not on the hub or in the cache, or the hub refuses it or does
            not answer.
    """
    if num_processes() > 1 and os.environ.get("LOCAL_WORLD_SIZE") == str(num_processes()):
        from finetune.runtime.launch import on_main_process

        download: Download = on_main_process(lambda: _download(chosen))
        return download
    return _download(chosen)


def _download(chosen: HubDataset) -> Download:
    try:
        repository = find_repository("dataset", chosen.id, chosen.revision)
        copied = {name: match for name in repository.files if (match := _COPIED.fullmatch(name))}
        if chosen.revision and copied and "README.md" not in repository.files:
            return _copy(chosen, repository, copied)
        return _prepare(chosen, repository)
    except HubError as error:
        advice = _advice(chosen) if error.reason in ("unreachable", "failed") else ""
        raise HubError(f"{error}{advice}", error.reason) from error


def _copy(
    chosen: HubDataset, repository: Repository, files: Mapping[str, re.Match[str]]
) -> Download:
    configs = sorted({match["config"] for match in files.values()})
    config = chosen.config or (configs[0] if len(configs) == 1 else None)
    if config not in configs:
        known = "" if repository.online else " in the cache, and the hub is not reached"
        raise _unknown_config(chosen, configs, known)
    by_split: dict[str, list[str]] = {}
    for name, match in sorted(files.items()):
        if match["config"] == config:
            by_split.setdefault(match["split"].removeprefix("partial-"), []).append(name)
    folder = repository.download(list(chain.from_iterable(by_split.values())))
    files_of = {split: [folder / name for name in names] for split, names in by_split.items()}
    used = HubDataset(chosen.id, None if config == "default" else config, repository.commit)
    size = sum(path.stat().st_size for paths in files_of.values() for path in paths)
    return Download(used, size, partial(_copied_tables, files_of, chosen.id))


def _copied_tables(files_of: Mapping[str, Sequence[Path]], id: str) -> dict[str, Table]:
    tables = {}
    for split, paths in files_of.items():
        title = f"{id}[{split}]"
        tables[split] = table = Table(title, names=CLASS_NAMES.get(id, {}))
        table.rows = parquet_rows(paths, f"{title}:", ReadOptions(), table)
    return tables


def _prepare(chosen: HubDataset, repository: Repository) -> Download:
    import datasets
    from datasets.packaged_modules.cache.cache import Cache

    try:
        with repository.errors(), _quiet_datasets():
            builder: Any = None
            if repository.online:
                builder = datasets.load_dataset_builder(
                    chosen.id, chosen.config, revision=repository.commit
                )
            else:  # load_dataset would ask the hub for minutes
                builder = Cache(
                    repo_id=chosen.id,
                    dataset_name=chosen.id.split("/")[-1],
                    config_name=chosen.config,
                    version="auto",
                    hash="auto",
                )
            builder.download_and_prepare()
            splits = builder.as_dataset()
    except Exception as error:  # the library raises errors of many types
        if isinstance(error, HubError):
            raise
        if "scripts are no longer supported" in str(error) and chosen.revision is None:
            return _download(chosen._replace(revision=PARQUET_COPY))
        raise _reading_error(chosen, repository, error) from error
    commit = str(builder.hash) if COMMIT.fullmatch(str(builder.hash)) else repository.commit
    # datasets falls back to its cache where the hub fails, whatever the commit
    if (chosen.revision or repository.online) and commit != repository.commit:
        problem = "its files cannot be read now" if repository.online else "the hub is not reached"
        raise DataError(
            f"--data {chosen}: {problem}, and the cache has commit {commit} instead: run again "
            f"later, or write {chosen._replace(revision=commit)}."
        )
    config = None if builder.config.name == "default" else builder.config.name
    size = sum(int(rows.data.nbytes) for rows in splits.values())
    used = HubDataset(chosen.id, config, commit)
    return Download(used, size, partial(dataset_tables, splits, chosen.id))


@contextlib.contextmanager
def _quiet_datasets() -> Iterator[None]:
    import datasets

    were_disabled = datasets.are_progress_bars_disabled()
    verbosity = datasets.logging.get_verbosity()
    if not sys.stderr.isatty():  # bars of downloads stay
        datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        (datasets.disable_progress_bars if were_disabled else datasets.enable_progress_bars)()
        datasets.logging.set_verbosity(verbosity)


def saved_tables(folder: Path) -> dict[str, Table]:
    """Open the tables of a folder written by save_to_disk: a Dataset or a DatasetDict."""
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises errors of many types
        problem = f"but it does not load ({_first_line(error)})"
        raise DataError(
            f"{folder} looks like a folder written by save_to_disk, {problem}."
        ) from error
    if isinstance(loaded, datasets.Dataset):
        loaded = {str(loaded.split or "train"): loaded}
    return dataset_tables(loaded, str(folder))


def dataset_tables(loaded: Mapping[str, Any], name: str) -> dict[str, Table]:
    """Make the tables of a loaded ``DatasetDict``, with the names of classes."""
    names = CLASS_NAMES.get(name, {})
    titles = {str(split): f"{name}[{split}]" for split in loaded}
    return {
        split: dataset_table(loaded[split], title, f"{title}:", names)
        for split, title in titles.items()
    }


def dataset_table(
    rows: Any, name: str, location: str, names: Mapping[str, Sequence[str]] = {}
) -> Table:
    """Make the table of a ``Dataset``; a row is at ``location`` and its number from 1."""
    if rows.format["type"] == "custom":
        raise DataError(
            f"{name}: the Dataset has a transform (with_transform, set_transform), which is not "
            "applied here: write its result with map(), or remove it with reset_format()."
        )
    plain = _rows(rows.with_format(None), location)
    return Table(
        name, rows.column_names, plain, names={**class_names(rows.features.to_dict()), **names}
    )


def _rows(rows: Any, location: str) -> Iterator[Row]:
    for start in range(0, len(rows), holder.CHUNK):
        batch = rows[start : start + holder.CHUNK]
        for number, row in enumerate(zip(*batch.values(), strict=True), start + 1):
            yield Row(dict(zip(batch, row, strict=True)), f"{location}{number}")


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def _advice(chosen: HubDataset) -> str:
    return (
        f" Bring it: `hf download {chosen.id} --repo-type dataset --local-dir FOLDER` on a "
        "machine with network, and write --data FOLDER."
    )


def _unknown_config(chosen: HubDataset, configs: Sequence[str], known: str = "") -> DataError:
    names = f"{abbreviated(configs, 20)}{known}"
    if chosen.config is None:
        example = chosen._replace(config=configs[0], revision=None)
        return DataError(
            f"--data {chosen.id}: the data set has several configurations: choose one of {names}, "
            f"as in --data {example}."
        )
    hint = did_you_mean(chosen.config, configs)
    return DataError(
        f"--data {chosen.id}: there is no configuration {chosen.config!r}, only {names}.{hint}"
    )


def _reading_error(chosen: HubDataset, repository: Repository, error: Exception) -> DataError:
    text = " ".join(str(error).split())
    if repository.online:  # datasets drops the reason why the hub refuses a gated data set
        from huggingface_hub import HfApi

        with repository.errors():
            HfApi().auth_check(chosen.id, repo_type="dataset")
    else:
        _, _, cached = text.partition("Available configs in the cache: ")
        has = f"only {cached}" if cached else "nothing"
        return DataError(
            f"--data {chosen}: the hub is not reached, and the cache has {has} of {chosen.id}: run "
            f"once with network.{_advice(chosen)}"
        )
    if listed := re.search(r"(?:Available|available configs?)[^\[]*(\[.*?\])", text):
        configs = re.findall(r"'([^']+)'", listed[1])
        if configs and ("Config name is missing" in text or "BuilderConfig" in text):
            return _unknown_config(chosen, configs)
    return DataError(
        f"--data {chosen}: `datasets` cannot read this data set ({_first_line(error)}): download "
        "its files and give them with --data FOLDER."
    )
