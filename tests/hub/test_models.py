"""Models by hub id: downloads, commits, refusals, faults, and reading the cache without the hub."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from finetune.embeddings.settings import SentenceConfig
from finetune.models.heads.pretrained import TokenClassifier
from finetune.models.heads.sentence_encoder import starting_pooling
from finetune.models.loading import load_config, local_model, model_commit
from finetune.runtime.hub import forget_repositories
from finetune.types import UserError
from tests.hub.server import Hub
from tests.tiny import save_tiny_checkpoint


def message(name: str, revision: str | None = None) -> str:
    forget_repositories()
    with pytest.raises(UserError) as caught:
        local_model(name, revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_is_looked_up_once_and_cached(hub: Hub, encoder: Path, capsys) -> None:
    head = TokenClassifier.from_pretrained("lab/encoder", labels=["a", "b"])
    commit = hub.commit_id(encoder)
    assert head.config._commit_hash == commit == model_commit("lab/encoder")
    assert len(hub.asked("GET /api/models/lab/encoder(/revision/main)?[ ?]")) == 1
    assert not hub.asked("flax_model"), "files of other frameworks are left where they are"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"downloading lab/encoder, commit {commit[:12]}"]
    requests = len(hub.requests)
    forget_repositories()
    TokenClassifier.from_pretrained("lab/encoder", labels=["a", "b"])
    assert len(hub.requests) == requests + 1, "one look-up, and nothing to download"
    assert capsys.readouterr().err == ""


def test_the_pooling_of_a_sentence_encoder_is_kept(fresh_repository: Path) -> None:
    config = SentenceConfig(model="lab/fresh")
    assert starting_pooling(config) == (None, False)
    (fresh_repository / "1_Pooling").mkdir()
    (fresh_repository / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (fresh_repository / "modules.json").write_text('[{"type": "models.Normalize"}]')
    forget_repositories()
    assert starting_pooling(config) == ("cls", True)


def test_revisions(hub: Hub, fresh_repository: Path) -> None:
    first = hub.commit_id(fresh_repository)
    save_tiny_checkpoint(fresh_repository, "bert", seed=1)
    shutil.copytree(fresh_repository, hub.model("lab/fresh", "v1"), dirs_exist_ok=True)
    save_tiny_checkpoint(fresh_repository, "bert", seed=2)
    commits = {
        load_config("lab/fresh")._commit_hash,
        load_config("lab/fresh@v1")._commit_hash,
        load_config("lab/fresh", revision=first)._commit_hash,
    }
    assert len(commits) == 3 and first in commits
    assert local_model("lab/fresh@v1") == local_model("lab/fresh", "v1")
    assert message("lab/fresh", "v3").startswith("model 'lab/fresh' has no revision 'v3'")
    assert "another revision than v2" in message("lab/fresh@v1", "v2")


def test_each_refusal_has_a_sentence(
    hub: Hub, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in = "sign in with `hf auth login`, or set HF_TOKEN"
    assert message("lab/none").startswith("model 'lab/none' is neither a local folder nor on the")
    assert sign_in in message("lab/none")
    hub.gated = {"lab/encoder": {"ana"}}
    assert message("lab/encoder") == (
        f"model 'lab/encoder' is gated: ask for access at {hub.url}/lab/encoder, and {sign_in}."
    )
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not know your token" in message("lab/encoder")
    monkeypatch.setenv("HF_TOKEN", "hf_ana")
    local_model("lab/encoder")
    hub.private = {"lab/encoder"}
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    assert f"or it is private: then {sign_in}" in message("lab/encoder")


def test_a_hub_that_fails_is_not_a_model_that_is_missing(hub: Hub, encoder: Path) -> None:
    hub.fault("/lab/encoder", times=1000, status=500)
    text = message("lab/encoder")
    assert "fails (status 500): try again later" in text
    assert "neither" not in text


@pytest.mark.parametrize("silent", [False, True])
def test_a_hub_that_does_not_answer(
    hub: Hub, encoder: Path, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the connection, or takes it and says nothing."""
    folder = local_model("lab/encoder")
    monkeypatch.setattr("finetune.runtime.hub.TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if not silent:
            listener.close()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        forget_repositories()
        assert local_model("lab/encoder") == folder
        assert "cannot be reached" in message("lab/other")


def test_without_the_hub(
    hub: Hub, encoder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local_model("lab/encoder")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    number = len(hub.requests)
    forget_repositories()
    TokenClassifier.from_pretrained("lab/encoder", labels=["a", "b"])
    assert "HF_HUB_OFFLINE is set, and the cache does not have it at v1" in message(
        "lab/encoder", "v1"
    )
    assert "HF_HUB_OFFLINE is set" in message("lab/other")
    assert len(hub.requests) == number
