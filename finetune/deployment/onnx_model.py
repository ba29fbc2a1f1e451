"""Prediction with an exported model: texts or words in, predictions out, without torch.

The toolkit checks and measures exports with this file. An export holds a copy of it, and of the
modules it imports, that needs numpy, onnxruntime and tokenizers only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from finetune.evaluation.decisions import Decisions
from finetune.preprocessing.questions import encode_questions, tokens_of
from finetune.preprocessing.span_candidates import candidates
from finetune.preprocessing.subwords import Subwords
from finetune.preprocessing.texts import Input, as_example, encode_texts
from finetune.preprocessing.windows import encode_words
from finetune.tasks.answer_decoding import AnswerDecoder
from finetune.tasks.decoding import Decoder, TextDecoder
from finetune.tasks.span_decoding import SpanDecoder
from finetune.tasks.tag_decoding import TagDecoder
from finetune.types import (
    Example,
    Prediction,
    TextExample,
    TokenExample,
    TokenSequence,
    UserError,
    WindowOutput,
)

GRAPH, SETTINGS = "model.onnx", "predictor.json"
"""Files of an export: the graph, and the settings for predictions."""
TOKENS = 512
"""Tokens of a batch, padding included: larger batches leave the cache of a CPU."""


def is_export(folder: str | Path) -> bool:
    """Whether a folder was written by ``finetune export``."""
    return (Path(folder) / SETTINGS).is_file()


class _TextOutput:
    """Inputs of a model of labels or numbers, and predictions from its logits; base of the others.

    ``fields`` are the attributes of the decoder.
    """

    decoder_class: ClassVar[type[Decoder]] = TextDecoder
    reads_words: ClassVar[bool] = False

    def __init__(
        self, fields: Mapping[str, Any], tokenizer: Subwords, settings: Mapping[str, Any]
    ) -> None:
        self.decoder: Any = self.decoder_class.restored(fields)
        self.tokenizer, self.settings = tokenizer, settings
        self.length, self.overlap = settings["max_length"], settings["overlap"]

    def encode(self, examples: Sequence[Any]) -> list[list[TokenSequence]]:
        # one sequence for each example, or several windows
        limits = self.length, self.settings["long_text"], self.overlap
        return encode_texts(examples, self.tokenizer, *limits)[0]

    def blank(self, example: Any) -> Any:
        return self.decoder.of_blank(example)

    def rows(self, logits: np.ndarray, sequences: Sequence[TokenSequence]) -> np.ndarray:
        # the logits of a batch that count, of one sequence after another
        return logits

    def values(self, logits: np.ndarray, sequences: Sequence[TokenSequence]) -> Sequence[Any]:
        # a value of each sequence from the logits that count
        return list(self.decoder.windows(logits))

    def postprocess(self, example: Any, outputs: Sequence[WindowOutput]) -> Any:
        return self.decoder.postprocess(example, outputs)


class _PartsOutput(_TextOutput):
    """Base of the outputs whose logits are of parts of each sequence."""

    def blank(self, example: Any) -> Any:
        return None  # every example has sequences

    def index(self, sequence: TokenSequence) -> Any:
        raise NotImplementedError

    def rows(self, logits: np.ndarray, sequences: Sequence[TokenSequence]) -> np.ndarray:
        pairs = zip(logits, sequences, strict=True)
        return np.concatenate([rows[self.index(sequence)] for rows, sequence in pairs])


class _AnswerOutput(_PartsOutput):
    """Answers to questions: logits of all tokens."""

    decoder_class = AnswerDecoder

    def encode(self, examples: Sequence[Any]) -> list[list[TokenSequence]]:
        return encode_questions(examples, self.tokenizer, self.length, self.overlap)[0]

    def index(self, sequence: TokenSequence) -> Any:
        return np.arange(len(sequence.input_ids))

    def values(self, logits: np.ndarray, sequences: Sequence[TokenSequence]) -> Sequence[Any]:
        positions, first = [], 0  # of the first token, and of the context
        for sequence in sequences:
            begin, end = sequence.word_starts
            positions.append((first, first + begin, first + end))
            first += len(sequence.input_ids)
        return list(self.decoder.windows(logits, positions))

    def postprocess(self, example: Any, outputs: Sequence[WindowOutput]) -> Any:
        return self.decoder.postprocess(
            example, outputs, tokens_of(self.tokenizer, example.pair or "")
        )


class _TagOutput(_PartsOutput):
    """Tags of words: logits of words, or of all their subwords."""

    decoder_class = TagDecoder
    reads_words = True

    def encode(self, examples: Sequence[Any]) -> list[list[TokenSequence]]:
        return encode_words(examples, self.tokenizer, self.length, self.overlap, core_only=True)[0]

    def index(self, sequence: TokenSequence) -> Any:
        starts = sequence.word_starts
        if self.decoder.all_subwords:
            return np.arange(starts[0], starts[-1])
        return np.array(starts[:-1], dtype=int)

    def values(self, logits: np.ndarray, sequences: Sequence[TokenSequence]) -> Sequence[Any]:
        num_words = [sequence.num_words for sequence in sequences]
        lengths = np.concatenate([np.diff(sequence.word_starts) for sequence in sequences])
        transitions = self.settings["transitions"]  # of a CRF
        if transitions is not None:
            rows = [np.array(scores, dtype=np.float32) for scores in transitions]  # None: nan
            transitions = tuple(np.where(np.isnan(row), np.float32(-np.inf), row) for row in rows)
        return list(self.decoder.windows(logits, num_words, lengths, transitions))


class _SpanOutput(_PartsOutput):
    """Spans of words: logits of all candidates."""

    decoder_class = SpanDecoder
    reads_words = True

    def encode(self, examples: Sequence[Any]) -> list[list[TokenSequence]]:
        return encode_words(examples, self.tokenizer, self.length, self.overlap, core_only=False)[0]

    def index(self, sequence: TokenSequence) -> Any:
        spans = candidates(sequence.num_words, self.decoder.max_width)
        first, end = spans[:, 0], spans[:, 1]
        return first, end - first - 1

    def values(self, logits: np.ndarray, sequences: Sequence[TokenSequence]) -> Sequence[Any]:
        return list(self.decoder.windows(logits, [sequence.num_words for sequence in sequences]))


OUTPUTS = (_TextOutput, _TagOutput, _SpanOutput, _AnswerOutput)


class OnnxModel:
    """An exported model on the CPU.

    Examples:
        >>> OnnxModel("runs/x-onnx").predict(["What a film."])[0].label  # doctest: +SKIP
        'positive'
    """

    def __init__(
        self, folder: str | Path, *, threads: int | None = None, graph: str = GRAPH
    ) -> None:
        """Load an export.

        Args:
            folder: The folder of the export.
            threads: Threads of one operation; None is onnxruntime's default.
            graph: File name of the graph.
        """
        import onnxruntime
        from tokenizers import Tokenizer

        folder = Path(folder)
        if not is_export(folder):
            raise UserError(f"{folder}: no {SETTINGS} in it: name the folder of an export.")
        self.settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.task: str = self.settings["task"]
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.no_truncation()
        backend.no_padding()
        self.tokenizer = Subwords.restored(backend, self.settings["tokenizer"])
        fields = self.settings["decoder"]
        names = {cls: {*cls.decoder_class.attributes()} for cls in OUTPUTS}
        output = next(cls for cls in OUTPUTS if names[cls] == fields.keys())
        self.output = output(fields, self.tokenizer, self.settings)
        self.decoder = self.output.decoder
        self.decisions = Decisions.restored(self.settings.get("decisions", {}))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 4  # errors are raised
        self.session = onnxruntime.InferenceSession(
            str(folder / graph),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],  # slower than its parts on a CPU
        )
        self.inputs = [entry.name for entry in self.session.get_inputs()]

    @property
    def input_keys(self) -> tuple[str, ...]:
        """The keys of an example in a request to a server."""
        if self.output.reads_words:
            return ("text", "words")
        return ("text",) if self.settings["pairs"] is False else ("text", "text_pair")

    def example(self, index: int, item: Input, where: str = "") -> Example:
        """Convert an input to an example; UserError if that is impossible."""
        type = TokenExample if self.output.reads_words else TextExample
        return as_example(index, item, type, pairs=self.settings["pairs"], where=where)

    def predict(self, inputs: Sequence[Input]) -> list[Prediction]:
        """Predict each input, in order. The ``id`` of a prediction is the index of its input.

        Args:
            inputs: A text each; (text, text) for a model of pairs; a text or a list of words for a
                model of words. A text is split into words, and its prediction has their character
                offsets.
        """
        if isinstance(inputs, str):
            raise UserError(f"predict takes a list of inputs: write predict([{inputs!r:.40}]).")
        if isinstance(inputs, Mapping) or hasattr(inputs, "columns"):  # its items are names
            raise UserError(
                f"predict takes a list of inputs, and {type(inputs).__name__} is a table: give one "
                "of its columns, such as predict(data['text'])."
            )
        return self.predict_examples([self.example(*item) for item in enumerate(inputs)])

    def predict_examples(self, examples: Sequence[Any]) -> list[Prediction]:
        """Predict examples, in their order. Ids differ; a blank text has the label None."""
        by_id = {e.id: p for e in examples if (p := self.output.blank(e)) is not None}
        filled = [example for example in examples if example.id not in by_id]
        encoded = self.output.encode(filled)
        sequences = [(row, window) for row, windows in enumerate(encoded) for window in windows]
        sequences.sort(key=lambda item: len(item[1].input_ids))
        outputs_of_examples: list[list[WindowOutput]] = [[] for _ in filled]
        start = 0
        for end in range(1, len(sequences) + 1):
            if end < len(sequences):
                padded = (end + 1 - start) * len(sequences[end][1].input_ids)
                if padded <= TOKENS:
                    continue
            windows = [window for _, window in sequences[start:end]]
            values = self.output.values(self.logits(windows), windows)
            for (row, window), value in zip(sequences[start:end], values, strict=True):
                outputs_of_examples[row].append(WindowOutput(window.window, value))
            start = end
        for example, outputs in zip(filled, outputs_of_examples, strict=True):
            outputs.sort(key=attrgetter("window"))
            by_id[example.id] = self.output.postprocess(example, outputs)
        return [self.decisions.apply(by_id[example.id]) for example in examples]

    def feed(self, sequences: Sequence[TokenSequence]) -> dict[str, np.ndarray]:
        """Make the inputs of the graph for a batch: [N, L] or, of words, [N, W]; all int64."""
        ids = [sequence.input_ids for sequence in sequences]
        starts = [np.array(sequence.word_starts, dtype=np.int64) for sequence in sequences]
        every: dict[str, tuple[Sequence[Any], int]] = {
            "input_ids": (ids, self.settings["pad_id"]),
            "attention_mask": ([[1] * len(row) for row in ids], 0),
            "token_type_ids": ([sequence.token_type_ids or [] for sequence in sequences], 0),
            "words": ([positions[:-1] for positions in starts], 0),
        }
        width = max(map(len, ids))
        widths = {"words": max(1, *map(len, every["words"][0]))}
        arrays = {}
        for name in self.inputs:
            rows, fill = every[name]
            arrays[name] = np.full((len(rows), widths.get(name, width)), fill, dtype=np.int64)
            for target, row in zip(arrays[name], rows, strict=True):
                target[: len(row)] = row
        return arrays

    def logits(self, sequences: Sequence[TokenSequence]) -> np.ndarray:
        """Compute the logits of a batch: [N, C]; of words, subwords, tokens or spans [..., C]."""
        (logits,) = self.session.run(["logits"], self.feed(sequences))
        return self.output.rows(logits, sequences)


load = OnnxModel
