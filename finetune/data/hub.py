"""Data sets of the Hugging Face hub and folders written by ``datasets.save_to_disk``.

The `datasets` library is imported only here, and only when such a set is read.
"""

from __future__ import annotations

import contextlib
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from finetune.data.dataset import DataError
from finetune.data.files import Record
from finetune.data.tables import Table, class_names

PARQUET_COPY = "refs/convert/parquet"
"""Revision with the hub's Parquet copy: `datasets` no longer runs the scripts of some sets."""


class HubDataset(NamedTuple):
    """The id of a data set of the hub, its configuration and its revision."""

    id: str
    config: str | None = None
    revision: str | None = None


_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
ALIASES: dict[str, HubDataset] = {
    **{name: HubDataset("nyu-mll/glue", name) for name in _GLUE},
    "glue": HubDataset("nyu-mll/glue"),
    "snli": HubDataset("stanfordnlp/snli"),
    "multi_nli": HubDataset("nyu-mll/multi_nli"),
    "xnli": HubDataset("facebook/xnli", "en"),
    "paws": HubDataset("google-research-datasets/paws", "labeled_final"),
    "sst5": HubDataset("SetFit/sst5"),
    "ag_news": HubDataset("fancyzhx/ag_news"),
    "imdb": HubDataset("stanfordnlp/imdb"),
    "yelp": HubDataset("Yelp/yelp_review_full"),
    "dbpedia": HubDataset("fancyzhx/dbpedia_14"),
    "emotion": HubDataset("dair-ai/emotion", "split"),
    "go_emotions": HubDataset("google-research-datasets/go_emotions", "simplified"),
    "trec": HubDataset("CogComp/trec", None, PARQUET_COPY),
    "conll2000": HubDataset("eriktks/conll2000", None, PARQUET_COPY),
    "conll2003": HubDataset("lhoestq/conll2003"),
    "conll2003_documents": HubDataset("tomaarsen/conll2003"),  # the same with a column document_id
    "wnut17": HubDataset("leondz/wnut_17", None, PARQUET_COPY),
    "ontonotes": HubDataset("tner/ontonotes5", None, PARQUET_COPY),
    "few_nerd": HubDataset("DFKI-SLT/few-nerd", "supervised", PARQUET_COPY),
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
CLASS_NAMES = {
    "tner/ontonotes5": {"tags": _ONTONOTES.split()},
    "tner/bc5cdr": {"tags": "O B-Chemical B-Disease I-Disease I-Chemical".split()},
}
"""Class names of sets with numbers only, by column, from their cards on the hub."""


def hub_dataset(spec: str) -> HubDataset | None:
    """Return the hub data set of an alias or of ``owner/name[:config]``, or None."""
    name, _, config = spec.partition(":")
    known = ALIASES.get(name.lower().replace("-", "_")) or ALIASES.get(name.lower())
    if known is not None:
        return known._replace(config=config or known.config)
    if re.fullmatch(r"[\w.\-]+/[\w.\-]+", name):
        return HubDataset(name, config or None)
    return None


def hub_tables(chosen: HubDataset) -> dict[str, Table]:
    """Return the tables by the hub's split names; raises DataError if the hub fails."""
    import datasets

    try:
        with cache_without_network(datasets.config):
            loaded = datasets.load_dataset(chosen.id, chosen.config, revision=chosen.revision)
    except Exception as error:  # the library raises errors of many types
        if "scripts are no longer supported" in str(error) and chosen.revision is None:
            return hub_tables(chosen._replace(revision=PARQUET_COPY))
        raise DataError(_hub_message(chosen, error)) from error
    return dataset_tables(loaded, chosen.id)


def saved_tables(folder: Path) -> dict[str, Table]:
    """Return the tables of a folder written by save_to_disk: a Dataset or a DatasetDict."""
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
    """Return the tables of a loaded ``DatasetDict``, with the names of classes."""
    tables = {}
    for split, rows in loaded.items():
        names = {**class_names(rows.features.to_dict()), **CLASS_NAMES.get(name, {})}
        title = f"{name}[{split}]"
        tables[str(split)] = Table(title, rows.column_names, _records(rows, title), names=names)
    return tables


def _records(rows: Any, name: str) -> Iterator[Record]:
    number = 0
    for batch in rows.iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield Record(dict(zip(batch, values, strict=True)), f"{name}:{number}")


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


_EXAMPLES = {ALIASES["mnli"]: "nli", ALIASES["conll2003"]: "ner"}
"""Packaged example data for the default data of a task."""


def _hub_message(chosen: HubDataset, error: Exception) -> str:
    name = chosen.id + (f":{chosen.config}" if chosen.config else "")
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if "Config name is missing" in text or "BuilderConfig" in text:
        reason = " ".join(text.split())[:400]
        return f"{name}: choose a configuration, --data {chosen.id}:CONFIG ({reason})"
    if kinds & {"ConnectionError", "OfflineModeIsEnabled", "ConnectTimeout", "ConnectError",
                "LocalEntryNotFoundError", "TimeoutException", "TransportError"}:  # fmt: skip
        example = f"--model minilm --data examples/data/{_EXAMPLES.get(chosen, 'sentiment')}"
        return (
            f"{name}: the hub cannot be reached. Run the same command with --data FOLDER, or as a "
            f"trial with {example}, which every installation has; or download the set on a machine "
            "with network, then set HF_HUB_OFFLINE=1 to read it from the cache."
        )
    return (
        f"{name}: the hub has no such data set that can be read ({_first_line(error)}). Check the "
        "id, sign in with `hf auth login`, or give local files with --data FOLDER."
    )


@contextlib.contextmanager
def cache_without_network(*modules: Any) -> Iterator[None]:
    """Read from the cache at once where the name of the hub does not resolve.

    Otherwise the hub's client retries for many seconds first. ``modules`` are libraries with a
    switch ``HF_HUB_OFFLINE`` besides that of the client. A proxy, if set, resolves names itself.
    """
    from huggingface_hub import constants

    modules = (constants, *modules)
    before = [module.HF_HUB_OFFLINE for module in modules]
    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname or ""
    try:
        if not (constants.HF_HUB_OFFLINE or urllib.request.getproxies()):
            socket.getaddrinfo(host, None)
    except OSError:
        for module in modules:
            module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
