"""ConditionalMaskedLM: equal to plain padded transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from finetune.embeddings.conditional_lm import NUM_CONDITIONS, ConditionalMaskedLM
from finetune.preprocessing.batching import pack
from tests import fixtures as fx

LINES = [
    "the train from paris was late",
    "anna saw a dog",
    "it rains",
    "",
    "a man is playing a guitar",
    "what a great story about two children in the street !",
    "a red dog",
]
PAIRS = [(LINES[0], LINES[1]), (LINES[1], LINES[2]), (LINES[4], LINES[5]), (LINES[5], LINES[6])]


def prepared(folder: Path, family: str, **changes: Any) -> tuple[Any, Any]:
    """The task, and its training sequences in epoch 2."""
    (folder / "text.txt").write_text("\n".join(LINES), encoding="utf-8")
    settings = {"data": f"train={folder / 'text.txt'}", "model": fx.checkpoint(family), **changes}
    task, data = fx.load(fx.config("cmlm", validation="none", **{"max_length": None, **settings}))
    assert [(row.text, row.pair) for row in data.splits["train"]] == PAIRS
    encoded = task.encode(data.splits["train"], for_training=True)
    return task, task.sequences_of_epoch(encoded.sequences, 1, 2)


def gradients(task: Any, head: ConditionalMaskedLM, sequences: Any) -> Any:
    """The sum of the losses, their number, and the gradient of the sum by weight."""
    batch = pack(sequences, task.collate(sequences))
    loss, count = task.loss(head(batch), batch)
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {n: w.grad.clone() for n, w in head.named_parameters() if w.grad is not None}
    return loss.item(), count.item(), grads


def plain(head: ConditionalMaskedLM, sequences: Any) -> tuple[Tensor, int]:
    """The summed loss by the classes of transformers on padded rows, and the number of targets."""
    model: Any = head.model
    firsts, seconds, tokens = [], [], []
    for pair in sequences:
        _, middle, end = pair.word_starts
        firsts.append(torch.tensor(pair.input_ids[:middle]))
        seconds.append(torch.tensor(pair.input_ids[middle : end - NUM_CONDITIONS]))
        tokens.append((torch.tensor(pair.target["position"]), torch.tensor(pair.target["token"])))
    ids = torch.nn.utils.rnn.pad_sequence(firsts, True, head.encoder.pad_id)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(text)) for text in firsts], True)
    hidden = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    conditions = head.projection(vectors).view(len(firsts), NUM_CONDITIONS, -1)
    embeddings = model.get_input_embeddings()
    rows = [
        torch.cat([embeddings(row), more]) for row, more in zip(seconds, conditions, strict=True)
    ]
    inputs = torch.nn.utils.rnn.pad_sequence(rows, True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], True)
    logits = model(inputs_embeds=inputs, attention_mask=mask).logits
    losses = [
        cross_entropy(row[position], token, reduction="sum")
        for row, (position, token) in zip(logits, tokens, strict=True)
    ]
    return torch.stack(losses).sum(), sum(len(token) for _, token in tokens)


@pytest.mark.parametrize("family", ["bert", "bert padded", "roberta", "deberta-v2", "modernbert"])
def test_gradient_of_plain_transformers(tmp_path: Path, family: str) -> None:
    family, _, is_padded = family.partition(" ")
    task, sequences = prepared(tmp_path, family)
    with fx.padded_rows(bool(is_padded)):
        head = ConditionalMaskedLM(task.model().model).double().eval()
    loss, number, grads = gradients(task, head, sequences)
    head.zero_grad()
    expected, count = plain(head, sequences)
    expected.backward()  # type: ignore[no-untyped-call]
    assert number == count and loss == pytest.approx(expected.item(), rel=1e-12)
    for name, weight in head.named_parameters():
        gradient = grads.pop(name, torch.zeros_like(weight))
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-8, atol=1e-10, msg=name)
    assert not grads


def test_masks_and_lengths(tmp_path: Path) -> None:
    task, sequences = prepared(tmp_path, "bert", max_length=NUM_CONDITIONS + 7)
    tokenizer = task.tokenizer.tokenizer
    for pair, (first, second) in zip(sequences, PAIRS, strict=True):
        _, middle, end = pair.word_starts
        end -= NUM_CONDITIONS
        ids = pair.input_ids[middle:end]
        assert pair.input_ids[:middle] == tokenizer(first)["input_ids"]
        for position, token in zip(pair.target["position"], pair.target["token"], strict=True):
            ids[position] = token
        assert end - middle <= 7 and ids[-1] == tokenizer.sep_token_id
        tokens = tokenizer(second)["input_ids"]
        assert ids[:-1] == tokens[: len(ids) - 1]
        assert len(pair.target["token"]) == max(1, round(0.3 * (len(ids) - 2)))
