"""What every head keeps: batches change nothing, its names, its files, and what it refuses."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from finetune.models.dropout import fast_dropout
from finetune.preprocessing.batching import micro_batches, pack
from tests import fixtures as fx
from tests import tiny
from tests.models.heads import (
    HEAD_TYPES,
    OF_FAMILIES,
    OWN,
    expected_logits,
    head_of,
    logits_of,
    sequences_of,
)
from tests.models.parity import CLOSE

OF_OWN = [(tiny.FAMILIES[2 * number], head_type) for number, head_type in enumerate(OWN)]
"""Our own heads read vectors of any family."""
every_head = pytest.mark.parametrize(("family", "head_type"), OF_FAMILIES + OF_OWN)
each_head = pytest.mark.parametrize(
    ("family", "head_type"), [("bert", name) for name in HEAD_TYPES if name not in OWN] + OF_OWN
)
every_head_type = pytest.mark.parametrize("head_type", HEAD_TYPES)


def model_of(head: Any) -> Any:
    """Return the model of transformers inside a head."""
    return head.tagger.model if hasattr(head, "tagger") else head.model


@every_head
@torch.no_grad()
def test_batches_change_nothing(family: str, head_type: str) -> None:
    """Each sequence alone, micro-batches, and rows with padding."""
    head = head_of(head_type, family)
    assert head.encoder.packed == (family in tiny.PACKED)
    made = sequences_of(head_type, head)
    whole = logits_of(head(pack(made)))
    size = max(1.0, float(whole.abs().max()))
    close = {"rtol": 0, "atol": size * CLOSE.get(family, 1e-12)}
    alone = [logits_of(head(pack([each]))) for each in made]
    torch.testing.assert_close(torch.cat(alone), whole, **close)
    groups = micro_batches(made, 40)
    found = torch.cat([logits_of(head(pack(group))) for group in groups])
    order = [made.index(each) for group in groups for each in group]
    torch.testing.assert_close(found, torch.cat([alone[index] for index in order]), **close)
    with fx.padded_rows():
        padded = head_of(head_type, family)
    padded.load_state_dict(head.state_dict())
    assert not padded.encoder.packed
    torch.testing.assert_close(logits_of(padded(pack(made))), whole, **close)


@each_head
def test_passes_of_one_batch_have_different_masks(family: str, head_type: str) -> None:
    """As R-Drop and SimCSE want; an equal random state gives equal masks."""
    head = head_of(head_type, family, dropout=0.3).train()
    batch, found = pack(sequences_of(head_type, head)), []
    with fast_dropout(head), torch.no_grad():
        for seed in (1, None, 1):
            if seed is not None:
                torch.manual_seed(seed)
            found.append(logits_of(head(batch)))
    assert torch.equal(found[0], found[2])
    if any(isinstance(module, torch.nn.Dropout) and module.p for module in head.modules()):
        assert not torch.equal(found[0], found[1])


@every_head
def test_depth_and_head_by_name(family: str, head_type: str) -> None:
    head = head_of(head_type, family)
    depths = {name: head.depth_of(name) for name, _ in head.named_parameters()}
    top, names = head.encoder.top_depth, set(tiny.head_parameters(head))
    assert set(range(top + 1)) == set(depths.values())
    assert names and all(depths[name] == top for name in names)
    assert not any(depth for name, depth in depths.items() if "embeddings" in name)
    assert not any("embeddings" in name or ".layer." in name for name in names)
    is_own = HEAD_TYPES[head_type].auto_class is None and head_type != "crf"
    assert not (is_own and any("pooler" in name for name in depths))
    below = {name for name in depths if depths[name] == top} - names
    assert all("norm" in name.lower() for name in below)
    assert len(head.state_dict()) == len({id(p) for p in head.state_dict(keep_vars=True).values()})


@every_head_type
def test_encoder_follows_its_head(head_type: str) -> None:
    head = head_of(head_type)
    assert head.encoder.freeze("all") > 0
    trained = {name for name, p in head.named_parameters() if p.requires_grad}
    assert trained == set(tiny.head_parameters(head))
    moved = copy.deepcopy(head).float()
    assert moved.encoder.model is model_of(moved).base_model
    assert next(moved.encoder.parameters()).dtype == torch.float32
    assert next(head.encoder.parameters()).dtype == torch.float64
    batch, pickled = pack(sequences_of(head_type, head)), pickle.loads(pickle.dumps(head))
    assert torch.equal(logits_of(pickled(batch)), logits_of(head(batch)))


def trained(head_type: str, source: Path, **more: Any) -> Any:
    """A head to train on a checkpoint."""
    case = HEAD_TYPES[head_type]
    settings = case.settings | more
    return case.head.from_pretrained(str(source), labels=case.labels, **settings)


@each_head
@torch.no_grad()
def test_train_from_checkpoint_save_and_load(
    family: str, head_type: str, tmp_path: Path, warnings_logged: list[str]
) -> None:
    """The folder stands alone, also for transformers: nothing of the checkpoint is needed."""
    source, saved = shutil.copytree(fx.checkpoint(family), tmp_path / "x"), tmp_path / "saved"
    pretrained = AutoModel.from_pretrained(source)
    warnings_logged.clear()
    head = trained(head_type, source).eval()
    assert not warnings_logged, "a new head is not worth a warning"
    for name, weight in head.encoder.model.named_parameters():
        if "pooler" not in name:
            assert torch.equal(weight, pretrained.get_parameter(name)), "the encoder is pretrained"
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    assert tuple(head.labels) == HEAD_TYPES[head_type].labels
    batch = pack(sequences_of(head_type, head))
    logits = logits_of(head(batch))
    head.save_pretrained(saved)
    assert torch.equal(logits_of(head(batch)), logits), "saving changes nothing"
    shutil.rmtree(source)
    # weights of files lie elsewhere in memory, which products of a few rows can show
    close = {"rtol": 0, "atol": 1e-5 if family in tiny.PADDED or head_type == "choice" else 1e-7}
    own = head_type in OWN
    for load in (type(head).from_pretrained, *([AutoModel.from_pretrained] if own else [])):
        again = load(saved)
        assert type(again) is type(head) and again.encoder.packed == head.encoder.packed
        assert all(torch.equal(again.state_dict()[n], w) for n, w in head.state_dict().items())
        torch.testing.assert_close(logits_of(again.eval()(batch)), logits, **close)
    if not own:
        plain = HEAD_TYPES[head_type].auto_class.from_pretrained(saved).eval()
        expected = expected_logits(head_type, plain, sequences_of(head_type, head))
        torch.testing.assert_close(expected, logits, rtol=0, atol=1e-4)
        assert plain.config._attn_implementation in ("sdpa", "eager")
    files = {path.name: path for path in saved.iterdir()}
    usual = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files.keys() == usual
    for name in ("config.json", "tokenizer_config.json"):
        text = files[name].read_text()
        assert "finetune" not in text and str(tmp_path) not in text
    names = json.loads(files["config.json"].read_text())["id2label"]
    assert names == {str(index): name for index, name in enumerate(HEAD_TYPES[head_type].labels)}
    assert not warnings_logged


@every_head_type
def test_damaged_folders_are_refused(head_type: str, tmp_path: Path) -> None:
    source, saved = fx.checkpoint(), tmp_path / "saved"
    head = trained(head_type, source)
    head.save_pretrained(saved)

    def message(folder: Path = saved) -> str:
        with pytest.raises(ValueError) as caught:
            type(head).from_pretrained(folder)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    path = saved / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b""):
        path.write_bytes(damaged)
        assert "cannot be loaded" in message()
    name = next(n for n in reversed(weights) if "embeddings" not in n and ".layer." not in n)
    save_file({n: w for n, w in weights.items() if n != name}, path, {"format": "pt"})
    said = "no trained head" if HEAD_TYPES[head_type].auto_class else "1 weight missing (first: "
    assert said in message()
    path.unlink()
    assert "cannot be loaded" in message()
    assert "neither a local folder nor an id of the model hub" in message(tmp_path / "nothing")
    if head_type in OWN:
        with pytest.raises(ValueError, match=r"needs the configuration|has no encoder"):
            type(head)(type(head).config_class())
