"""The options of `export` and `serve`."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from finetune.cli.options import Command
from finetune.cli.output import quiet_libraries, show
from finetune.config.options import DATA, Help, argument
from finetune.config.values import require_count
from finetune.deployment.onnx_model import is_export
from finetune.registry import install_command
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Export a model (classify, nli, tag, ner, qa) to ONNX, and check its predictions against
    torch.

    The package `predictor` in the folder predicts without torch.

    Examples:
        finetune export runs/nli --out exported
        finetune export runs/nli --out exported --int8 --max-loss 1
    """

    folder: Annotated[str, argument("RUN")]
    """Run folder, or folder of a model in it."""
    out: Annotated[str, Help("FOLDER", "output")]
    """New folder for the graph, the predictor, the tokenizer and the labels. It appears when it is
    complete."""
    int8: bool = False
    """Quantize weights to 8 bits: the model is smaller, and faster on most processors. The
    validation score is measured before and after."""
    max_loss: float | None = None
    """Largest loss of the validation score by --int8, in points; a larger loss is an error.
    Default: 0.5."""
    data: Annotated[str | None, DATA] = None
    """Data with the validation split for --int8; default: the data of the run."""

    def run(self) -> None:
        """Write the graph; print its distance from torch, its size and the loss of int8."""
        for option, value in (("--max-loss", self.max_loss), ("--data", self.data)):
            if value is not None and not self.int8:
                raise UserError(f"{option} applies to --int8: add --int8, or leave it out.")
        quiet_libraries()
        from finetune.deployment.onnx import MAX_LOSS, export_onnx

        max_loss = MAX_LOSS if self.max_loss is None else self.max_loss
        lines = export_onnx(
            Path(self.folder), self.out, int8=self.int8, max_loss=max_loss, data=self.data
        )
        show("\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Serve trained models over HTTP; concurrent requests are predicted in batches.

    Examples:
        finetune serve runs/nli
        finetune serve nli=runs/nli topics=exported --port 8080
    """

    runs: Annotated[tuple[str, ...], argument("RUN …")]
    """Models to serve: run folders, model folders, exports (which need no torch), or hub ids. A hub
    id is OWNER/NAME or OWNER/NAME@REVISION. NAME=RUN names the model in addresses."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other address than the default opens the server to the network,
    without passwords."""
    port: int = 8000
    """Port to listen on; 0 chooses a free port."""
    batch_size: int = 64
    """Largest number of examples of several requests in a batch."""

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then finish the requests under way."""
        require_count("--batch-size", self.batch_size)
        if missing := [name for name in ("fastapi", "uvicorn") if not find_spec(name)]:
            raise UserError(f"serve needs {' and '.join(missing)}: {install_command(*missing)}.")
        folders = named_runs(self.runs)
        if not all(map(is_export, folders.values())):  # which need torch
            quiet_libraries()
        from finetune.deployment.server import ServedModel, make_app, run_server

        with _listen(self.host, self.port) as listener:
            models = [ServedModel(*item, self.batch_size) for item in folders.items()]
            address, port = listener.getsockname()[:2]
            url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
            hosts = ["localhost", address]  # no page of the web can ask it under its own name
            if ":" in address or not ipaddress.ip_address(address).is_loopback:
                hosts = ["*"]
            if not ipaddress.ip_address(address).is_loopback:
                show(f"note: {url} is open to the network, without passwords.", error=True)
            show(f"serving {', '.join(folders)} at {url}/docs (Ctrl-C stops); try")
            show(f"curl -s {url}/predict -d '{json.dumps(models[0].sample)}'")
            run_server(make_app(models, hosts), listener)


def named_runs(runs: Sequence[str]) -> dict[str, str]:
    """Parse the folders of models, by their names in addresses."""
    folders: dict[str, str] = {}
    for run in runs:
        name, equals, folder = run.partition("=")
        if not equals or Path(run).exists():
            path, folder = Path(run).resolve(), run
            name = path.parent.name if path.name == "best" else path.name.partition("@")[0]
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or name in folders:
            raise UserError(f"{run}: {name!r} is no name or that of two models: write name=RUN.")
        folders[name] = folder
    return folders


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: {error}.") from None
    # Connections inherit it. Without it a body waits about 40 ms for the receipt of its headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
