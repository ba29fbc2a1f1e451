"""A trained model for prediction from Python: texts or words in, predictions out.

``BatchPredictor`` is one as a function of batches, for engines such as Ray Data, Spark and Dask.

>>> import finetune
>>> finetune.load("runs/x").predict(["What a film."])  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from finetune.config.values import require_count
from finetune.data.in_memory import input_list, input_table, is_from
from finetune.evaluation.decisions import Costs, Decisions
from finetune.evaluation.decisions.costs import check_costs
from finetune.evaluation.prediction_types import TYPES
from finetune.inference.explanation import Explanation, explain, require_explained
from finetune.inference.loop import CHUNK, chunks, precision_on, predict
from finetune.inference.vectors import TrainingVectors, decision_vectors
from finetune.models.master_weights import cast_weights
from finetune.preprocessing.context import surrounded
from finetune.preprocessing.texts import Input
from finetune.runtime.device import model_to_device, resolve_precision
from finetune.runtime.launch import make_accelerator
from finetune.runtime.processes import require_precision
from finetune.runtime.progress import Reporter
from finetune.runtime.row_files import with_columns, with_same_columns
from finetune.runtime.workers import ahead
from finetune.tasks import model_folder, saved_task
from finetune.tasks.calibration import with_threshold
from finetune.types import (
    Example,
    LabelSet,
    Prediction,
    SpanPrediction,
    TextExample,
    TokenExample,
    TokenPrediction,
    UserError,
    quantity,
)

Given = Input | Example | SpanPrediction | TokenPrediction
"""An input, an example, or for a model of relations the spans that another model predicted."""


class Predictor:
    """A trained model on its device, with its tokenizer and labels.

    In half precision the weights of ``model`` are half precision, too: to save or convert a model,
    load its head with ``from_pretrained``.

    Examples:
        >>> model = Predictor("runs/x")  # doctest: +SKIP
        >>> model.predict(["What a film."])[0].label  # doctest: +SKIP
        'positive'
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        decoding: str | None = None,
        threshold: str | float | Mapping[str, float] | None = None,
        costs: Costs | None = None,
        decide: bool = True,
        max_tokens: int | None = None,
    ) -> None:
        """Load a model.

        Args:
            folder: A run folder, the folder of the model itself, or its hub id.
            decoding: The decoding; None keeps the decoding of the training.
            threshold: Lowest probabilities of answers: one for all, or by the name of a label or
                span type. None keeps the thresholds of the model. Unless a label of several or the
                positive one of two has a threshold, the model abstains below it.
            costs: The cost of each predicted label for each gold label: the label with the least
                expected cost is predicted. None keeps the costs of the model.
            decide: Whether to apply the decisions of ``finetune thresholds``.
            max_tokens: Tokens in a forward pass; changes memory and speed only.

        Raises:
            UserError: The folder holds no saved model, or its task does not know the decoding.
        """
        self.folder = folder = model_folder(folder)
        task = saved_task(folder)
        config = task.state.config
        changed: dict[str, Any] = {"max_tokens": max_tokens}
        if decoding is not None:
            if "decoding" not in vars(config):
                raise UserError(f"--decoding {decoding}: {task.name} models have none.")
            changed["decoding"] = decoding
        self.task = replace(task, state=replace(task.state, config=replace(config, **changed)))
        decisions = Decisions.restored(self.task.state.decisions if decide else {})
        if costs is not None or threshold is not None:  # in place of the saved rule
            decisions = replace(decisions, costs={}, confidence=None)
        if costs is not None:
            check_costs(costs, list(self.labels), TYPES[self.task.state.prediction_type])
            decisions = replace(decisions, costs=costs)
        if threshold is not None:
            self.task, confidence = with_threshold(self.task, threshold)
            decisions = replace(decisions, confidence=confidence)
        self.decisions = decisions
        self.training_vectors = None if decisions.distance is None else TrainingVectors.load(folder)
        self.accelerator = make_accelerator()
        device = self.accelerator.device
        require_precision(resolve_precision(config, device))
        self.model = model_to_device(self.task.model(folder), device)
        cast_weights(self.model, precision_on(self.task, device))

    @property
    def labels(self) -> LabelSet:
        """The label names in the order of the classes."""
        return self.task.state.labels

    def predict(
        self, inputs: Sequence[Given] | Any, *, columns: Mapping[str, str] | None = None
    ) -> list[Prediction]:
        """Predict each input, in order. The ``id`` of a prediction is the index of its input.

        The prediction of a blank text has the label None.

        Args:
            inputs: A list or a column of a data frame: a text each; (text, text) for a model of
                pairs; a text or a list of words for a model of words. A text is split into words,
                and its prediction has their character offsets. For a model of relations, the
                predictions of a model of spans. Or examples with ids that differ. Or rows of
                columns, as for training: a data frame of pandas or polars, a ``datasets.Dataset``,
                a list of dicts, or a dict of columns. A model trained with ``--context`` reads
                consecutive rows of one ``document`` in their context.
            columns: Columns of rows by role, if they have other names than in training and no usual
                names.

        Returns:
            A prediction for each input: a ``TextPrediction``, ``TokenPrediction``,
            ``SpanPrediction``, ``RelationPrediction``, ``SentencePrediction`` or
            ``MaskedPrediction``, by the task.

        Raises:
            UserError: An input is not what the model reads.

        Examples:
            >>> model = finetune.load("runs/tags")  # doctest: +SKIP
            >>> (found,) = model.predict(["Maria Keller flew to Oslo."])  # doctest: +SKIP
            >>> found.tags  # doctest: +SKIP
            ('B-PER', 'I-PER', 'O', 'O', 'B-LOC', 'O')
        """
        return list(self.stream(self.examples(inputs, columns=columns)))

    def explain(
        self, inputs: Sequence[Given] | Any, *, columns: Mapping[str, str] | None = None
    ) -> list[list[Explanation]]:
        """Explain the prediction for each input: the score of each word for each predicted label.

        Tags are explained without O. A text without a label has no explanation.

        Args:
            inputs: As for ``predict``.
            columns: As for ``predict``.

        Raises:
            UserError: The model cannot be explained, or an input is not what it reads.

        Examples:
            >>> ((found,),) = finetune.load("runs/x").explain(["What a film."])  # doctest: +SKIP
            >>> max(zip(found.scores, found.words.words))  # doctest: +SKIP
            (0.71, 'film')
        """
        require_explained(self.task)
        examples = self.examples(inputs, columns=columns)
        pairs = zip(examples, self.predict(examples), strict=True)
        device = self.accelerator.device
        return [explain(*pair, self.task, self.model, device) for pair in pairs]

    def examples(
        self, inputs: Sequence[Given] | Any, *, columns: Mapping[str, str] | None = None
    ) -> list[Example]:
        """Make examples of inputs; see ``predict``."""
        if isinstance(inputs, str):
            raise UserError(f"predict takes a list of inputs: write predict([{inputs!r:.40}]).")
        if (table := input_table(inputs)) is not None:
            return list(self.task.state.read(table, columns=columns))
        if columns:
            raise UserError(
                f"columns={columns!r:.60} apply to rows, such as a data frame: leave it out."
            )
        return list(self._examples(input_list(inputs, "predict")))

    def stream(
        self,
        inputs: Iterable[Given],
        *,
        chunk: int | None = None,
        skip: int = 0,
        counts: Counter[str] | None = None,
        reporter: Reporter | None = None,
    ) -> Generator[Prediction]:
        """Predict a stream of inputs, in order and in bounded memory.

        Close the generator, which ends the thread that reads and encodes the next inputs.

        Args:
            inputs: As for ``predict``, or examples, of which the ids of neighboring ones differ.
                Sentences whose examples name a document are read in context if the model was
                trained with ``--context``.
            chunk: Number of inputs of each process to predict at a time.
            skip: Number of first inputs that are read, as context, and not predicted.
            counts: Gets the number of texts or words that were ``cut``, of examples
                ``without document`` for a model that reads context, and of ``blank`` texts, whose
                predictions have no label.
            reporter: Shows the progress in batches.
        """
        inputs = input_list(inputs, "stream")
        require_count("skip", skip, 0)
        require_count("chunk", 1 if chunk is None else chunk)
        task, index = self.task, self.accelerator.process_index
        num_processes = self.accelerator.num_processes
        counts = Counter() if counts is None else counts
        examples: Iterator[Any] = self._examples(inputs)
        if reach := task.state.context_words:
            examples = surrounded(examples, reach, keep=True)
        size = (chunk or CHUNK) * num_processes
        of_all = chunks(islice(examples, skip, None), size)
        if not (first := next(of_all, None)):
            return
        shards = (items[index::num_processes] for items in chain([first], of_all))
        ready = ((shard, task.encode(shard)) for shard in shards)
        # a thread takes longer to start than a few examples to encode
        prepared = ready if len(first) < size else ahead(ready, most=1)
        options: dict[str, Any] = {"device": self.accelerator.device, "reporter": reporter}
        with contextlib.closing(prepared):
            for shard, encoded in prepared:
                predicted = predict(task, self.model, shard, encoded=encoded, **options)
                by_id = {prediction.id: prediction for prediction in predicted}
                if len(by_id) < len(shard):
                    raise UserError("neighboring examples have the same id: number them.")
                decided = self._decide(shard, [by_id[example.id] for example in shard])
                alone = sum(example.document is None for example in shard) if reach else 0
                blank = sum(task.state.of_blank(example) is not None for example in shard)
                numbers = {"cut": encoded.num_cut, "blank": blank, "without document": alone}
                by_process = gather_object([(decided, numbers)])
                for _, of_process in by_process:
                    counts.update(of_process)
                for turn in zip_longest(*(predictions for predictions, _ in by_process)):
                    yield from (prediction for prediction in turn if prediction is not None)

    def _decide(self, examples: Sequence[Any], predictions: list[Prediction]) -> list[Prediction]:
        if self.decisions == Decisions():
            return predictions
        distances: dict[int, float] = {}
        if self.training_vectors is not None:
            vectors = decision_vectors(self.task, self.model, examples, self.accelerator)
            has_vector: Any = vectors.any(axis=1)
            ids = [example.id for example, has in zip(examples, has_vector, strict=True) if has]
            if ids:
                values = self.training_vectors.distances(vectors[has_vector])
                distances = dict(zip(ids, values.tolist(), strict=True))
        return [self.decisions.apply(p, distances.get(p.id)) for p in predictions]

    def _examples(self, inputs: Iterable[Given]) -> Iterator[Example]:
        state = self.task.state
        for index, item in enumerate(inputs):
            if isinstance(item, TextExample | TokenExample):
                yield state.checked(item)
            elif isinstance(item, SpanPrediction | TokenPrediction):
                if not self.task.description.words:
                    raise UserError(f"input {index}: predicted spans are for models of relations.")
                parts = item.spans, None, None, item.text, item.offsets
                yield TokenExample(index, item.words, *parts, where=f"input {index}")
            else:
                yield state.example(index, item)


load = Predictor
"""Load the best model of a run folder, or the model of a model folder, for prediction."""


_LOCK = threading.Lock()
"""Held while a model is loaded or predicts: engines may call from several threads."""


class BatchPredictor:
    """Predicts batches of rows: a function that engines send to their workers.

    It is pickled without the model, which each worker process loads once. A batch is a dict of
    columns (lists or arrays), a data frame of pandas, or a table of pyarrow. The result is of the
    same kind: the columns of the batch and the columns that ``finetune predict --out x.parquet``
    writes, without the row number ``id``. A column of the batch with the name of a field of the
    prediction becomes ``input_NAME``, that of a gold label ``gold``. A batch without rows is
    returned as it is.

    Args:
        run: A run folder, the folder of a model or its hub id, which every worker can read.
        columns: Columns by role, if they have other names than in training and no usual names.
        options: The other arguments of ``Predictor``.

    Examples:
        >>> predict = BatchPredictor("runs/x")  # doctest: +SKIP
        >>> predict({"text": ["What a film."]})["label"]  # doctest: +SKIP
        ['positive']
    """

    def __init__(
        self, run: str | Path, *, columns: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.run, self.columns, self.options = str(run), columns, options

    def __call__(self, batch: Any) -> Any:
        """Add its predictions to a batch.

        Raises:
            UserError: The batch is of another type, or a row is not what the model reads.
        """
        is_table = is_from("pandas", "DataFrame", batch) or is_from("pyarrow", "Table", batch)
        if not (is_table or isinstance(batch, Mapping)):
            raise UserError(
                "a batch is a dict of columns, a data frame of pandas or a table of pyarrow, not "
                f"{type(batch).__name__}."
            )
        if not (size := len(batch) if is_table else len(next(iter(batch.values()), ()))):
            return batch
        table, rows = input_table(batch), dict[int, Mapping[str, Any]]()
        assert table is not None
        with _LOCK:
            model = _loaded(pickle.dumps((self.run, self.options)))
            examples = list(model.task.state.read(table, columns=self.columns, rows=rows))
            predicted = with_same_columns(item.to_dict() for item in model.stream(examples))
        if len(predicted) != size:
            raise UserError(
                f"a batch of {quantity(size, 'row')} holds {quantity(len(predicted), 'example')}: "
                "give one example in each row."
            )
        columns = {name: [row[name] for row in predicted] for name in predicted[0] if name != "id"}
        if columns.get("words") == [row.get("words") for row in rows.values()]:
            del columns["words"]  # the words of the batch
        return _joined(batch, columns)


@functools.cache
def _loaded(pickled: bytes) -> Predictor:
    run, options = pickle.loads(pickled)
    return Predictor(run, **options)


def _joined(batch: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    is_arrow, is_frame = is_from("pyarrow", "Table", batch), is_from("pandas", "DataFrame", batch)
    names = {name: name for name in (batch.column_names if is_arrow else batch)}
    # the id of the prediction takes no name
    joined = with_columns({"id": names.get("id"), **columns}, names)
    renamed = {name: new for new, name in joined.items() if new not in columns and name in names}
    kept = {renamed[name]: batch[name] for name in names}
    if is_arrow:
        import pyarrow

        # a column without values has no type, so that tables of batches can be concatenated
        return pyarrow.table(kept | {name: pyarrow.array(new) for name, new in columns.items()})
    as_array = is_frame or all(isinstance(values, np.ndarray) for values in kept.values())
    added = {name: _array(new) if as_array else list(new) for name, new in columns.items()}
    return batch.rename(columns=renamed).assign(**added) if is_frame else kept | added


def _array(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    if values and all(isinstance(value, bool | int | float) for value in values):
        return np.array(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
