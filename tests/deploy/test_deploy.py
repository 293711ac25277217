"""The deployment files agree with the service: metric names, ports, options. (No Docker engine runs in the suite.)"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "env_servers" / "deploy"


def test_every_query_of_the_dashboard_reads_a_metric_that_the_service_exports() -> None:
    pytest.importorskip("prometheus_client", reason="the `server` extra is not installed")
    from env_servers.front.metrics import Metrics

    exported = {
        sample.removesuffix("_created")
        for family in Metrics().registry.collect()
        for sample in [family.name, *(f"{family.name}_{kind}" for kind in ("total", "bucket", "count", "sum"))]
    }
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    used = {name for p in panels for t in p["targets"] for name in re.findall(r"cope_\w+", t["expr"])}
    assert len(used) >= 8
    assert used <= exported


def test_the_image_starts_the_service_with_options_that_there_are() -> None:
    import inspect

    from env_servers.cli_serve import serve

    dockerfile = (DEPLOY / "Dockerfile").read_text()
    entry = json.loads(re.search(r"^ENTRYPOINT (.+)$", dockerfile, re.MULTILINE)[1])  # type: ignore[index]
    options = {word[2:].replace("-", "_") for word in entry if word.startswith("--")}
    assert options <= set(inspect.signature(serve).parameters)
    port = inspect.signature(serve).parameters["port"].default
    assert f"EXPOSE {port}" in dockerfile
    assert f"{port}:{port}" in (DEPLOY / "compose.yaml").read_text()


def test_what_compose_mounts_and_the_image_copies_is_there() -> None:
    compose = (DEPLOY / "compose.yaml").read_text()
    mounted = re.findall(r"(\./[\w.-]+):(/[\w./-]+)", compose)
    assert len(mounted) >= 4 and all((DEPLOY / source).is_file() for source, _ in mounted)
    # Grafana reads a dashboard from the folder that its provider names, and the one from where its data comes.
    [folder] = re.findall(r"path: (\S+)", (DEPLOY / "grafana-dashboards.yaml").read_text())
    assert f"./grafana.json:{folder}/cope.json" in compose
    [host, port] = re.findall(r"http://(\w+):(\d+)", (DEPLOY / "grafana-datasource.yaml").read_text())[0]
    assert f"\n  {host}:\n    image: prom/prometheus" in compose and port == "9090"
    copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert all((DEPLOY.parents[1] / name).exists() for line in copied for name in line.split())


def test_no_secret_is_in_the_image() -> None:
    assert "COPE_TOKEN" not in (DEPLOY / "Dockerfile").read_text()
    assert ".secrets/" in (DEPLOY.parents[1] / ".gitignore").read_text()
