"""Settings of every test: no network but a hub on the loopback interface, one thread."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.browser import CHROMIUM, DESK, FLAGS
from tests.hub.server import HUB, Hub

os.environ["HF_ENDPOINT"] = HUB.url  # huggingface_hub reads it once, when it is imported
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.pop("HF_TOKEN", None)
os.environ["FINETUNE_CACHE"] = "off"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# One thread: models here are tiny, and threads that wait for each other on a busy machine made
# the contract tests 10 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # nor threads that read a few small weights

import pytest

# A shell that starts the tests with "&" ignores SIGINT, and Python then installs no handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.fsync = lambda _: None  # no machine loses its power here: the disk may write when it likes
gc.disable()  # until the tests are collected: what is imported and collected stays to the end


def pytest_configure(config: pytest.Config) -> None:
    """Import what tests need, but not in the process that only hands them to its workers."""
    if config.getoption("dist", "no") != "no":
        return
    import hypothesis
    import torch
    from transformers.utils.logging import set_verbosity_error

    torch.set_num_threads(1)
    for module in (torch.nn.Linear, torch.nn.Embedding):
        module.reset_parameters = _of_real_weights(module.reset_parameters)
    hypothesis.settings.register_profile("suite", max_examples=15, deadline=None, database=None)
    hypothesis.settings.load_profile("suite")
    set_verbosity_error()  # each change of it clears the caches of all loggers


def _of_real_weights(reset: Callable[[Any], None]) -> Callable[[Any], None]:
    """Weights on the meta device have no values, but torch draws them all the same, in Python."""
    return lambda module: None if module.weight.is_meta else reset(module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, so that the fixtures of a module are made once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of slow tests, unless slow tests are wanted."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text("utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device that is not there."""
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Search only what the tests make for reference cycles, not a million values each time."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.default_generator.manual_seed(0)  # the other devices' seeds would wait in a list


@pytest.fixture(scope="session")
def _fixtures_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests import fixtures

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "fixtures").mkdir(exist_ok=True)
    fixtures.open_folder(folder / "fixtures")
    return fixtures


@pytest.fixture(autouse=True, scope="module")
def _shared_folders_stay_as_they_are(_fixtures_folder: Any) -> Iterator[None]:
    yield
    assert not _fixtures_folder.changed_files(), "write into a copy: shutil.copytree"


@pytest.fixture
def warnings_logged() -> Iterator[list[str]]:
    """The warnings that are logged, also by transformers."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    vars(handler)["emit"] = lambda record: messages.append(record.getMessage())
    root, library = logging.getLogger(), logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.WARNING)
    for logger in (root, library):
        logger.addHandler(handler)
    yield messages
    for logger in (root, library):
        logger.removeHandler(handler)
    library.setLevel(level)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """A function that opens a file. Messages of the page and requests to elsewhere are failures."""
    contexts, troubles = list[Any](), list[str]()

    def open_file(path: Path, **options: Any) -> Any:
        contexts.append(browser.new_context(**{"viewport": DESK} | options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append("a dialog"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("file://", "data:")) or troubles.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert not troubles


@pytest.fixture(scope="session")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    HUB.start(tmp_path_factory.mktemp("hub"))
    return HUB


@pytest.fixture
def hub(running_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub of the session, without faults, with an empty cache and no token.

    Subprocesses find the hub and the cache in their environment.
    """
    import datasets
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    from finetune.runtime.hub import forget_repositories

    without_waits = types.SimpleNamespace(**{**vars(time), "sleep": lambda _: None})
    for module in (file_download, _http):  # they wait a second and longer before each new attempt
        monkeypatch.setattr(module, "time", without_waits)
    home = tmp_path / "hf-home"
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "stored_tokens"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", home / "datasets/downloads")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", home / "modules")
    running_hub.reset()
    forget_repositories()
    yield running_hub
    forget_repositories()


@pytest.fixture
def norms_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """EuroBERT's norms, which round to float32, computed in the type of their input."""
    import torch
    from transformers.models.eurobert.modeling_eurobert import EuroBertRMSNorm

    def forward(self: EuroBertRMSNorm, hidden: torch.Tensor) -> torch.Tensor:
        size = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden * torch.rsqrt(size + self.variance_epsilon)

    monkeypatch.setattr(EuroBertRMSNorm, "forward", forward)
