"""`finetune serve`."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import logging
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.output import quiet_libraries, show
from finetune.deployment.serving.limits import Limits
from finetune.types import UserError, install_command

MAX_DRAIN = 3600
"""Largest value of --drain."""
KILL_SECONDS = 15
"""Further seconds for workers to end before they are killed."""
STOP_SECONDS = 30
"""Seconds for the requests under way after the signal to stop."""


@dataclass(frozen=True, kw_only=True)
class Serve(Limits, Command):
    """Serve trained models over HTTP; concurrent requests are predicted in batches.

    Examples:
        finetune serve runs/nli
        finetune serve nli=runs/nli topics=exported --port 8080
    """

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN …")]
    """Folders of runs, of models or of exports (which need no torch), or hub ids (OWNER/NAME,
    OWNER/NAME@REVISION), each with the name of the model before it if you like: name=RUN."""
    host: str = "127.0.0.1"
    """Address to listen on. The default can be reached from this machine only; any other opens the
    server, which has no passwords and no encryption, to the network."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    workers: int = 1
    """Processes that answer requests, on a CPU under Linux. They share the memory of the weights
    and the cores: each has cores divided by workers as threads, unless OMP_NUM_THREADS is set (an
    export has one). Each has a queue of its own. A worker that dies is replaced."""
    drain: float = 0.0
    """Seconds to go on answering after SIGTERM while `/ready` has status 503, so that a load
    balancer sends requests elsewhere before connections are refused."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of the messages on standard error. `info` has a line for each answer: client,
    request, status, time and request id, never texts."""

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then finish the requests under way."""
        needed = ("fastapi", "uvicorn")
        if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
            raise UserError(f"serve needs {' and '.join(missing)}: {install_command(*missing)}.")
        import uvicorn

        from finetune.deployment.serving.app import make_app
        from finetune.deployment.serving.connections import Server, TimedConnection
        from finetune.deployment.serving.models import is_export, load_served
        from finetune.deployment.serving.workers import Workers, require_forks

        if not 0 <= self.drain <= MAX_DRAIN:
            raise UserError(f"--drain {self.drain:g}: must be 0 to {MAX_DRAIN} seconds.")
        folders = named_runs(self.runs)
        with_torch = not all(map(is_export, folders.values()))
        if with_torch:
            quiet_libraries()
        threads = require_forks(self.workers, with_torch) if self.workers != 1 else None
        with contextlib.ExitStack() as stack:
            stack.enter_context(_log_on_standard_error(self.log_level.upper()))
            listener = stack.enter_context(_listen(self.host, self.port))
            models = [
                load_served(name, folder, self, workers=self.workers)
                for name, folder in folders.items()
            ]
            for model in models:
                show(f"{model.name}: {folders[model.name]}, sha256 {model.sha256}", error=True)
            address, port = listener.getsockname()[:2]
            loopback = ipaddress.ip_address(address).is_loopback
            hosts = {self.host.lower(), address, f"[{address}]", "localhost", "127.0.0.1", "[::1]"}
            legal = frozenset(hosts) if loopback else None
            app = make_app(models, hosts=legal, workers=self.workers)
            config = uvicorn.Config(
                app,
                http=TimedConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS,
                backlog=256,
            )
            shown = f"[{address}]" if ":" in address else address
            if not loopback:
                show(f"note: {shown} is open to the network, without passwords.", error=True)
            several = f" with {self.workers} workers" if threads else ""
            show(f"serving {', '.join(folders)} at http://{shown}:{port}/{several} (Ctrl-C stops)")
            server = Server(config, app.state, drain_seconds=self.drain)
            if threads:
                Workers(server, models, listener, self.workers, threads, with_torch).run(
                    self.drain + STOP_SECONDS + KILL_SECONDS
                )
            else:
                for model in models:
                    stack.enter_context(model)
                server.run(sockets=[listener])
        show("stopped", error=True)


@contextlib.contextmanager
def _log_on_standard_error(level: str) -> Iterator[None]:
    """Context in which the server logs; the loggers are as before at its end."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("finetune.serving", "uvicorn.error")]
    before = [(logger.level, logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        # uvicorn tells at info that it starts and stops, which this command prints itself
        quiet = logger.name == "uvicorn.error" and level == "INFO"
        logger.setLevel("WARNING" if quiet else level)
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, values in zip(loggers, before, strict=True):
            logger.setLevel(values[0])
            logger.handlers, logger.propagate = values[1:]


def named_runs(runs: tuple[str, ...]) -> dict[str, str]:
    """Return the folders of models by their names in addresses."""
    if not runs:
        raise UserError("serve needs at least one folder of a run.")
    folders: dict[str, str] = {}
    for run in runs:
        name, equals, folder = run.partition("=")
        if not equals or Path(run).exists():
            path = Path(run if Path(run).exists() else run.partition("@")[0]).resolve()
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
