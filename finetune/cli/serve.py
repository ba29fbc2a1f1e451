"""`finetune serve`."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from finetune.cli.output import quiet_libraries, show
from finetune.serving.limits import Limits
from finetune.types import UserError

STOP_SECONDS = 30
"""Seconds for the requests under way after the signal to stop."""


@dataclass(frozen=True, kw_only=True)
class Serve(Limits):
    """Serve trained models over HTTP; concurrent requests are predicted in batches."""

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN")]
    """Folders of runs or of models, each with the name of the model before it if you like:
    name=RUN."""
    host: str = "127.0.0.1"
    """Address to listen on. The default can be reached from this machine only; any other opens the
    server, which has no passwords and no encryption, to the network."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then finish the requests under way."""
        try:
            import fastapi  # noqa: F401
            import uvicorn
        except ImportError:
            raise UserError(
                "serve needs fastapi and uvicorn: pip install 'finetune[serve]'."
            ) from None
        quiet_libraries()
        from finetune.inference.predictor import Predictor
        from finetune.serving.app import make_app
        from finetune.serving.models import ServedModel

        folders = named_runs(self.runs)
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(_listen(self.host, self.port))
            models = [
                stack.enter_context(ServedModel(name, Predictor(folder), self))
                for name, folder in folders.items()
            ]
            address, port = listener.getsockname()[:2]
            loopback = ipaddress.ip_address(address).is_loopback
            hosts = {self.host.lower(), address, f"[{address}]", "localhost", "127.0.0.1", "[::1]"}
            app = make_app(models, hosts=frozenset(hosts) if loopback else None)
            config = uvicorn.Config(
                app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
                server_header=False, timeout_graceful_shutdown=STOP_SECONDS, backlog=2048,
            )  # fmt: skip
            shown = f"[{address}]" if ":" in address else address
            if not loopback:
                show(f"note: {shown} is open to the network, without passwords.", error=True)
            show(f"serving {', '.join(folders)} at http://{shown}:{port}/ (Ctrl-C stops)")
            _run(uvicorn.Server(config), listener)
        show("stopped", error=True)


def named_runs(runs: tuple[str, ...]) -> dict[str, str]:
    """Return the folders of models by their names in addresses."""
    if not runs:
        raise UserError("serve needs at least one folder of a run.")
    folders: dict[str, str] = {}
    for run in runs:
        name, equals, folder = run.partition("=")
        if not equals or Path(run).exists():
            path = Path(run).resolve()
            name, folder = path.parent.name if path.name == "best" else path.name, run
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise UserError(
                f"{name!r} cannot be the name of a model in an address: write name=RUN with "
                "letters, digits, '.', '_' or '-'."
            )
        if name in folders:
            raise UserError(f"two models are named {name!r}: write name=RUN.")
        folders[name] = folder
    return folders


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= 65_535:
            raise UserError(f"--port {port}: must be 0 to 65535.")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: {error.strerror}.") from None
    # Connections inherit it. Without it a body waits about 40 ms for the receipt of its headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _run(server: Any, listener: socket.socket) -> None:
    """Run a server until a signal. Its own ``run`` would raise the signal again at the end."""

    @contextlib.contextmanager
    def signals() -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, server.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    server.capture_signals = signals
    server.run(sockets=[listener])
