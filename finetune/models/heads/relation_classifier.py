"""RelationClassifier: a label for each pair of marked spans.

Zhong & Chen 2021, "A Frustratingly Easy Approach for Entity and Relation Extraction": markers stand
around both spans, and the hidden states of the two start markers are classified (Baldini Soares et
al. 2019, "Matching the Blanks").
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from finetune.models.heads.base import EncoderModel, EncoderModelConfig
from finetune.types import Batch


class RelationClassifierConfig(EncoderModelConfig):
    """The configuration of a ``RelationClassifier``, which embeds its ``encoder``'s.

    Attributes:
        subject_id: The id of the start marker of a subject.
        dropout: Dropout before the classifier.
        id2label: The labels, without none.
    """

    model_type = "relation-classifier"

    subject_id: int = 0
    dropout: float = 0.1


class RelationClassifier(EncoderModel):
    """Logits of no relation and C labels for each of N pairs of spans, W [h_subject; h_object].

    ``from_pretrained`` loads a trained model; with ``labels``, without one for no relation, it
    makes one to train. Its settings are the attributes of ``RelationClassifierConfig``.

    A sequence of a batch marks one pair; its two "words" (``TokenSequence.word_starts``) begin at
    the start markers of the two spans. The start marker of the subject is the token ``subject_id``.

    Examples:
        >>> from finetune import TokenSequence, pack
        >>> load = RelationClassifier.from_pretrained
        >>> model = load("bert-base-cased", labels=["in"], subject_id=137)  # doctest: +SKIP
        >>> batch = pack([TokenSequence(0, [101, 137, 713, 108, 16, 102], word_starts=[1, 3, 6])])
        >>> model(batch).shape  # no relation and one label  # doctest: +SKIP
        torch.Size([1, 2])
    """

    config_class = RelationClassifierConfig
    config: RelationClassifierConfig

    def add_layers(self, width: int) -> None:
        """Add the layers of the head (``EncoderModel.add_layers``)."""
        self.dropout = nn.Dropout(self.config.dropout)
        self.classifier = nn.Linear(2 * width, len(self.labels) + 1)

    def read(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Compute logits [N, 1 + C] of a batch of N pairs; class 0 is no relation."""
        markers = batch.words.view(-1, 2)  # [N, 2]
        swapped = batch.input_ids[markers[:, 1]] == self.config.subject_id
        markers = torch.where(swapped[:, None], markers.flip(1), markers)
        logits: Tensor = self.classifier(self.dropout(hidden[markers].flatten(1)))
        return logits
