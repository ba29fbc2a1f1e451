"""The container file and the Kubernetes example: their commands, routes and ports exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from finetune.cli.main import parse

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (each.partition(" ") for each in lines if each)]


HEALTH = "/health"


def test_the_container_file() -> None:
    found = instructions()
    by_name = dict(found)
    assert by_name["USER"] == "finetune", "the last user is not root"
    assert json.loads(by_name["ENTRYPOINT"]) == ["python", "-m", "finetune"]
    command = parse(json.loads(by_name["CMD"]))
    assert (command.host, command.port) == ("0.0.0.0", int(by_name["EXPOSE"]))
    check = json.loads(by_name["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    address = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check[2])
    assert address and int(address[1]) == command.port and address[2] == HEALTH
    copied = [word for name, rest in found if name == "COPY" for word in rest.split()[:-1]]
    assert all((ROOT / path).exists() for path in copied)


def test_the_deployment() -> None:
    text = (ROOT / "examples" / "launch" / "serve.yaml").read_text("utf-8")
    deployment, service, _ = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = parse(container["args"])
    (port,) = container["ports"]
    assert (command.host, command.port) == ("0.0.0.0", port["containerPort"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = container[probe]["httpGet"]
        assert request["path"] == HEALTH and request["port"] == port["name"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
