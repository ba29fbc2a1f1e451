"""The model hub where there is no network: straight to the cache, without minutes of retries."""

from __future__ import annotations

import contextlib
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def cache_without_network(*modules: Any) -> Iterator[None]:
    """Within, read from the cache at once where the hub's name does not resolve.

    The hub's client would first try again five times, which takes 24 seconds. ``modules`` are
    libraries that keep a switch ``HF_HUB_OFFLINE`` of their own beside the hub client's. With a
    proxy names are the proxy's business.
    """
    from huggingface_hub import constants

    modules = (constants, *modules)
    before = [module.HF_HUB_OFFLINE for module in modules]
    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname or ""
    try:
        if not (constants.HF_HUB_OFFLINE or urllib.request.getproxies()):
            socket.getaddrinfo(host, None)
    except OSError:
        for module in modules:
            module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
