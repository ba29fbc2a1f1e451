"""The container file and the Kubernetes example: their commands, routes and ports exist."""

from __future__ import annotations

import json
import re
import tomllib
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
    assert {name for name, _ in found} <= set(
        "FROM WORKDIR COPY ARG RUN USER EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD".split()
    )
    by_name = dict(found)
    assert by_name["USER"] == "finetune", "the last user is not root"
    assert found.index(("USER", "finetune")) > max(
        index for index, (name, _) in enumerate(found) if name in ("RUN", "COPY")
    )
    assert json.loads(by_name["ENTRYPOINT"]) == ["python", "-m", "finetune"]
    command = parse(json.loads(by_name["CMD"]))
    assert (command.host, command.port) == ("0.0.0.0", int(by_name["EXPOSE"]))
    check = json.loads(by_name["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    address = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check[2])
    assert address and int(address[1]) == command.port and address[2] == HEALTH
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = [word for name, rest in found if name == "COPY" for word in rest.split()[:-1]]
    for path in copied:
        assert (ROOT / path).exists() and f"!{path}" in ignored
    (install,) = [rest for name, rest in found if name == "RUN" and "pip" in rest]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.search(r'"\.\[([\w,]+)\]"', install)
    assert named and {*named[1].split(",")} <= extras["optional-dependencies"].keys()


def test_the_deployment() -> None:
    text = (ROOT / "examples" / "launch" / "serve.yaml").read_text("utf-8")
    deployment, service, scaler = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = parse(container["args"])
    (port,) = container["ports"]
    assert (command.host, command.port) == ("0.0.0.0", port["containerPort"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = container[probe]["httpGet"]
        assert request["path"] == HEALTH and request["port"] == port["name"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause + 30
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
