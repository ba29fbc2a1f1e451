"""Data sets of the Hugging Face hub and folders written by ``datasets.save_to_disk``.

The `datasets` library is imported only here, and only when such a set is read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from finetune.data.dataset import DataError
from finetune.data.hub_cache import cache_without_network
from finetune.data.tables import Record, Table, label_names

CONVERTED = "refs/convert/parquet"
"""The hub's own Parquet copy: `datasets` no longer runs the scripts some sets are written in."""


class HubSet(NamedTuple):
    """A data set of the hub: id, configuration, revision."""

    id: str
    config: str | None = None
    revision: str | None = None


_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
ALIASES: dict[str, HubSet] = {
    **{name: HubSet("nyu-mll/glue", name) for name in _GLUE},
    "glue": HubSet("nyu-mll/glue"),
    "snli": HubSet("stanfordnlp/snli"),
    "multi_nli": HubSet("nyu-mll/multi_nli"),
    "xnli": HubSet("facebook/xnli", "en"),
    "paws": HubSet("google-research-datasets/paws", "labeled_final"),
    "sst5": HubSet("SetFit/sst5"),
    "ag_news": HubSet("fancyzhx/ag_news"),
    "imdb": HubSet("stanfordnlp/imdb"),
    "yelp": HubSet("Yelp/yelp_review_full"),
    "dbpedia": HubSet("fancyzhx/dbpedia_14"),
    "emotion": HubSet("dair-ai/emotion", "split"),
    "go_emotions": HubSet("google-research-datasets/go_emotions", "simplified"),
    "trec": HubSet("CogComp/trec", None, CONVERTED),
    "conll2000": HubSet("eriktks/conll2000", None, CONVERTED),
    "conll2003": HubSet("lhoestq/conll2003"),
    "conll2003_documents": HubSet("tomaarsen/conll2003"),  # the same with a column document_id
    "wnut17": HubSet("leondz/wnut_17", None, CONVERTED),
    "ontonotes": HubSet("tner/ontonotes5", None, CONVERTED),
    "few_nerd": HubSet("DFKI-SLT/few-nerd", "supervised", CONVERTED),
    "wikiann": HubSet("unimelb-nlp/wikiann", "en"),
    "ncbi_disease": HubSet("ncbi/ncbi_disease", None, CONVERTED),
    "germeval2014": HubSet("GermanEval/germeval_14", None, CONVERTED),
    "bc5cdr": HubSet("tner/bc5cdr", None, CONVERTED),
    "ud_ewt": HubSet("universal-dependencies/universal_dependencies", "en_ewt", CONVERTED),
}
"""Short names of well-known data sets; ``name:config`` chooses another configuration."""

TO_FETCH = {
    "genia": "GENIA's nested entities are on no hub data set that can be read: get the corpus from "
    "http://www.geniaproject.org (term annotation, version 3.02) and split it as the work to "
    "compare with did; words in columns with several tag columns, or JSON Lines with tokens and "
    "spans, are read",
}
"""Well-known sets that recipes name and users must fetch: what to do."""

_ONTONOTES = (
    "O B-CARDINAL B-DATE I-DATE B-PERSON I-PERSON B-NORP B-GPE I-GPE B-LAW I-LAW B-ORG I-ORG "
    "B-PERCENT I-PERCENT B-ORDINAL B-MONEY I-MONEY B-WORK_OF_ART I-WORK_OF_ART B-FAC B-TIME "
    "I-CARDINAL B-LOC B-QUANTITY I-QUANTITY I-NORP I-LOC B-PRODUCT I-TIME B-EVENT I-EVENT I-FAC "
    "B-LANGUAGE I-PRODUCT I-ORDINAL I-LANGUAGE"
)
NAMES = {
    "tner/ontonotes5": {"tags": _ONTONOTES.split()},
    "tner/bc5cdr": {"tags": "O B-Chemical B-Disease I-Disease I-Chemical".split()},
}
"""Class names of sets that hold bare numbers, by column, from their cards on the hub."""


def hub_set(spec: str) -> HubSet | None:
    """The hub data set that a spec names, by alias or as ``owner/name[:config]``, or None."""
    name, _, config = spec.partition(":")
    known = ALIASES.get(name.lower().replace("-", "_")) or ALIASES.get(name.lower())
    if known is not None:
        return known._replace(config=config or known.config)
    if re.fullmatch(r"[\w.\-]+/[\w.\-]+", name):
        return HubSet(name, config or None)
    return None


def hub_tables(chosen: HubSet) -> dict[str, Table]:
    """Tables by the hub's split name; raises DataError in one line where the hub fails."""
    import datasets

    try:
        with cache_without_network(datasets.config):
            loaded = datasets.load_dataset(chosen.id, chosen.config, revision=chosen.revision)
    except Exception as error:
        if "scripts are no longer supported" in str(error) and chosen.revision is None:
            return hub_tables(chosen._replace(revision=CONVERTED))
        raise DataError(_hub_message(chosen, error)) from error
    return _tables(loaded, chosen.id)


def saved_tables(folder: Path) -> dict[str, Table]:
    """Tables of a folder written by save_to_disk: a Dataset (``train``) or a DatasetDict."""
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise DataError(
            f"{folder} looks like a folder written by save_to_disk, but it does not load "
            f"({_first_line(error)}): write it again, or export it as JSON Lines."
        ) from error
    if isinstance(loaded, datasets.Dataset):
        loaded = {str(loaded.split or "train"): loaded}
    return _tables(loaded, str(folder))


def _tables(loaded: Mapping[str, Any], name: str) -> dict[str, Table]:
    return {str(split): _table(rows, f"{name}[{split}]") for split, rows in loaded.items()}


def _table(rows: Any, name: str) -> Table:
    def records() -> Iterator[Record]:
        number = itertools.count(1)
        for batch in rows.iter(batch_size=1000):
            columns = list(batch)
            for values in zip(*batch.values(), strict=True):
                where = f"{name}:{next(number)}"
                yield Record(dict(zip(columns, values, strict=True)), where)

    names = {**label_names(rows.features.to_dict()), **NAMES.get(name.split("[")[0], {})}
    return Table(name, list(rows.column_names), records(), typed=True, names=names)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def _hub_message(chosen: HubSet, error: Exception) -> str:
    name = chosen.id + (f":{chosen.config}" if chosen.config else "")
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if "Config name is missing" in text or "BuilderConfig" in text:
        return (
            f"{name}: choose a configuration of the data set, --data {chosen.id}:CONFIG "
            f"({' '.join(text.split())[:400]})"
        )
    if kinds & {"ConnectionError", "OfflineModeIsEnabled", "ConnectTimeout", "ConnectError",
                "LocalEntryNotFoundError", "TimeoutException", "TransportError"}:  # fmt: skip
        return (
            f"{name}: the hub cannot be reached. Without it: finetune nli --model minilm --data "
            "examples/data/nli (data for other tasks lie beside it), or your own --data FOLDER "
            "with train, validation and test files; or fetch the set once on a machine with "
            "network, then set HF_HUB_OFFLINE=1 to read it from the cache."
        )
    return (
        f"{name}: the hub has no such data set that can be read ({_first_line(error)}). Check "
        "the id, sign in with `hf auth login` if access is limited, or give local files with "
        "--data FOLDER."
    )
