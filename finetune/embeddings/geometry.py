"""`finetune geometry`: anisotropy, rogue dimensions, and attention, by layer.

Ethayarajh 2019, "How contextual are contextualized word representations?"; Timkey & van Schijndel
2021, "All bark and no bite: rogue dimensions in transformer language models obscure
representational quality".

Kobayashi, Kuribayashi, Yokoi & Inui 2021, "Incorporating Residual and Normalization Layers into
Analysis of Masked Language Models" (EMNLP): the output of an attention block for token i is a sum
of vectors F[i, j], one for each input token j, and of a constant. Their norms say how much a token
reads from each other token, which attention weights alone do not.

F[i, j] is the sum over heads of weight[i, j] * value[j] W_O, plus the residual input where i = j.
In models that normalize after the residual connection (BERT) it also passes the normalization,
which is linear once the deviation of the sum is known; in the others (ModernBERT) normalization
comes before the attention and is part of value[j].

Shapes: L layers, H dimensions, A heads, T tokens.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from finetune.cli.output import print_tables, show
from finetune.data.running_text import sample_lines, text_sources
from finetune.embeddings.vectors import Array, Standardizer, unit_vectors
from finetune.inference.embed import Embedder
from finetune.models.attention import packed_attention
from finetune.models.encoder import Encoder
from finetune.models.families import ROBERTA, family_of
from finetune.preprocessing.batching import pack
from finetune.reporting.rendering import PageTable, Points, Section, chart, page_of
from finetune.runtime.device import batch_to_device
from finetune.runtime.progress import Reporter
from finetune.types import TokenSequence, UserError

if TYPE_CHECKING:
    from finetune.embeddings.commands import Geometry

_NAME = "finetune_recorded"
"""The name in transformers of attention whose weights and values are recorded."""
MOST_TOKENS = 64
"""Most tokens of a sentence whose attention is analyzed."""
NUM_SENTENCES = 50
"""Sentences of the sample that the mixing ratio is averaged over."""
TOP_DIMENSIONS = (1, 3, 10)
"""Numbers of largest dimensions whose share of the expected cosine is reported."""
LAYERS_NOTE = (
    "The expected cosine of two words is the anisotropy: near 0 the vectors point in all "
    "directions, near 1 in one; z is that of standardized vectors. If a few dimensions make most "
    "of it, cosines measure little else."
)
ATTENTION_NOTE = (
    "The output of an attention block is a sum of one vector for each token that it reads; the "
    "residual input counts as the token itself, and the normalization is applied to each part "
    "(Kobayashi et al. 2021). The mixing ratio is the length of the contribution of other tokens, "
    "as a fraction of its sum with the length of the token's own contribution."
)


class Block(NamedTuple):
    """The modules around the attention of a layer, by their names in the layer.

    ``output`` is the linear map after attention. ``norm`` is the normalization that reads the sum
    with the residual input; it belongs to the block if ``after`` is True.
    """

    output: str
    norm: str
    after: bool


_BERT = Block("attention.output.dense", "attention.output.LayerNorm", True)
_POST = Block("self_attn.o_proj", "post_attention_layernorm", True)
BLOCKS: dict[str, Block] = {
    **dict.fromkeys(("bert", "electra", "ernie", "roc_bert", *ROBERTA), _BERT),
    "albert": Block("attention.dense", "attention.LayerNorm", True),
    "distilbert": Block("attention.out_lin", "sa_layer_norm", True),
    **dict.fromkeys(("nomic_bert", "gte", "jina_embeddings_v3"), _POST),
    "modernbert": Block("attn.Wo", "mlp_norm", False),
    **dict.fromkeys(("eurobert", "ultrabert"), _POST._replace(after=False)),
    "roberta-prelayernorm": Block("attention.output.dense", "intermediate.LayerNorm", False),
    "xlm-roberta-xl": Block("attention.output.dense", "LayerNorm", False),
}
"""The attention blocks of each model type that can be analyzed."""


class BlockAnalysis(NamedTuple):
    """The analysis of one attention block over a sequence of T tokens."""

    weights: Tensor
    """Attention weights, the mean over heads [T, T]; rows read from columns."""
    norms: Tensor
    """Norms of the contributions F[i, j] [T, T]."""
    mixing: Tensor
    """Mixing ratio [T]: the norm of the contribution of other tokens, as a fraction of its sum with
    the norm of the token's own contribution."""
    error: float
    """Largest difference between the block's output and the sum of contributions and constant."""


def reason_without_norms(encoder: Encoder) -> str:
    """The reason why the attention of an encoder cannot be analyzed; empty if it can."""
    model_type = encoder.model.config.model_type
    if model_type in BLOCKS and family_of(encoder.model) is not None:
        return ""
    return (
        f"{model_type} models do not compute attention as a sum over values through the interface "
        "of transformers, or no test shows that their contributions add up"
    )


@torch.no_grad()
def analyze_attention(encoder: Encoder, sequence: TokenSequence) -> list[BlockAnalysis]:
    """Analyze each attention block over a sequence, of a family without ``reason_without_norms``.

    Memory is about T * T * H floats.

    Raises:
        UserError: The sequence is longer than the model reads.
    """
    model: Any = encoder.model
    batch = batch_to_device(pack([sequence]), next(model.parameters()).device)
    encoder.check_batch(batch)
    modules = BLOCKS[model.config.model_type]
    recorded: list[tuple[Tensor, Tensor]] = []  # weights [A, T, T] and values [A, T, D]
    projected: list[tuple[nn.Linear, Tensor]] = []
    normalized: list[tuple[Any, Tensor, Tensor]] = []
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if not name.endswith(f".{modules.output}"):
                continue
            norm = model.get_submodule(name.removesuffix(modules.output) + modules.norm)
            for hooked, hook in (
                (module, lambda m, _, out: projected.append((m, out[0]))),
                (norm, lambda m, args, out: normalized.append((m, args[0][0], out[0]))),
            ):
                hooks.callback(hooked.register_forward_hook(hook).remove)
        with packed_attention(model.config, _NAME):
            model(**encoder.packed_inputs(batch), record=recorded)
    blocks, layers = [], zip(recorded, projected, normalized, strict=True)
    for (weights, values), (linear, attended), (norm, total, after_norm) in layers:
        # total [T, H]: residual input plus attention
        num_heads, num_tokens, size = values.shape
        by_head = linear.weight.unflatten(1, (num_heads, size))  # [H, A, D]
        mapped = torch.einsum("ajd,had->ajh", values, by_head)
        parts = torch.einsum("aij,ajh->ijh", weights, mapped)
        tokens = torch.arange(num_tokens, device=parts.device)
        parts[tokens, tokens] += total - attended  # the residual input
        constant = torch.zeros_like(total[0]) if linear.bias is None else linear.bias
        output = total
        if modules.after:
            variance, _ = torch.var_mean(total, dim=-1, correction=0)
            scale = norm.weight / (variance + norm.eps).sqrt()[:, None]  # [T, H]
            parts = (parts - parts.mean(-1, keepdim=True)) * scale[:, None]
            constant = (constant - constant.mean()) * scale
            if norm.bias is not None:
                constant = constant + norm.bias
            output = after_norm
        sums, diagonal = parts.sum(1), parts[tokens, tokens]
        from_others, from_itself = (sums - diagonal).norm(dim=-1), diagonal.norm(dim=-1)
        mixing = from_others / (from_others + from_itself).clamp_min(torch.finfo(parts.dtype).tiny)
        error = float((sums + constant - output).abs().max())
        blocks.append(BlockAnalysis(weights.mean(0), parts.norm(dim=-1), mixing, error))
    return blocks


def _attend_and_record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    record: list[tuple[Tensor, Tensor]],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    times = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(times, dim=1) for tensor in (key, value))
    scores = query.to(value.dtype) @ key.to(value.dtype).transpose(-1, -2)
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if sliding_window is not None:
        position = torch.arange(scores.shape[-1], device=scores.device)
        far = (position[:, None] - position).abs() >= sliding_window
        scores = scores.masked_fill(far, -torch.inf)
    weights = scores.softmax(-1)
    record.append((weights[0], value[0]))
    return (weights @ value).transpose(1, 2), None


_recording: Callable[..., Any] = _attend_and_record
AttentionInterface.register(_NAME, _recording)


@dataclass
class ExpectedCosine:
    """The expected cosine of two different vectors, over all pairs of a stream.

    The mean over all pairs of N unit vectors u is (|sum u|^2 - sum |u|^2) / N (N - 1), in which
    each dimension has its own term: its contribution (Timkey & van Schijndel 2021).
    """

    total: Array | float = 0.0
    squares: Array | float = 0.0
    count: int = 0

    def add(self, units: Array) -> None:
        """Add vectors of length 1 [N, L, H]."""
        self.total = self.total + units.sum(axis=0)
        self.squares = self.squares + (units**2).sum(axis=0)
        self.count += len(units)

    def by_layer(self, layers: Sequence[int]) -> list[dict[str, Any]]:
        """Compute the geometry of each layer as JSON values.

        ``expected_cosine`` is the anisotropy. ``shares`` are the shares of the largest dimensions
        in it by their number (None if it is not positive).
        """
        rows = []
        differences: Array = np.square(self.total) - np.asarray(self.squares)
        contributions = differences / max(1, self.count * (self.count - 1))
        for layer, parts in zip(layers, contributions, strict=True):
            expected, sums = float(parts.sum()), np.cumsum(np.sort(parts)[::-1])
            shares = None
            if expected > 0:
                shares = {k: float(sums[min(k, len(sums)) - 1] / expected) for k in TOP_DIMENSIONS}
            rows.append({"layer": layer, "expected_cosine": expected, "shares": shares})
        return rows


def measure_geometry(
    embedder: Embedder,
    sample: Sequence[str],
    *,
    sentences: Sequence[str] = (),
    seed: int = 0,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Measure the vectors of the words of a sample of the lines of a corpus.

    Every second line of the sample is used to fit a standardizer, and the others are measured, so
    that the standardized figures are on held-out text.

    Args:
        embedder: With ``unit="word"`` and ``combine="none"``.
        sample: The lines.
        sentences: Texts whose attention is shown.
        seed: Seed of the sample of lines whose attention is measured, and of ``sample``.
        reporter: Shows the progress.

    Returns:
        JSON values: the rows ``raw`` and ``standardized`` of ``ExpectedCosine.by_layer``, the
        number of measured texts and words and of the words of the standardization, and
        ``attention``: the mean ``mixing`` ratio of each layer, and for sentences the tables [L, T,
        T] of ``weights`` and ``norms``, or the ``reason`` why there is no analysis.

    Raises:
        UserError: There is too little text, a sentence is too long, or ``sentences`` are given and
            the family of the encoder has no analysis of attention.
    """
    if len(sample) < 2:
        raise UserError(f"geometry needs two or more lines of text, not {len(sample)}.")
    fitted, measured = sample[::2], sample[1::2]
    raw, standardized = ExpectedCosine(), ExpectedCosine()
    with reporter or Reporter(quiet=True) as progress:
        standardizer = Standardizer.fit(e.vectors for e in embedder.encode(fitted, progress))
        for embedding in embedder.encode(measured, progress):
            raw.add(unit_vectors(embedding.vectors))
            standardized.add(unit_vectors(standardizer(embedding.vectors)))
    return {
        "model": embedder.tokenizer.name,
        "num_texts": len(measured),
        "num_words": raw.count,
        "num_fitted": standardizer.count,
        "raw": raw.by_layer(embedder.layers),
        "standardized": standardized.by_layer(embedder.layers),
        "attention": _attention(embedder, measured, sentences, seed),
        "seed": seed,
    }


def _attention(
    embedder: Embedder, lines: Sequence[str], sentences: Sequence[str], seed: int
) -> dict[str, Any]:
    if reason := reason_without_norms(embedder.encoder):
        if sentences:
            raise UserError(f"--sentence: no analysis of attention: {reason}.")
        return {"reason": reason, "mixing": [], "num_sentences": 0, "sentences": []}
    encoder, tokenizer = embedder.encoder, embedder.tokenizer

    def tokenized(texts: Sequence[str]) -> list[TokenSequence]:
        return [TokenSequence(0, *tokenizer.build(ids)) for ids in tokenizer.text_subwords(texts)]

    chosen = [*zip(sentences, tokenized(sentences), strict=True)]
    for text, sequence in chosen:
        if (size := len(sequence.input_ids)) > MOST_TOKENS:
            raise UserError(
                f"--sentence {text!r:.40}: {size} tokens are too many to show: write a sentence of "
                f"at most {MOST_TOKENS}."
            )
    candidates = tokenized([text for text in lines if len(text) <= 10 * MOST_TOKENS])
    short = [s for s in candidates if 3 <= len(s.input_ids) <= MOST_TOKENS]
    short = Random(seed).sample(short, min(len(short), NUM_SENTENCES))
    mixing = [
        [float(block.mixing.mean()) for block in analyze_attention(encoder, s)] for s in short
    ]
    analyzed: list[dict[str, Any]] = []
    for text, sequence in chosen:
        tokens = [tokenizer.tokenizer.decode([id]) for id in sequence.input_ids]
        analyzed.append({"text": text, "tokens": tokens, "weights": [], "norms": []})
        for block in analyze_attention(encoder, sequence):
            for name, table in (("weights", block.weights), ("norms", block.norms)):
                analyzed[-1][name].append(table.cpu().numpy().astype(float).round(5).tolist())
    means = np.mean(mixing, axis=0).tolist() if mixing else []
    return {"reason": "", "mixing": means, "num_sentences": len(short), "sentences": analyzed}


def _page(figures: dict[str, Any], model: str, data: str) -> str:
    raw, attention = figures["raw"], figures["attention"]
    lines: dict[str, dict[str, Points]] = {
        "Expected cosine of two words": {
            name: [(row["layer"], row["expected_cosine"]) for row in figures[name]]
            for name in ("raw", "standardized")
        },
        "Share of the largest dimensions in the expected cosine": {
            f"top {number}": [(row["layer"], row["shares"][number]) for row in raw if row["shares"]]
            for number in TOP_DIMENSIONS
        },
        f"Mixing ratio, mean over {attention['num_sentences']} sentences": {
            "mixing ratio": list(enumerate(attention["mixing"], 1))
        },
    }
    charts = [
        chart(caption, "layer", lines=shown)
        for caption, series in lines.items()
        if (shown := [(name, points) for name, points in series.items() if points])
    ]
    note = ATTENTION_NOTE
    if attention["reason"]:
        note = f"There is no analysis of attention: {attention['reason']}."
    table = PageTable("Raw vectors", *_layer_table(figures))
    sections = [Section("Layers", [LAYERS_NOTE, note], charts, [table])]
    for sentence in attention["sentences"]:
        tokens, num_layers, tables = sentence["tokens"], len(sentence["norms"]), []
        captions = {"norms": "Lengths of contributions", "weights": "Attention weights"}
        for name, caption in captions.items():
            for layer in sorted({1, (num_layers + 1) // 2, num_layers}):
                rows = [
                    [token, *(value / (sum(row) or 1.0) for value in row)]
                    for token, row in zip(tokens, sentence[name][layer - 1], strict=True)
                ]
                bars = range(1, len(tokens) + 1)
                tables.append(PageTable(f"{caption} of layer {layer}", ["", *tokens], rows, bars))
        note = "Each row reads from the columns, in fractions of the row."
        sections.append(Section(sentence["text"], [note], tables=tables))
    return page_of(
        "geometry",
        model,
        sections,
        about=f"{figures['num_words']:,} words of {figures['num_texts']:,} texts of {data}, "
        f"standardized over {figures['num_fitted']:,} other words, seed {figures['seed']}; layer 0 "
        "is the output of the embeddings.",
        command="finetune geometry",
    )


def _layer_table(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    columns = ["layer", "expected cosine", "z expected cosine", "top dimension", "top 3", "top 10"]
    rows = [
        [
            *(raw["layer"], raw["expected_cosine"], z["expected_cosine"]),
            *((raw["shares"] or {}).get(number) for number in TOP_DIMENSIONS),
        ]
        for raw, z in zip(figures["raw"], figures["standardized"], strict=True)
    ]
    return columns, rows


def print_geometry(command: Geometry) -> None:
    """Measure the encoder of the command, write its files, and print a table of the layers."""
    sources = text_sources(command.data, command.encoding)
    lines = chain.from_iterable(source.lines() for source in sources)
    options = command.encoder.keywords()
    figures = measure_geometry(
        Embedder(command.model, layers="all", unit="word", combine="none", **options),
        sample_lines(lines, command.texts, command.seed),
        sentences=command.sentence,
        seed=command.seed,
        reporter=Reporter(quiet=command.format != "table"),
    )
    text = json.dumps(figures, ensure_ascii=False)
    command.write(lambda: _page(figures, command.model, command.data), text)
    if command.format == "json":
        show(text)
        return
    command.note(
        f"{figures['num_words']:,} words of {figures['num_texts']:,} texts, standardized over "
        f"{figures['num_fitted']:,} other words, seed {figures['seed']}"
    )
    print_tables(command.format, ("", *_layer_table(figures)))
    attention = figures["attention"]
    if attention["mixing"]:
        mixing = " ".join(f"{value:.3f}" for value in attention["mixing"])
        command.note(f"attention, mixing ratio of layers 1 to {len(attention['mixing'])}: {mixing}")
    elif attention["reason"]:
        show(f"no analysis of attention: {attention['reason']}", error=True)
