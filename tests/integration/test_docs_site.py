"""The documentation site: built without a warning, whole, and nothing in it comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import queenstream
import queenstream.testing
from queenstream.broker.api import ROUTES
from tests.pages import PAGES, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``make docs`` builds it: a link that leads nowhere or a page without a place is a failure."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder


def test_every_page_is_there(site: Path) -> None:
    missing = [page.stem for page in PAGES[1:] if not (site / f"{page.stem}.html").exists()]
    assert not missing
    assert {"index.html", "internals.html", "changelog.html"} <= {path.name for path in site.iterdir()}


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(https?:)?//[^"]*"')
    for page in site.rglob("*.html"):
        found = loads.search(page.read_text("utf-8"))
        assert found is None, page.name


def test_the_reference_has_every_public_name_and_route(site: Path) -> None:
    reference = "".join(path.read_text("utf-8") for path in (site / "reference").glob("*.html"))
    names = {f"queenstream.{name}" for name in queenstream.__all__}
    names |= {f"queenstream.testing.{name}" for name in ("PipelineDriver", "TemporaryBrokers")}
    assert not {name for name in names if f'id="{name}"' not in reference}
    text = unescape(re.sub(r"<[^>]+>", "", (site / "reference" / "http.html").read_text("utf-8")))
    assert not {route.path for route in ROUTES if f"{route.method} {route.path}" not in text}


def test_examples_of_docstrings_are_code(site: Path) -> None:
    page = (site / "reference" / "aggregates.html").read_text("utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "<blockquote>" not in page  # what Markdown makes of >>> otherwise
