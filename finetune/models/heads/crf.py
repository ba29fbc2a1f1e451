"""CrfTagger: a tagger with a linear-chain conditional random field over the words of a sentence.

p(y | x) = exp(s(y)) / Z, where s(y) sums the score of each word's tag (its emission), of each
transition from one tag to the next, and of the first and last tags (Lafferty, McCallum & Pereira,
2001; Jurafsky & Martin, *Speech and Language Processing*, "Conditional Random Fields"; with
emissions of a neural network: Lample et al., 2016). The forward algorithm computes Z,
forward-backward its gradient, all in log space and at least float32; prediction
(``finetune.tasks.tag_decoding``) needs neither torch nor gradients.

W words of N sequences are laid end to end; sequences have ``num_words`` each (0 is legal). Inside,
words are sorted by position: a step of the recursions takes the words at one position of all
sequences that are long enough, and nothing is padded. ``begins`` and ``ends`` [N] mark sequences
that begin and end a sentence, so that a window inside one does not count start or end scores; None
marks all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AutoConfig, PreTrainedConfig

from finetune.data.tag_schemes import legal_transitions
from finetune.models.encoder import Encoder
from finetune.models.heads.base import EncoderModel
from finetune.models.heads.pretrained import TokenClassifier
from finetune.models.heads.task_models import load_task_model
from finetune.runtime.device import all_to_device
from finetune.types import IGNORED, Batch, UserError


class CrfScores(NamedTuple):
    """The scores that tag sequences depend on; -inf for illegal transitions."""

    emissions: Tensor  # [W, C]
    start: Tensor  # [C], of the first tag of a sentence
    end: Tensor  # [C], of its last tag
    transitions: Tensor  # [C, C], from the tag of the row to the tag of the column


class LinearChainCrf(nn.Module):
    """Learned start, end and transition scores of tags; -inf for those that the scheme forbids."""

    may_start: Tensor
    may_end: Tensor
    may_follow: Tensor

    def __init__(self, tags: Sequence[str], scheme: str | None) -> None:
        """Make a CRF over tags; with scheme None all transitions are legal."""
        super().__init__()
        num_tags = len(tags)
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))
        names = ("may_start", "may_end", "may_follow")
        for name, legal in zip(names, legal_transitions(tags, scheme), strict=True):
            self.register_buffer(name, torch.tensor(legal))

    def forward(self, emissions: Tensor) -> CrfScores:
        """Compute all scores for words with emissions [W, C]."""
        return CrfScores(
            emissions,
            self.start.masked_fill(~self.may_start, -torch.inf),
            self.end.masked_fill(~self.may_end, -torch.inf),
            self.transitions.masked_fill(~self.may_follow, -torch.inf),
        )


class CrfTaggerConfig(PreTrainedConfig):
    """The whole configuration of the ``tagger`` inside, and the tag ``scheme`` (None for none)."""

    model_type = "crf-tagger"

    tagger: dict[str, Any] | None = None
    scheme: str | None = None

    def require_legal(self) -> None:
        """Raise ``UserError`` if there is no configuration inside."""
        if self.tagger is None:
            raise UserError(f"a {self.model_type} needs the configuration of its tagger")


class CrfTagger(EncoderModel):
    """A tagger whose tags depend on each other: emissions of words and scores of transitions.

    ``from_pretrained`` loads a trained model; with ``labels`` it makes one to train, with the
    ``scheme`` of the tags, such as ``"BIO"``; None makes all transitions legal. The
    ``TokenClassifier`` in ``tagger`` computes emissions, ``chain_loss`` is the loss, and
    ``finetune.tasks.tag_decoding`` decodes.

    Examples:
        >>> from finetune import CrfTagger, SubwordTokenizer
        >>> load = SubwordTokenizer.from_pretrained
        >>> tokenizer = load("roberta-base", words=True)  # doctest: +SKIP
        >>> tags, load = ["O", "B-PER", "I-PER"], CrfTagger.from_pretrained
        >>> model = load("roberta-base", labels=tags, scheme="BIO")  # doctest: +SKIP
        >>> model(tokenizer([["Anna", "slept"]])).emissions.shape  # doctest: +SKIP
        torch.Size([2, 3])
    """

    config_class = CrfTaggerConfig
    base_model_prefix = ""
    separate_learning_rates: ClassVar[Mapping[str, float]] = {"crf": 0.05}
    """0.05 because transitions start at 0 and have few steps: on CoNLL-2003 it beat lower rates
    after 126 steps, and equaled 0.01 after 375."""

    def add_layers(self, width: int) -> None:
        """Add the layers of the head (``EncoderModel.add_layers``)."""
        self.encoder_prefix = f"tagger.{self.tagger.encoder_prefix}"
        self.crf = LinearChainCrf(self.labels, self.config.scheme)

    def _hold(self, model: Any) -> Encoder:
        if model is None:
            auto_class: Any = TokenClassifier.auto_class
            model = auto_class.from_config(AutoConfig.for_model(**self.config.tagger))
        self.tagger = TokenClassifier(model)
        return self.tagger.encoder

    @classmethod
    def _starting(
        cls, name: str, labels: Sequence[str], settings: Mapping[str, Any], **options: Any
    ) -> tuple[CrfTaggerConfig, Any]:
        model = load_task_model(TokenClassifier.auto_class, name, labels=labels, **options)
        inner = model.config.to_dict()
        for stale in ("_name_or_path", "architectures"):  # they describe the checkpoint
            inner.pop(stale, None)
        tags = {key: inner[key] for key in ("id2label", "label2id")}
        return CrfTaggerConfig(tagger=inner, **settings, **tags), model

    def forward(self, batch: Batch) -> CrfScores:
        """Compute emissions [W, C] for the words of a batch, with the transition scores."""
        scores: CrfScores = self.crf(self.tagger(batch))
        return scores

    def read(self, hidden: Tensor, batch: Batch) -> CrfScores:
        """Compute the scores of a batch, given its hidden states [T, H] (``Head.read``)."""
        scores: CrfScores = self.crf(self.tagger.read(hidden, batch))
        return scores


def chain_loss(scores: CrfScores, batch: Batch) -> tuple[Tensor, Tensor]:
    """Compute the summed negative log-likelihood of the gold, and the number of words with a tag.

    The likelihood is marginal over the tags of words whose tag is unknown (Tsuboi et al., 2008).
    """
    emissions = scores.emissions
    scores = scores._replace(emissions=emissions - emissions.detach().amax(-1, keepdim=True))
    tags, allowed = batch.targets["tag"], batch.targets.get("allowed")
    layout = (batch.num_words, batch.targets["begins"], batch.targets["ends"])
    if allowed is None:
        gold = path_score(scores, tags, *layout)
    else:
        emissions = scores.emissions.masked_fill(~allowed, -torch.inf)
        gold = log_partition(scores._replace(emissions=emissions), *layout)
    return (log_partition(scores, *layout) - gold).sum(), (tags != IGNORED).sum()


def log_partition(
    scores: CrfScores,
    num_words: Sequence[int],
    begins: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """Compute log Z of each sequence, [N]: 0 without words, -inf if no tag sequence is legal."""
    scores, order = _prepare(scores, num_words)
    emissions = scores.emissions[order.words]
    starts = order.edge_scores(scores.start, begins)
    end_scores = order.edge_scores(scores.end, ends)
    inputs = (emissions, starts, scores.transitions, end_scores, order)
    partitions = _LogPartition.apply(*inputs)  # type: ignore[no-untyped-call]
    return emissions.new_zeros(order.num_sequences).index_copy(0, order.sequences, partitions)


def path_score(
    scores: CrfScores,
    tags: Tensor,
    num_words: Sequence[int],
    begins: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """Compute the score s(y) of each sequence, [N], for the tags [W] of its words."""
    scores, order = _prepare(scores, num_words)
    tags = tags[order.words]
    words = scores.emissions[order.words].gather(1, tags[:, None])[:, 0]
    steps = scores.transitions[tags[order.previous], tags[order.num_first :]]
    start = order.edge_scores(scores.start, begins).gather(1, tags[: order.num_first, None])
    end = order.edge_scores(scores.end, ends).gather(1, tags[order.last, None])
    path_scores = (start + end)[:, 0].index_add(0, order.sequence, words)
    path_scores = path_scores.index_add(0, order.sequence[order.num_first :], steps)
    return path_scores.new_zeros(order.num_sequences).index_copy(0, order.sequences, path_scores)


class WordOrder:
    """The words of N sequences sorted by position, longest sequence first.

    There are ``sizes`` words at each position; ``sequences`` [num_first] are sequences with words.
    Sorted words [W] have the given rows ``words`` and are in ``sequences[sequence]``; ``mirror`` is
    the sorted row of the word equally far from the other end. ``previous`` [W - num_first] and
    ``last`` [num_first] are the sorted rows of words before all but first words and of last words.
    """

    def __init__(self, num_words: Sequence[int], device: torch.device) -> None:
        word_counts = torch.tensor(num_words, dtype=torch.long)
        lengths, sequences = word_counts.sort(descending=True, stable=True)  # [N]
        inside = torch.arange(max([1, *num_words]))[:, None] < lengths  # [positions, N]
        position, sequence = inside.nonzero(as_tuple=True)  # of each sorted word [W]
        sizes, begins = inside.sum(1), (word_counts.cumsum(0) - word_counts)[sequences]
        offsets = sizes.cumsum(0) - sizes
        self.sizes: list[int] = sizes.tolist()
        self.num_sequences, self.num_first = len(num_words), self.sizes[0]
        first = torch.arange(self.num_first)
        self.words, self.sequence, self.previous, self.last, self.mirror, self.sequences = (
            all_to_device(
                [
                    begins[sequence] + position,
                    sequence,
                    (offsets[position - 1] + sequence)[self.num_first :],
                    offsets[lengths[: self.num_first] - 1] + first,
                    offsets[lengths[sequence] - 1 - position] + sequence,
                    sequences[: self.num_first],
                ],
                device,
            )
        )

    def edge_scores(self, scores: Tensor, counted: Tensor | None) -> Tensor:
        """Start or end scores [C] for each sequence with words; 0 if not ``counted``."""
        rows = scores.expand(self.num_first, -1)
        return rows if counted is None else rows.where(counted[self.sequences, None], 0.0)


@functools.lru_cache(maxsize=2)
def _word_order(num_words: tuple[int, ...], device: torch.device) -> WordOrder:
    with torch.inference_mode(False):  # whose tensors no later training could read
        return WordOrder(num_words, device)  # all sums over a batch share one


def _prepare(scores: CrfScores, num_words: Sequence[int]) -> tuple[CrfScores, WordOrder]:
    order = _word_order(tuple(num_words), scores.emissions.device)
    assert len(order.words) == len(scores.emissions), "words and emissions do not match"
    dtype = torch.promote_types(scores.emissions.dtype, torch.float32)
    dtype = torch.promote_types(scores.transitions.dtype, dtype)
    wide = CrfScores(*(score.to(dtype) for score in scores))
    return wide, order


def _messages(
    emissions: Tensor, starts: Tensor, transitions: Tensor, ends: Tensor, order: WordOrder
) -> tuple[Tensor, Tensor]:
    """Log sums over all tag sequences before and after each word [W, C], without its emission."""
    both = torch.stack([emissions, emissions[order.mirror]])  # [2, W, C]
    steps = torch.stack([transitions, transitions.T])[:, None]  # [2, 1, C, C]
    messages = [torch.stack([starts, ends])]  # [2, n, C]
    columns = torch.split(both, order.sizes, 1)
    for column, size in zip(columns, order.sizes[1:], strict=False):
        states = (messages[-1] + column)[:, :size]  # of sequences that continue
        messages.append((states[..., None] + steps).logsumexp(2))
    before, after = torch.cat(messages, 1)
    return before, after[order.mirror]


class _LogPartition(torch.autograd.Function):
    """log Z [n] from sorted emissions; its gradient is the expected counts, by forward-backward.

    The backward pass is written out, as autograd's graph of the recursion costs more than the
    recursion, and gives NaN for a sum in which every term is -inf.
    """

    @staticmethod
    def forward(
        ctx: Any,
        emissions: Tensor,
        starts: Tensor,
        transitions: Tensor,
        ends: Tensor,
        order: WordOrder,
    ) -> Tensor:
        before, after = _messages(emissions, starts, transitions, ends, order)
        begun, ended = before + emissions, after + emissions
        log_z = (begun[order.last] + ends).logsumexp(-1)
        ctx.save_for_backward(begun, transitions, after, ended, log_z)
        ctx.order = order
        return log_z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        begun, transitions, after, ended, log_z = ctx.saved_tensors
        order: WordOrder = ctx.order
        words = (begun + after - log_z[order.sequence, None]).exp()  # [W, C]
        words *= gradient[order.sequence, None]
        later = slice(order.num_first, None)
        sequence = order.sequence[later]
        steps = begun[order.previous][:, :, None] + transitions
        steps += (ended[later] - log_z[sequence, None])[:, None]  # [W - n, C, C]
        steps = steps.exp_().mul_(gradient[sequence, None, None]).sum(0)  # [C, C]
        return words, words[: order.num_first], steps, words[order.last], None
