"""SentenceEncoder: one vector for each text, pooled from the last hidden states.

Reimers & Gurevych (2019), "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks". Saved
folders load in sentence-transformers, and as a plain encoder in transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel

from finetune.config.tasks import TrainConfig
from finetune.data.json_files import read_object
from finetune.models.bilstm import BILSTM
from finetune.models.encoder import Encoder, remove_pooler
from finetune.models.heads.base import Head, labels_of, load_module, save_module
from finetune.models.heads.layers import pooled_tokens
from finetune.models.heads.task_models import label_settings
from finetune.models.loading import library_errors, load_config, load_weights, local_model, quiet
from finetune.types import Batch, UserError

Pooling = Literal["mean", "cls", "max", "mask"]

CLASSIFIER_FILE = "classifier.safetensors"
"""File in the folder of a saved model with the weights of its siamese classifier."""
POOLING_FILE, MODULES_FILE = "1_Pooling/config.json", "modules.json"
NORMALIZE_FILE = "2_Normalize/config.json"
POOLING_KEYS: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
}
"""The pooling for each key of sentence-transformers; versions from 6 also write `pooling_mode`."""


class SentenceOutput(NamedTuple):
    """The vectors of N texts, and the weights of the classifier."""

    vectors: Tensor
    """[N, H]"""
    classifier: Tensor
    """[C, 3 H + 1], of texts [C, H + 1], the bias last; C is 0 without a classifier."""


class SentenceEncoder(Head):
    """One vector for each of N texts.

    Args:
        model: A base model of transformers, such as ``AutoModel`` loads.
        pooling: The vector of a text: the ``"mean"`` or the maximum (``"max"``) of its tokens with
            the special ones, its first token (``"cls"``), or the token that ``Batch.words`` marks
            (``"mask"``: of a template).
        normalize: Scale each vector to length 1.
        labels: The labels of a new classifier of pairs (u, v), softmax(W [u; v; |u - v|]) as in
            Sentence-BERT; None for no classifier.
        pairs: False for a classifier of texts u, softmax(W u).
        max_length: Tokens that sentence-transformers reads of a text; None leaves the limit of the
            tokenizer.

    Examples:
        >>> from finetune import SentenceEncoder, SubwordTokenizer
        >>> tokenizer = SubwordTokenizer.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> encoder = SentenceEncoder.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> encoder(tokenizer(["A fine film.", "Dull."])).vectors.shape  # doctest: +SKIP
        torch.Size([2, 768])
    """

    encoder_prefix = "model."

    def __init__(
        self,
        model: PreTrainedModel,
        pooling: Pooling = "mean",
        *,
        normalize: bool = False,
        labels: Sequence[str] | None = None,
        pairs: bool = True,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        remove_pooler(model)
        self.__dict__["encoder"] = Encoder(model)
        self.pooling, self.normalize, self.max_length = pooling, normalize, max_length
        self.classifier: nn.Linear | None = None
        if labels is not None:
            self.classifier = nn.Linear((3 if pairs else 1) * self.encoder.width, len(labels))
            model.config.update(label_settings(labels))

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        labels: Sequence[str] | None = None,
        pairs: bool = True,
        trained: bool = False,
        max_length: int | None = None,
        **options: Any,
    ) -> SentenceEncoder:
        """Load an encoder in float32.

        Args:
            name: As in ``load_config``.
            pooling: The pooling; None takes the pooling of a folder in the format of
                sentence-transformers, else the mean.
            normalize: As for the class; None takes the setting of the folder, else False.
            labels: The labels of a new classifier.
            pairs: As for the class.
            trained: Load the trained classifier of the folder, if it has one, with its labels.
            max_length: As for the class.
            options: ``revision`` and ``trust_remote_code``, as in ``load_config``.

        Raises:
            UserError: The model does not exist, or its files do not fit together.
        """
        model = load_weights(AutoModel, name, load_config(name, **options), **options)
        folder = local_model(name, options.get("revision"))
        path = folder / CLASSIFIER_FILE
        if trained and path.is_file():
            labels = list(labels_of(model.config))
        saved_pooling, saved_normalize = saved_settings(folder)
        encoder = cls(
            model,
            pooling or saved_pooling or "mean",
            normalize=saved_normalize if normalize is None else normalize,
            labels=labels,
            pairs=pairs,
            max_length=max_length,
        )
        if trained and encoder.classifier is not None:
            load_module(encoder.classifier, path, new=False)
        return encoder

    def read(self, hidden: Tensor, batch: Batch) -> SentenceOutput:
        """Compute the vectors [N, H] of a batch of N sequences."""
        if self.pooling == "mask":
            vectors = hidden.index_select(0, batch.words)
        else:
            vectors = pooled_tokens(hidden, batch, self.pooling)
        if self.normalize:
            vectors = F.normalize(vectors, dim=-1)
        return SentenceOutput(vectors, self.classifier_weights())

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the vectors [N, H] of a batch of N sequences."""
        return self(batch).vectors  # type: ignore[no-any-return]

    def classifier_weights(self) -> Tensor:
        """The weights of the classifier, with the bias last [C, 3 H + 1], in float32."""
        if self.classifier is None:
            return next(self.model.parameters()).new_empty(0, 3 * self.encoder.width + 1)
        weights = torch.cat([self.classifier.weight, self.classifier.bias[:, None]], dim=1)
        return weights.to(torch.promote_types(weights.dtype, torch.float32))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the encoder for transformers, and the files of sentence-transformers beside it.

        sentence-transformers has no pooling of a masked token: with ``"mask"`` it gets no files.
        """
        folder = Path(folder)
        with quiet():
            self.model.save_pretrained(folder)
        if self.classifier is not None:
            save_module(self.classifier, folder / CLASSIFIER_FILE)
        if self.pooling != "mask":
            save_modules(self, folder)


def save_modules(head: Any, folder: Path) -> None:
    """Write modules.json and its folders, with the names that all versions since 2 read.

    ``head`` has the ``encoder``, ``pooling``, ``normalize`` and ``max_length`` of vectors. An
    encoder with a BiLSTM gets no modules.json: other libraries would load it without this layer.
    """
    modules = {"": "Transformer", "1_Pooling": "Pooling"}
    modules |= {"2_Normalize": "Normalize"} if head.normalize else {}
    files: dict[str, Any] = {
        POOLING_FILE: {
            "word_embedding_dimension": head.encoder.width,
            **{key: pooling == head.pooling for key, pooling in POOLING_KEYS.items()},
        },
        "sentence_bert_config.json": {"max_seq_length": head.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    if BILSTM not in head.encoder.model._modules:
        files[MODULES_FILE] = [
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{name}",
            }
            for index, (path, name) in enumerate(modules.items())
        ]
    if head.normalize:
        files[NORMALIZE_FILE] = {}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def saved_labels(folder: Path) -> list[str]:
    """The labels of the trained classifier of pairs in a folder; none without one."""
    path = folder / CLASSIFIER_FILE
    if not path.is_file():
        return []
    config = load_config(str(folder))
    with library_errors(str(folder), folder), safe_open(str(path), "pt") as weights:
        of_pairs = weights.get_slice("weight").get_shape()[1] == 3 * config.hidden_size
    return list(labels_of(config)) if of_pairs else []


def saved_settings(folder: Path) -> tuple[Pooling | None, bool]:
    """Load pooling and normalization of a folder in the format of sentence-transformers.

    The pooling is None if the folder has none.
    """
    path = folder / POOLING_FILE
    if not path.is_file():
        return None, False
    content = read_object(path)
    modes = [value for key, value in POOLING_KEYS.items() if content.get(key)]
    pooling: Any = content.get("pooling_mode") or (modes[0] if len(modes) == 1 else "another one")
    if pooling not in POOLING_KEYS.values():
        legal = ", ".join(POOLING_KEYS.values())
        raise UserError(f"{path}: the pooling must be one of {legal}, not {pooling!r}.")
    if not (folder / MODULES_FILE).is_file():  # of an encoder with a BiLSTM
        return pooling, (folder / NORMALIZE_FILE).is_file()
    with library_errors(str(folder), folder, MODULES_FILE):
        modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
        normalize = any(module["type"].endswith(".Normalize") for module in modules)
    return pooling, normalize


def starting_pooling(config: TrainConfig) -> tuple[Pooling | None, bool]:
    """The pooling that the starting model names, or None, and whether it normalizes."""
    return saved_settings(local_model(str(config.init_from or config.model), weights=False))
