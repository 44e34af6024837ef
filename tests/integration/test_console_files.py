"""The files at ``/``, with the console built and without."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest

from queenstream.broker.api import console
from queenstream.broker.api.console import ADDRESSES
from queenstream.broker.http.routing import Request
from queenstream.broker.http.static_files import Files
from queenstream.errors import NotFound

ROUTES_TS = Path(__file__).parents[2] / "console" / "src" / "lib" / "routes.ts"


async def test_without_a_build_a_plain_page_says_how(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = Files(tmp_path / "static")
    monkeypatch.setattr(console, "_built", lambda: missing)
    answer = await http.get("/queues/orders")
    assert answer.status_code == 200
    assert "make console" in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    style = await http.get("/console/plain.css")
    assert style.headers["content-type"].startswith("text/css")
    assert (await http.get("/console/index.js")).status_code == 404


async def test_a_file_is_named_and_never_a_path(http: httpx.AsyncClient) -> None:
    for name in ("..%2Fapp.py", "%2e%2e%2fapp.py", "..%5Capp.py", "%2Fetc%2Fpasswd"):
        answer = await http.get(f"/console/{name}")
        assert answer.status_code == 404, name


def test_what_is_kept_and_what_is_compressed(tmp_path: Path) -> None:
    (tmp_path / "small.js").write_text("1")
    (tmp_path / "app-ABCD1234.js").write_text("let a = 1;\n" * 200)
    files = Files(tmp_path)
    request = Request("GET", "/", "", {b"accept-encoding": b"br, gzip"}, b"")
    small, large = (files.answer(name, request) for name in ("small.js", "app-ABCD1234.js"))
    assert (small.body, dict(small.headers)["Cache-Control"]) == (b"1", "no-cache")
    assert gzip.decompress(large.body).startswith(b"let a = 1;")
    assert "immutable" in dict(large.headers)["Cache-Control"]
    with pytest.raises(NotFound, match="reload the page"):
        files.answer("other.js", request)


def test_the_broker_answers_every_address_of_the_console() -> None:
    """Deep links: each address of the script is one of the broker's."""
    text = ROUTES_TS.read_text(encoding="utf-8")
    patterns = text.split("const PATTERNS", 1)[1].split("];", 1)[0]
    for address in ADDRESSES:
        assert f'["{address}",' in patterns
    assert patterns.count('["/') == len(ADDRESSES)
