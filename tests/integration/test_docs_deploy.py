"""The dashboard and the alert rules of deploy/ ask for nothing that brokers and pipelines do not export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import crossplane
import httpx
import pytest
from msgspec import yaml
from prometheus_client.parser import text_string_to_metric_families

from queenstream.config import Settings, parse_size
from queenstream.core import durations, metric_names
from tests.pages import ROOT

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
OF_PROMETHEUS = {"up": {"job", "instance"}}  # known of everything that it scrapes
ALWAYS = {"job", "instance"}
RULES = [
    rule
    for group in yaml.decode((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/queenstream.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "alerts.md").read_text("utf-8")


def expressions() -> Iterator[str]:
    """Everything that is asked of Prometheus."""
    yield from (rule["expr"] for rule in RULES)
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:queen_\w+|process_\w+|up(?=\{))", expression))


def labels_of(expression: str) -> set[str]:
    """The labels that an expression selects and groups by."""
    selected = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!=|=)", expression)
    grouped = [name for names in re.findall(r"\bby \(([^)]*)\)", expression) for name in names.split(", ")]
    return {*selected, *grouped} - {"le"}


@pytest.fixture
async def exported(http: httpx.AsyncClient) -> dict[str, set[str]]:
    """What a broker exports after some traffic, with the labels that it has."""
    items = [{"queue": "q", "payload": n} for n in range(3)]
    await http.post("/api/v1/push", json={"items": items})
    popped = (await http.get("/api/v1/pop/queue/q", params={"batch": 2})).json()["messages"]
    for message, status in zip(popped, ("completed", "dlq"), strict=True):
        body = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
        await http.post("/api/v1/ack", json=body | {"leaseId": message["leaseId"], "status": status})
    told = [
        *metric_names.GAUGES,
        *metric_names.SOME_GAUGES,
        *metric_names.COUNTERS,
        *metric_names.SOME_COUNTERS,
    ]
    report = {"engine": "spark", "instance": "one", "state": "running", "stats": dict.fromkeys(told, 1.0)}
    answer = await http.post("/api/v1/pipelines/p/report", json=report)
    assert answer.status_code == 200, answer.text
    found: dict[str, set[str]] = dict(OF_PROMETHEUS)
    for family in text_string_to_metric_families((await http.get("/metrics/prometheus")).text):
        labels = {name for sample in family.samples for name in sample.labels} | ALWAYS
        found |= {family.name + suffix: labels for suffix in SUFFIXES[family.type]}
    return found


async def test_every_metric_and_label_exists(exported: dict[str, set[str]]) -> None:
    for expression in expressions():
        asked = metrics_of(expression)
        assert asked, expression
        assert asked <= exported.keys(), f"{expression}: {asked - exported.keys()} is not exported"
        labels = labels_of(expression)
        for name in asked - {"queen_background_failures_total"}:  # which has none before one fails
            assert labels <= exported[name], f"{expression}: {name} has not {labels - exported[name]}"


async def test_the_page_has_every_metric_of_the_broker(exported: dict[str, set[str]]) -> None:
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported if name.startswith("queen_")}
    own = {name for name in families if not name.startswith("queen_pipeline_")}
    assert not {name for name in own if f"`{name}`" not in PAGE}


def test_alerts_are_whole_and_the_page_explains_each() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert f"| `{rule['alert']}` |" in PAGE
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


# Proxies


def test_the_nginx_example_parses() -> None:
    parsed = crossplane.parse(str(ROOT / "deploy/proxy/nginx.conf"), strict=True, check_ctx=False)
    assert parsed["errors"] == []
    (server,) = (block for block in parsed["config"][0]["parsed"] if block["directive"] == "server")
    (location,) = (block for block in server["block"] if block["directive"] == "location")
    found = {(each["directive"], *each["args"]) for each in location["block"]}
    assert ("proxy_set_header", "Host", "$http_host") in found
    assert ("proxy_buffering", "off") in found
    limit = next(each["args"][0] for each in server["block"] if each["directive"] == "client_max_body_size")
    assert parse_size(limit.upper() + "iB") == Settings().max_body_bytes
    waits = next(each[1] for each in found if each[0] == "proxy_read_timeout")
    assert durations.seconds(waits) > Settings().max_wait


def test_the_caddy_example_is_well_formed() -> None:
    """Caddy's own parser is a Go program: here, blocks nest, and each line begins with a known directive."""
    known = {
        "request_body",
        "max_size",
        "reverse_proxy",
        "flush_interval",
        "transport",
        "response_header_timeout",
    }
    depth = 0
    words: dict[str, list[str]] = {}
    for line in (ROOT / "deploy/proxy/Caddyfile").read_text("utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        assert line.startswith("\t" * (depth - (text == "}"))), line
        first, *rest = text.split()
        if first == "}":
            depth -= 1
        elif depth:
            assert first in known, line
            words[first] = rest
        depth += text.endswith("{")
    assert depth == 0
    assert parse_size(words["max_size"][0]) == Settings().max_body_bytes
    assert durations.seconds(words["response_header_timeout"][0]) > Settings().max_wait
