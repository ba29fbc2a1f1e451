"""Masked language modeling on running text: pretraining from scratch, and continued pretraining.

Jurafsky & Martin, chapter "Masked Language Models", sections on training bidirectional encoders and
on contiguous spans; Devlin et al. (2019); Liu et al. (2019); Gururangan et al. (2020), "Don't Stop
Pretraining". An example is a block of whole lines that makes one sequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from finetune.config.tasks import column_map
from finetune.data import Dataset, read_text, with_held_out_splits
from finetune.data.collecting import collected
from finetune.data.example_store import ExampleStore, column, taken
from finetune.data.running_text import read_running_text, text_sources
from finetune.data.sampling import sampling_probabilities
from finetune.data.snapshots import Inputs, Prepared, is_large
from finetune.data.sources import PartOf, content_of, resolve
from finetune.evaluation.metrics import masked_scores
from finetune.models.heads.masked_lm import MaskedLanguageModel, MaskedScores
from finetune.models.loading import new_config
from finetune.models.warm_start import LANGUAGE_MODELS
from finetune.preprocessing.encodings import Array, Encoded, Encodings, Ragged
from finetune.preprocessing.masking import KINDS, Masking, special_subwords
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.preprocessing.windows import Window, encode_window, windows
from finetune.pretraining.model import (
    MOST_TARGETS,
    PretrainingModel,
    PretrainingScores,
    require_next_sentence,
)
from finetune.pretraining.sentence_pairs import SentencePairs, follows
from finetune.pretraining.settings import PretrainConfig
from finetune.pretraining.text_blocks import pack_blocks
from finetune.tasks.base import CHUNK, EncodeChunk, Gather, Task, TaskRecord, joined
from finetune.tasks.capabilities import EpochSequences, Export, SeveralLosses
from finetune.tasks.definition import (
    TaskDefinition,
    inputs_of,
    limited,
    load_tokenizer,
    sequence_limit,
    starting_config,
)
from finetune.tasks.inputs import TextInputs
from finetune.types import (
    Batch,
    Encoding,
    LabelSet,
    MaskedPrediction,
    Partial,
    TextExample,
    UserError,
    quantity,
)

DEFAULT_SHARE = 0.05
"""Fraction of the documents to hold out for validation."""
MASKS = re.compile(r"\[MASK\]|<mask>")
"""Masks in texts to predict, whatever the mask of the model."""
MOST_COUNTED = 10_000
"""Number of pairs of which the log tells the share that follows."""
NUM_BEST = 5
"""Number of subwords to predict for a mask."""


@dataclass(frozen=True, kw_only=True)
class PretrainingRecord(TaskRecord):
    """The record of masked language modeling."""

    config: PretrainConfig

    @property
    def inputs(self) -> TextInputs:
        """The inputs of the model."""
        return TextInputs(column_map(self.config.columns), pairs=self.pairs)

    @property
    def kind(self) -> str:
        """The kind of predictions."""
        return "subwords"


GOLD = attrgetter("text")


@dataclass(eq=False)
class PretrainingTask(Task):
    """Prediction of the subwords at chosen positions.

    With training data, texts are masked by rule: for each epoch in training, and always in the same
    way for scores. Without, as in prediction, the mask tokens in a text are filled.
    """

    _frequency: Array | None = None
    """Occurrences of each subword in the training data [V]; None in prediction."""

    record: PretrainingRecord
    _gold = GOLD

    def __post_init__(self) -> None:
        """Require a mask token."""
        if self.tokenizer.tokenizer.mask_token_id is None:
            raise UserError(f"{self.tokenizer.name}: its tokenizer has no mask token.")

    @cached_property
    def _masking(self) -> Masking:
        config, tokenizer = self.record.config, self.tokenizer.tokenizer
        special = special_subwords(tokenizer)
        return Masking(
            special,
            tokenizer.mask_token_id,
            config.mask,
            config.mask_probability,
            config.explore,
            self._frequency if config.replacement == "unigram" else None,
            self._separator(len(special)) if config.boundary else None,
        )

    @cached_property
    def _pairs(self) -> SentencePairs | None:
        """Pairs of texts for next sentence prediction; None without it."""
        paired = self.record.config.nsp and self._frequency is not None
        return SentencePairs(self.tokenizer.pair, self.record.max_length) if paired else None

    def _separator(self, size: int) -> Array:
        """Return which subwords are the special tokens around and between texts [V]."""
        single = self.tokenizer.single  # sep_token_id is also between two texts
        found = np.zeros(size, dtype=bool)
        found[[*single.prefix, *single.suffix, self.tokenizer.tokenizer.sep_token_id]] = True
        return found

    def encode(self, examples: Sequence[Any], gather: Gather = joined) -> Encoded:
        """Encode texts, and mask them as for scores; without training data, find their masks."""
        if self._pairs is not None:
            return self._pairs_of_scores(self._pairs, examples, gather)
        if self._frequency is not None:
            return super().encode(examples, partial(self._masked_chunks, gather))
        examples = [self._with_own_mask(example) for example in examples]
        encoded = super().encode(examples, gather)
        ids = encoded.sequences.ids
        rows = [
            (ids.values[start:end] == self._masking.mask_id).nonzero()[0]
            for start, end in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)
        ]
        for example, start, end in zip(
            examples, encoded.offsets[:-1], encoded.offsets[1:], strict=True
        ):
            if not any(len(row) for row in rows[start:end]):
                mask = self.tokenizer.tokenizer.mask_token
                raise UserError(
                    f"{example.where}: {example.text!r:.60} has no {mask}: write it in place of "
                    "the subwords to predict."
                )
        targets = {"position": Ragged.of(rows)}
        return replace(encoded, sequences=replace(encoded.sequences, targets=targets))

    @property
    def _masking_of_scores(self) -> Masking:
        """The masking without unigram frequencies, so that scores of runs compare."""
        return replace(self._masking, frequency=None)

    def _pairs_of_scores(
        self, pairs: SentencePairs, examples: Sequence[Any], gather: Gather
    ) -> Encoded:
        """Return the masked pairs of scores. The second text of a pair may be of any example."""
        blocks = super().encode(examples)

        def masked(start: int) -> Encoded:
            rows = np.arange(start, min(start + CHUNK, len(examples)))
            made = self._masking_of_scores.apply(pairs.apply(blocks.sequences, rows))
            return Encoded(made, np.arange(len(rows) + 1), 0 if start else blocks.num_cut)

        encoded = gather(masked, range(0, len(examples), CHUNK))
        return replace(encoded, notes=blocks.notes)

    def _masked_chunks(
        self, gather: Gather, encode_chunk: EncodeChunk, starts: Sequence[int]
    ) -> Encoded:
        """Gather chunks with the masks of scores, which are drawn where a chunk is encoded."""

        def masked(start: int) -> Encoded:
            encoded = encode_chunk(start)
            return replace(encoded, sequences=self._masking_of_scores.apply(encoded.sequences))

        return gather(masked, starts)

    def _capabilities(self) -> Iterator[object]:
        config, size = self.record.config, len(self.tokenizer.tokenizer)
        # any subword can be drawn as a random one
        yield EpochSequences(self._masked, lambda: range(size), super().encode)
        yield Export(
            refusal="masked language models compute logits at masks alone, which a graph does not: "
            "fine-tune the encoder with --init-from"
        )
        if config.boundary or config.nsp:
            yield SeveralLosses(self._loss_counts)

    def _with_own_mask(self, example: TextExample) -> TextExample:
        """Return a text with the mask of this tokenizer in place of the usual spellings."""
        text = MASKS.sub(lambda _: self.tokenizer.tokenizer.mask_token, example.text)
        return replace(example, text=text)

    def _masked(self, sequences: Encodings, seed: int, epoch: int, rows: Array | None) -> Encodings:
        """Return sequences with the pairs and masks of an epoch."""
        if self._pairs is None:
            own = sequences if rows is None else sequences.take(rows)
        else:
            rows = np.arange(len(sequences)) if rows is None else rows
            own = self._pairs.apply(sequences, rows, seed, epoch)
        return self._masking.apply(own, seed, epoch)

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[Encoding]], int]:
        room = self.record.max_length - self.tokenizer.single.num_special
        if self._pairs is not None:
            room = self._pairs.room
        texts = [each.text.split("\n") if each.subwords is None else [] for each in examples]
        lines = iter(self.tokenizer.subwords_with_words([x for each in texts for x in each]))
        separator = [self.tokenizer.tokenizer.sep_token_id]
        found, num_cut = [], 0
        before = len(self.tokenizer.single.prefix)
        for example, own in zip(examples, texts, strict=True):
            subwords: list[int] = []
            bounds: list[int] = []  # of words
            lines_of: list[int] = []
            for line in own:
                ids, starts = next(lines)
                lines_of.append(len(bounds))
                bounds += [len(subwords) + start for start in starts]
                subwords += ids
                if not line:
                    bounds.append(len(subwords))
                    subwords += separator
            if example.subwords is not None:
                subwords, bounds = map(_numbers, example.subwords[:2])
                if self._pairs is not None:
                    lines_of = _numbers(example.subwords[2])
            bounds.append(len(subwords))
            if self._pairs is None and len(subwords) <= room:
                starts = [before + bound for bound in bounds]
                found.append([Encoding(example.id, *self.tokenizer.build(subwords), starts)])
                continue
            words = [subwords[start:end] for start, end in pairwise(bounds)]
            num_cut += sum(len(word) > room for word in words)
            words = [word[:room] for word in words]
            if self._pairs is not None:
                found.append([_block(self.tokenizer, example, words, [*lines_of, len(words)])])
                continue
            parts = windows([len(word) for word in words], room, 0)
            found.append([encode_window(self.tokenizer, example.id, words, part) for part in parts])
        return found, num_cut

    def collate(self, encodings: Iterable[Encoding]) -> dict[str, torch.Tensor]:
        """Return the ``position`` [M] of each target in the packed row, its ``token`` and ``kind``
        [M], and the ``number`` of targets of each sequence [N].

        With --boundary also ``boundary``, ``left``, ``right`` and ``offset`` [B], as in
        ``PretrainingModel``.
        """
        sequences = Encodings.of(encodings)
        targets = super().collate(sequences)
        begins = torch.from_numpy(sequences.ids.offsets[:-1].astype(np.int64))
        begins = begins.repeat_interleave(targets["number"])
        if "left" in targets:
            offset = targets["position"] - targets["left"] - 1
            found = (targets["left"] >= 0) & (offset < MOST_TARGETS)
            targets["boundary"] = boundary = found.nonzero()[:, 0]
            targets["offset"] = offset[boundary]
            for side in ("left", "right"):
                targets[side] = (targets[side] + begins)[boundary]
        targets["position"] += begins
        return targets

    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        targets = {
            name: torch.from_numpy(rows[name].values.astype(np.int64))
            for name in ("position", "token", "kind", "left", "right", "next")
            if name in rows
        }
        return targets | {"number": torch.from_numpy(rows["position"].counts)}

    def head(self, folder: str | Path | None = None) -> Any:
        """Make a model to train, or load one from a folder."""
        config = self.record.config
        options: dict[str, Any] = {"batching": config.batching}
        model: type[Any] = MaskedLanguageModel
        if config.boundary or config.nsp:
            model = PretrainingModel
            options |= {"boundary": config.boundary, "nsp": config.nsp}
        if folder is not None:
            return model.from_pretrained(str(folder), new_head=False, **options)
        if config.config is not None:
            made = new_config(config.config, self.tokenizer.tokenizer)
            return model.from_config(made, **options)
        with self._pretrained() as checkpoint:
            return model.from_pretrained(**options, **checkpoint)

    def loss(self, scores: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed cross entropy of the chosen positions, and their number.

        With further objectives, return the sum and the number of each.
        """
        if isinstance(scores, MaskedScores):
            return scores.loss.sum(), torch.ones_like(scores.loss).sum()
        losses = [scores.loss, scores.boundary]
        if "next" in batch.targets:
            losses.append(cross_entropy(scores.next, batch.targets["next"], reduction="none"))
        counts = [each.new_full((), len(each)) for each in losses]
        return torch.stack([each.sum() for each in losses]), torch.stack(counts)

    def _loss_counts(self, batch: Batch) -> torch.Tensor:
        """Return the numbers of chosen positions, boundary losses and pairs."""
        targets = batch.targets
        names = (
            ("position", "boundary", "next") if self.record.config.nsp else ("position", "boundary")
        )
        return torch.tensor([float(len(targets.get(name, ()))) for name in names])

    def decode(self, scores: Any, batch: Batch) -> list[Partial]:
        """Return loss, best subword, gold subword and kind of each target [M, 4].

        With further objectives, three more columns have the boundary loss, 1 if the second text is
        random, and the probability that it follows; NaN if a value is missing. Without gold, return
        the best subwords and their probabilities [M, 2, ``NUM_BEST``].
        """
        if isinstance(scores, MaskedScores | PretrainingScores):
            targets = batch.targets
            columns = [scores.loss, scores.best, targets["token"], targets["kind"]]
            if isinstance(scores, PretrainingScores):
                none = torch.full_like(scores.loss, torch.nan)
                boundary = targets.get("boundary", targets["token"][:0])
                columns.append(none.index_copy(0, boundary, scores.boundary))
                number = targets["number"]
                if "next" in targets:
                    columns.append(targets["next"].repeat_interleave(number))
                    columns.append(scores.next.softmax(-1)[:, 0].repeat_interleave(number))
                else:
                    columns += [none, none]
            values = torch.stack([column.double().cpu() for column in columns], 1)
        else:
            best = scores.cpu().double().softmax(-1).topk(min(NUM_BEST, scores.shape[-1]))
            values = torch.stack([best.indices.double(), best.values], 1)
        rows = np.split(values.numpy(), batch.targets["number"].cumsum(0).tolist()[:-1])
        return batch.partials(rows)

    def finish(
        self, example: TextExample, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> MaskedPrediction:
        """Name the subwords of all windows in order."""
        partials = sorted(partials, key=lambda partial: partial.part)
        values = np.concatenate([partial.values for partial in partials])
        names = self.tokenizer.tokenizer.convert_ids_to_tokens
        if self._frequency is None:
            decode = self.tokenizer.tokenizer.decode
            subwords = tuple(tuple(decode([int(id)]).strip() for id in ids) for ids, _ in values)
            scores = tuple(tuple(map(float, probabilities)) for _, probabilities in values)
            return MaskedPrediction(example.id, subwords, scores, example.text)
        best, token, kind = values[:, 1:4].T.astype(np.int64)
        return MaskedPrediction(
            example.id,
            tuple(names(best.tolist())),
            gold=tuple(names(token.tolist())),
            losses=tuple(values[:, 0].tolist()),
            read_as=tuple(KINDS[each] for each in kind),
            counts=tuple(self._frequency[token].tolist()),
            **self._further(values),
        )

    def _further(self, values: Array) -> dict[str, Any]:
        """Return the fields of a prediction for further objectives, from the values of decode."""
        found: dict[str, Any] = {}
        if self.record.config.boundary:
            found["boundary_losses"] = tuple(values[~np.isnan(values[:, 4]), 4].tolist())
        if self._pairs is not None and len(values):
            found |= {"follows": not values[0, 5], "follows_score": float(values[0, 6])}
        return found

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        return masked_scores(predicted)


def _numbers(array: bytes) -> list[int]:
    """Return an array of int32 as a list."""
    return memoryview(array).cast("i").tolist()


def _head_notes(config: Any) -> list[str]:
    """Return a note for the log if a checkpoint has no head of a masked language model."""
    made = config.architectures
    if not made or any(name.endswith(LANGUAGE_MODELS) for name in made):
        return []
    return [f"{made[0]} has no masked language model: its head is new"]


def _block(
    tokenizer: SubwordTokenizer, example: TextExample, words: Sequence[list[int]], lines: list[int]
) -> Encoding:
    """Return a block with its lines, to make pairs of; ``lines`` are their first words, and the
    number of words."""
    encoding = encode_window(tokenizer, example.id, words, Window(0, len(words), 0, len(words)))
    first = len(tokenizer.single.prefix)
    starts = [start - first for start in encoding.word_starts]
    text = encoding.input_ids[first : first + starts[-1]]
    document = [example.document or 0]
    target = {"text": text, "starts": starts, "lines": lines, "document": document}
    return replace(encoding, target=target)


def _pair_notes(data: Dataset, seed: int) -> list[str]:
    """Return notes on the pairs of each split; for train, on the pairs of the first epoch.

    Raises UserError if there is no other document to draw the second text of a pair from, or if no
    text of train can follow another.
    """
    notes = []
    for split, examples in data.splits.items():
        documents = column(examples, "document")
        first = next(documents)
        if all(document == first for document in documents):
            raise UserError(
                f"--nsp: the {split} split has a single document, and the second text of half of "
                "the pairs is from another one: separate documents by blank lines, or hold out "
                "more (--validation-share)."
            )
        several = np.fromiter(("\n" in text for text in column(examples, "text")), bool)
        ids = np.fromiter(column(examples, "id"), np.int64)[several]
        single = len(several) - len(ids)
        if split == "train" and not len(ids):
            raise UserError(
                "--nsp: every sequence of train is a single line, which nothing follows: write one "
                "sentence a line with blank lines between documents, or leave --nsp out."
            )
        key = seed if split == "train" else None
        drawn = ids[:: len(ids) // MOST_COUNTED + 1].tolist()
        following = sum(follows(key, 0, id) for id in drawn) / max(1, len(drawn))
        about = "about " if len(drawn) < len(ids) else ""
        share = f"{about}{following * len(ids) / len(several):.1%}"
        note = f"{split}: the second text of {share} of the pairs follows"
        if single:
            note += f", of none of the {quantity(single, 'sequence')} of a single line"
        notes.append(note)
    return notes


def _lines(document: TextExample) -> str:
    """Return the text of a document without blank lines."""
    return "\n".join(filter(str.strip, document.text.split("\n")))


def _new_tokenizer(config: PretrainConfig) -> SubwordTokenizer:
    """Load the tokenizer of a new encoder."""
    if config.tokenizer is None and config.config == "small":
        raise UserError(
            "--config small: name a tokenizer with --tokenizer, such as a folder that finetune "
            "vocabulary wrote, or a model such as minilm."
        )
    return SubwordTokenizer.saved(config.tokenizer or str(config.config))


def _resampled(blocks: Sequence[TextExample], alpha: float) -> tuple[Array | None, list[str]]:
    """Return the indices of blocks so that the shares of their sources follow equation 11.7.

    The blocks of small sources are repeated, and no block is left out. With one source return None:
    its blocks occur once.
    """
    numbers: dict[Any, int] = {}
    keys = (numbers.setdefault(key, len(numbers)) for key in column(blocks, "key"))
    source = np.fromiter(keys, np.int32)
    if len(numbers) == 1:
        return None, []
    sizes = np.bincount(source).tolist()
    shares = sampling_probabilities(sizes, alpha)
    total = max(size / share for size, share in zip(sizes, shares, strict=True))
    chosen: list[Array] = []
    notes = []
    for (name, own), size, share in zip(numbers.items(), sizes, shares, strict=True):
        number = max(size, round(share * total))
        chosen.append(np.resize((source == own).nonzero()[0], number))
        notes.append(
            f"{name}: {quantity(size, 'sequence')}, {share:.1%} of an epoch "
            f"({number / size:.1f} times each)"
        )
    return np.concatenate(chosen), notes


def _without_sources(blocks: Sequence[TextExample]) -> Sequence[TextExample]:
    """Return blocks without the keys of their sources."""
    if isinstance(blocks, ExampleStore):
        return blocks.with_column("key", repeat(None, len(blocks)))
    return [replace(block, key=None) for block in blocks]


def load_blocks(definition: TaskDefinition, config: Any, data: Any = None) -> tuple[Task, Dataset]:
    """Load the tokenizer, read the documents, and pack blocks of lines."""
    if config.config is not None:
        warm_start, tokenizer = None, _new_tokenizer(config)
    else:
        warm_start, tokenizer = load_tokenizer(config, definition, ())
    encoder = starting_config(config, warm_start)
    if config.nsp:
        require_next_sentence(str(config.config or config.model or config.init_from), encoder)
    limit = sequence_limit(config, tokenizer, warm_start)
    longest = limit  # of a block alone
    if config.nsp:
        longest -= tokenizer.pair.num_special - tokenizer.single.num_special
    make = partial(_packed, config, data, tokenizer, longest)
    inputs = _inputs(config, data, tokenizer, longest)
    packed, derived, _ = inputs.prepared(config.description.name, make) if inputs else make()
    record = PretrainingRecord(config=config, max_length=limit, **no_labels(config, packed))
    head = [warm_start.note] if warm_start else _head_notes(encoder)
    notes = [*packed.notes, *head, *derived["notes"]]
    packed = limited(replace(packed, notes=notes), config)
    if config.nsp:
        packed = replace(packed, notes=[*packed.notes, *_pair_notes(packed, config.seed)])
    frequency = np.array(derived["frequency"], np.int64)
    return PretrainingTask(record, tokenizer, warm_start, frequency), packed


def _inputs(
    config: PretrainConfig, data: Any, tokenizer: SubwordTokenizer, longest: int
) -> Inputs | None:
    """Return the files of large running text, with what blocks depend on."""
    part = data if isinstance(data, PartOf) else PartOf(config.data if data is None else data)
    spec = part.spec
    if not isinstance(spec, str | Path) or not str(spec).strip():
        return None
    sources = text_sources(str(spec), config.encoding)
    contents = [
        content_of(resolve(source.hub)) if source.hub else source.files for source in sources
    ]
    read = part.without_test, longest, tokenizer.leading_space, tokenizer.placeholder
    return inputs_of(config, sources, contents, read=read, tokenizer=tokenizer.backend.to_str())


def _packed(config: Any, data: Any, tokenizer: SubwordTokenizer, longest: int) -> Prepared:
    """Read the documents and pack them into blocks of at most ``longest`` tokens."""
    if not isinstance(data, Dataset):
        data = read_documents(config, config.data if data is None else data)
    if "train" not in data.splits:
        raise UserError(f"{config.data}: there is no train split: name it with --data train=.")
    data = with_held_out_splits(data, config, DEFAULT_SHARE)
    splits, notes, frequency = dict[str, Sequence[TextExample]](), list[str](), list[int]()
    for split, documents in data.splits.items():
        blocks, counts = pack_blocks(documents, tokenizer, longest, config.packing)
        if not blocks:
            raise UserError(f"{data.name}: {split} has no subword: is there text in it?")
        notes.append(f"{split}: {counts.note(longest - tokenizer.single.num_special)}")
        splits[split] = _without_sources(blocks)
        if split == "train":
            frequency = counts.frequency.tolist()
            chosen, sampled = _resampled(blocks, config.alpha)
            notes += sampled
            if chosen is not None:
                splits[split] = taken(splits[split], chosen)
    packed = replace(data, splits=splits)
    return Prepared(packed, {"notes": notes, "frequency": frequency}, is_large(data))


def read_documents(config: Any, source: Any) -> Dataset:
    """Read documents of running text; of data in memory each text is one.

    All are read: ``--limit`` counts blocks.
    """
    part = source if isinstance(source, PartOf) else PartOf(source)
    spec, without_test = part.spec, part.without_test
    if isinstance(spec, str | Path):
        if not str(spec).strip():
            raise UserError("--data must name running text: a file, a folder, or en=A,de=B.")
        return read_running_text(
            str(spec), columns=config.columns, encoding=config.encoding, without_test=without_test
        )
    data = read_text(PartOf(spec, without_test), columns=column_map(config.columns), pair=False)
    splits = {
        split: collected(
            replace(row, text=text, label=None) for row in rows if (text := _lines(row))
        )
        for split, rows in data.splits.items()
    }
    return replace(data.with_splits(splits), notes=[], label_order=())


def no_labels(config: PretrainConfig, data: Dataset) -> dict[str, Any]:
    """Return fields of the record: there are no labels."""
    return {"labels": LabelSet(()), "pairs": False}


PRETRAIN = TaskDefinition(
    task=PretrainingTask,
    record=PretrainingRecord,
    read=read_documents,
    derive=no_labels,
    gold=GOLD,
    load=load_blocks,
)
