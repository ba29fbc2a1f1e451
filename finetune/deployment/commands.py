"""`finetune serve` and `finetune export`."""

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

from finetune.cli.options import Command
from finetune.cli.output import quiet_libraries, show
from finetune.config.options import DATA, Help, argument
from finetune.deployment.batcher import Limits
from finetune.types import UserError, install_command


@dataclass(frozen=True, kw_only=True)
class Serve(Limits, Command):
    """Serve trained models over HTTP; concurrent requests are predicted in batches.

    Examples:
        finetune serve runs/nli
        finetune serve nli=runs/nli topics=exported --port 8080
    """

    runs: Annotated[tuple[str, ...], argument("RUN …")]
    """Folders of runs, of models or of exports (which need no torch), or hub ids (OWNER/NAME,
    OWNER/NAME@REVISION), each with the name of the model before it if you like: name=RUN."""
    host: str = "127.0.0.1"
    """Address to listen on. The default can be reached from this machine only; any other opens the
    server, which has no passwords and no encryption, to the network."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of the messages on standard error. `info` has a line for each answer: client,
    request, status, time and request id, never texts."""

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then finish the requests under way."""
        needed = ("fastapi", "uvicorn", "prometheus_client")
        if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
            raise UserError(f"serve needs {' and '.join(missing)}: {install_command(*missing)}.")
        from finetune.deployment.served_model import is_export, load_served

        folders = named_runs(self.runs)
        if not all(map(is_export, folders.values())):  # which need torch
            quiet_libraries()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_log_on_standard_error(self.log_level.upper()))
            from finetune.deployment.server import make_app, run_server

            listener = stack.enter_context(_listen(self.host, self.port))
            models = [load_served(name, folder, self) for name, folder in folders.items()]
            for model in models:
                show(f"{model.name}: {folders[model.name]}, sha256 {model.sha256}", error=True)
            address, port = listener.getsockname()[:2]
            loopback = ipaddress.ip_address(address).is_loopback
            hosts = {self.host.lower(), address, f"[{address}]", "localhost", "127.0.0.1", "[::1]"}
            app = make_app(models, hosts=frozenset(hosts) if loopback else None)
            shown = f"[{address}]" if ":" in address else address
            if not loopback:
                show(f"note: {shown} is open to the network, without passwords.", error=True)
            show(f"serving {', '.join(folders)} at http://{shown}:{port}/ (Ctrl-C stops)")
            run_server(app, models, listener)
        show("stopped", error=True)


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a trained model (classify, nli, tag, ner, qa) as an ONNX graph, checked against torch.

    The folder predicts without torch by its package `predictor`.

    Examples:
        finetune export runs/nli --out exported
        finetune export runs/nli --out exported --int8 --max-loss 1
    """

    folder: Annotated[str, argument("RUN")]
    """Folder of a run or of a model in it."""
    out: Annotated[str, Help("FOLDER", "output")]
    """New folder for the graph, the program that predicts, tokenizer and labels. It appears when it
    is complete."""
    int8: bool = False
    """Store weights in 8 bits: smaller, and faster on most processors. The score on validation is
    measured before and after."""
    max_loss: float | None = None
    """Most points of that score that int8 may cost; a larger loss is an error. Unset is 0.5."""
    data: Annotated[str | None, DATA] = None
    """Data with the validation split for --int8; unset is the data of the run."""

    def run(self) -> None:
        """Write the graph; print its distance from torch, its size and the loss of int8."""
        for option, value in (("--max-loss", self.max_loss), ("--data", self.data)):
            if value is not None and not self.int8:
                raise UserError(f"{option} applies to --int8: add --int8, or leave it out.")
        if self.max_loss is not None and not self.max_loss >= 0:
            raise UserError(f"--max-loss must be 0 or more, not {self.max_loss:g}.")
        quiet_libraries()
        from finetune.deployment.onnx import MAX_LOSS, export_onnx

        max_loss = MAX_LOSS if self.max_loss is None else self.max_loss
        found = export_onnx(
            Path(self.folder), self.out, int8=self.int8, max_loss=max_loss, data=self.data
        )
        show("\n".join(found.lines))


@contextlib.contextmanager
def _log_on_standard_error(level: str) -> Iterator[None]:
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
