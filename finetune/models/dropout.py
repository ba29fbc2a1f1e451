"""Dropout whose masks follow from keys, so that no mask depends on the layout of a batch.

A mask is a hash of the key of its row, the number of the dropout call, and the column. The keys of
tokens follow from ``Batch.seed``, the example and the position, so that packing, micro-batches and
the number of processes change no mask, nor does padding. Without a seed, torch's default generator
draws the keys.

Each 64-bit hash decides about four elements, which on a CPU takes less time than torch's draws. The
probability is rounded to a multiple of 1 / 65,536, and the remaining elements are scaled by the
rounded probability, so that the expectation is exact. Other devices use torch's own dropout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from finetune.types import Batch, UserError

LEVELS = 2**16
"""Number of values of the sixteen bits that decide about an element."""
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The factors of SplitMix64 (Steele et al., 2014)."""
COLUMN, CALL, ROW = 0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B
"""Steps between the keys of neighbors: odd numbers without a pattern, so that keys do not meet."""


class FastDropout(nn.Dropout):
    """``nn.Dropout`` (Srivastava et al., 2014) that calls ``dropout``."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero elements with probability ``p`` and scale the others by 1 / (1 - p)."""
        return dropout(input, self.p) if self.training else input


@contextlib.contextmanager
def fast_dropout(model: nn.Module) -> Iterator[None]:
    """Replace a model's plain dropout layers by ``FastDropout`` within a ``with`` block.

    Layers of a subclass of ``nn.Dropout`` stay.
    """
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Dropout
    ]
    for parent, name, layer in layers:
        setattr(parent, name, FastDropout(layer.p).train(layer.training))
    try:
        yield
    finally:
        for parent, name, layer in layers:
            layer.training = getattr(parent, name).training
            setattr(parent, name, layer)


def token_keys(batch: Batch) -> Tensor | None:
    """Return the key of each token of a batch, [T] on the CPU; None if the batch has no seed."""
    if batch.seed is None:
        return None
    positions = np.concatenate([np.arange(length) for length in batch.lengths])
    return _keys_at(positions, np.repeat(_sequence_keys(batch, batch.seed), batch.lengths))


def _sequence_keys(batch: Batch, seed: int) -> np.ndarray:
    keys = np.array([seed % 2**64], dtype=np.uint64)
    for numbers in (batch.example, batch.part):
        keys = _splitmix(keys + np.array(numbers, dtype=np.uint64) * np.uint64(COLUMN))
    return keys


def _keys_at(positions: np.ndarray, sequence_keys: np.ndarray) -> Tensor:
    keys = _splitmix(sequence_keys + positions.astype(np.uint64) * np.uint64(COLUMN))
    return torch.from_numpy(keys.view(np.int64))


def _splitmix(keys: np.ndarray) -> np.ndarray:
    for shift, factor in zip((30, 27), FACTORS, strict=True):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    keys ^= keys >> np.uint64(31)
    return keys


@dataclass
class _Rows:
    """The rows that a ``keyed_dropout`` block computes, and the number of its last call."""

    seed: int
    keys: Tensor
    call: int

    def next(self, shape: torch.Size) -> Tensor | None:
        """Return the keys of a new dropout call on a tensor, in its shape without the last axis.

        None if the tensor has another number of rows.
        """
        if shape[:-1].numel() != len(self.keys):
            return None
        self.call += 1
        return shifted(self.keys, CALL, self.call).view(shape[:-1])

    def next_shared(self, first: int, num_rows: int) -> Tensor:
        """Return the keys of a new dropout call on rows of a table that all sequences share."""
        self.call += 1
        start = shifted(torch.arange(first, first + num_rows) * _signed(ROW), CALL, self.call)
        return shifted(start, COLUMN, self.seed)


@dataclass
class _PaddedRows(_Rows):
    """Padded rows of N sequences, whose keys are ``keys`` [N].

    In a whole model, a matrix has a row for each sequence. In an encoder, a matrix is a table that
    all sequences share. Sequences are on ``axis`` in tensors of three axes, else on the first axis.
    """

    axis: int
    whole_model: bool

    def next(self, shape: torch.Size) -> Tensor | None:
        """Return keys that follow from the sequence and the indices: no padding changes them.

        The second to last index is a token (or a query); indices before it count heads.
        """
        if len(shape) == 2 and not self.whole_model:
            return self.next_shared(0, shape[0])
        if len(shape) == 3 and self.axis == 1:
            swapped = self._keys_of(shape[1], 1, shape[0])
            return None if swapped is None else swapped[:, 0].T
        keys = self._keys_of(shape[0], shape[1:-2].numel(), shape[-2] if len(shape) > 2 else 1)
        return None if keys is None else keys.reshape(shape[:-1])

    def _keys_of(self, size: int, num_heads: int, num_tokens: int) -> Tensor | None:
        if size % len(self.keys):
            return None
        self.call += 1
        sequence_keys = self.keys.numpy().view(np.uint64)[:, None]
        keys = shifted(_keys_at(np.arange(num_tokens), sequence_keys), CALL, self.call)
        num_heads *= size // len(self.keys)
        heads = torch.tensor([_signed(ROW * head) for head in range(num_heads)])
        return keys[:, None] + heads[:, None]


FIRST_HEAD_CALL = 2**20
"""Number of the first dropout call of a head, above all calls of encoders."""
_ROWS: ContextVar[_Rows | None] = ContextVar("rows of dropout", default=None)


@contextlib.contextmanager
def keyed_dropout(batch: Batch, rows: Tensor | None = None) -> Iterator[None]:
    """Let dropout of the tokens of a batch use their keys within a ``with`` block.

    ``rows`` [R] selects the tokens of a head, whose masks differ from the encoder's masks; None
    takes all T. Dropout of another number of rows draws its keys. Without a seed, and on devices
    other than the CPU, nothing changes.
    """
    keys = token_keys(batch) if batch.input_ids.is_cpu else None
    if keys is None or batch.seed is None:
        yield
        return
    found = _Rows(batch.seed, keys, 0)
    if rows is not None:
        found = _Rows(batch.seed, keys.index_select(0, rows), FIRST_HEAD_CALL)
    with _in_use(found):
        yield


@contextlib.contextmanager
def keyed_padded_dropout(batch: Batch, axis: int = 0, whole_model: bool = False) -> Iterator[None]:
    """Let dropout of a model on padded rows use the same keys within a ``with`` block.

    The model may call ``nn.Dropout``, torch's functional dropout or torch's attention. ``axis`` is
    the axis of the sequences in hidden states, 0 for [N, L, H]. ``whole_model`` says that the model
    has a head.
    """
    if batch.seed is None or not batch.input_ids.is_cpu:
        yield
        return
    keys = torch.from_numpy(_sequence_keys(batch, batch.seed).view(np.int64))
    with _in_use(_PaddedRows(batch.seed, keys, 0, axis, whole_model)):
        yield


@contextlib.contextmanager
def _in_use(rows: _Rows | None) -> Iterator[None]:
    token = _ROWS.set(rows)
    try:
        with _FunctionalDropout() if isinstance(rows, _PaddedRows) else contextlib.nullcontext():
            yield
    finally:
        _ROWS.reset(token)


class _FunctionalDropout(TorchFunctionMode):
    """Lets the dropout that transformers' models call use the keys of their rows."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        if function is F.dropout:
            return _functional_dropout(*args, **keywords)
        if function is F.scaled_dot_product_attention and keywords.get("dropout_p"):
            return _attention(*args, **keywords)
        return function(*args, **keywords)


def _functional_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return dropout(input, p) if training else input


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float,
    scale: float | None = None,
    enable_gqa: bool = False,
    is_causal: bool = False,
) -> Tensor:
    if is_causal:
        raise UserError("models on padded rows attend in both directions; this one is causal.")
    if enable_gqa:
        times = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(times, dim=1) for tensor in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return dropout(scores.softmax(-1), dropout_p).to(value.dtype) @ value


def dropout_replay() -> contextlib.AbstractContextManager[None]:
    """Return a context in which dropout draws the masks again that it draws after this call."""
    now = _ROWS.get()

    @contextlib.contextmanager
    def repeated() -> Iterator[None]:
        with _in_use(now and replace(now, call=call)):
            yield

    call = now.call if now else 0
    return repeated()


def next_keys(num_rows: int) -> Tensor:
    """Return the keys of the rows of a new dropout call [R], or draw them outside of a block."""
    return _next_keys_of(torch.Size((num_rows, 1)))


def _next_keys_of(shape: torch.Size) -> Tensor:
    rows = _ROWS.get()
    keys = None if rows is None else rows.next(shape)
    return (
        torch.empty(shape[:-1], dtype=torch.int64).random_(-(2**63), None) if keys is None else keys
    )


def next_shared_keys(first: int, num_rows: int) -> Tensor:
    """Return keys as ``next_keys`` does, for rows of a table that all sequences share."""
    rows = _ROWS.get()
    return next_keys(num_rows) if rows is None else rows.next_shared(first, num_rows)


def shifted(keys: Tensor, step: int, times: int) -> Tensor:
    """Return the keys ``times`` steps further."""
    return keys + _signed(step * times)


def keys_of_heads(keys: Tensor, num_heads: int) -> Tensor:
    """Return a key for each of A heads of each row: [T] -> [T * A]."""
    heads = torch.tensor([_signed(ROW * head) for head in range(num_heads)])
    return (keys[:, None] + heads).flatten()


def keys_of_span(keys: Tensor, width: int) -> Tensor:
    """Return the keys of spans of ``width`` words that start at words with the given keys."""
    return keys + _signed(_signed(ROW) * width)


def dropout(input: Tensor, p: float, keys: Tensor | None = None) -> Tensor:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p).

    ``keys`` has a key for each row, in the shape of ``input`` without its last dimension; unset, it
    is ``next_keys``.
    """
    level = round(p * LEVELS)
    if input.device.type != "cpu" or level >= LEVELS:
        return F.dropout(input, p)
    if not level:
        return input
    if keys is None:
        keys = _next_keys_of(input.shape)
    mask = DropoutMask.draw(keys, input, p)
    return _ApplyMask.apply(input, mask)  # type: ignore[no-any-return, no-untyped-call]


def draw_bits(keys: Tensor, columns: int, level: int, dtype: torch.dtype) -> Tensor:
    """Draw integers as wide as ``dtype``: 0 with probability ``level`` / 65,536, else all ones.

    Keys [...] give [..., columns].
    """
    steps = torch.tensor([_signed(COLUMN * (column + 1)) for column in range(-(-columns // 4))])
    lanes = _hashed(keys[..., None] + steps).view(torch.int16)[..., :columns]
    bits = lanes.ge_(level - LEVELS // 2).neg_()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return bits.to(integers[dtype.itemsize]).contiguous()


def _hashed(keys: Tensor) -> Tensor:
    first, second = map(_signed, FACTORS)
    keys ^= keys >> 32
    keys *= first
    keys ^= keys >> 32
    keys *= second
    return keys


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


class DropoutMask(NamedTuple):
    """Bits from ``draw_bits`` (None if no value is dropped), and the scale of the kept values."""

    bits: Tensor | None
    scale: float

    @classmethod
    def draw(cls, keys: Tensor, values: Tensor, p: float) -> DropoutMask:
        """Draw a mask for values on the CPU, each of which is dropped with probability ``p``."""
        level = round(p * LEVELS)
        bits = draw_bits(keys, values.shape[-1], level, values.dtype) if level else None
        return cls(bits, LEVELS / max(1, LEVELS - level))

    def __call__(self, values: Tensor) -> Tensor:
        """Scale the values, and clear the bits of dropped ones (faster than a fill)."""
        if self.bits is None:
            return values
        scaled = (values * self.scale).contiguous()
        scaled.view(self.bits.dtype).bitwise_and_(self.bits)
        return scaled


class _ApplyMask(torch.autograd.Function):
    """Apply one mask to the input and to its gradient."""

    @staticmethod
    def forward(context: Any, input: Tensor, mask: DropoutMask) -> Tensor:
        context.save_for_backward(mask.bits)
        context.scale = mask.scale
        return mask(input)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (bits,) = context.saved_tensors
        return DropoutMask(bits, context.scale)(gradients[0]), None
