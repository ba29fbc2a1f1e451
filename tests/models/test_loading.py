"""Loading models: what is recorded of where they came from."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from finetune.models.heads.token_classification import TokenClassifier
from finetune.models.loading import load_config
from finetune.types import UserError
from tests.tiny import save_tiny_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_hub_model_tells_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From a cache as the hub's client leaves it."""
    model = tmp_path / "hub" / "models--someone--small"
    save_tiny_checkpoint(model / "snapshots" / COMMIT, "bert")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    head = TokenClassifier.from_pretrained("someone/small", labels=["a", "b"])
    assert head.revision == COMMIT
    head.save_pretrained(tmp_path / "saved")
    assert COMMIT not in (tmp_path / "saved" / "config.json").read_text(encoding="utf-8")
    assert TokenClassifier.from_pretrained(str(tmp_path / "saved"), labels=None).revision is None


def test_a_name_is_not_its_own_suggestion() -> None:
    for name in ("roberta-base", "FacebookAI/roberta-base"):
        with pytest.raises(UserError, match="HF_HUB_OFFLINE is set") as caught:
            load_config(name)
        assert "Perhaps" not in str(caught.value)
    with pytest.raises(UserError, match="Perhaps you meant 'roberta-base'"):
        load_config("roberta-bse")
