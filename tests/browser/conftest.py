"""One broker with traffic and one browser for all tests of the console.

Debian's Chromium, driven by Playwright. Screenshots are kept in ``tests/browser/screenshots``.
"""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.integration.test_roles import SECRET
from tests.processes import clean_environment, up

ROOT = Path(__file__).parents[2]
SCREENSHOTS = Path(__file__).parent / "screenshots"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
# The browser notes a request that was answered with an error, which some tests provoke.
EXPECTED = re.compile(r"Failed to load resource: the server responded with a status of 40[0134]")


def chromium() -> str:
    """Where Chromium is."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "there is no Chromium for the console's tests; install it (apt-get install chromium)"
    return found


@pytest.fixture(scope="package")
def built() -> None:
    """The console is part of the broker."""
    index = resources.files("queenstream.broker").joinpath("static", "index.html")
    assert index.is_file(), "the console is not built; run: make console"


@pytest.fixture(scope="package")
def address(built: None) -> Iterator[str]:
    """A broker without tokens, with traffic."""
    with up("--ephemeral", "--port", "0") as broker:
        started = broker.ready()
        command = [sys.executable, "-m", "tests.browser.traffic", started]
        traffic = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            cwd=ROOT,
        )
        try:
            assert traffic.stdout is not None
            readable, _, _ = select.select([traffic.stdout], [], [], 90)
            assert readable, "the traffic did not get ready within 90 s"
            assert traffic.stdout.readline() == "ready\n", "the traffic failed; its error is above"
            yield started
        finally:
            traffic.communicate(timeout=60)


@pytest.fixture(scope="package")
def guarded(built: None) -> Iterator[str]:
    """A broker that asks for tokens."""
    with up("--ephemeral", "--port", "0", QUEEN_AUTH_SECRET=SECRET) as broker:
        yield broker.ready()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all; each test has a context of its own in it."""
    SCREENSHOTS.mkdir(exist_ok=True)
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


class Console:
    """The console in a tab, on one broker."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not EXPECTED.search(message.text):
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        """Go there by its address, as a deep link does."""
        self.page.goto(self.address + path)
        return self.page

    def confirm(self, verb: str) -> None:
        """Press the button of the dialog that is open, and wait until it is done."""
        dialog = self.page.locator("dialog[open]")
        dialog.get_by_role("button", name=verb, exact=True).click()
        dialog.wait_for(state="hidden")


@pytest.fixture
def open_console(browser: Browser) -> Iterator[Callable[..., Console]]:
    """Tabs with nothing stored in them; what they complain about fails the test."""
    opened: list[Console] = []

    def start(address: str, **options: Any) -> Console:
        context = browser.new_context(
            **{"viewport": WIDE, "color_scheme": "light", "locale": "en-GB", **options}
        )
        context.set_default_timeout(20_000)
        console = Console(context.new_page(), address)
        opened.append(console)
        return console

    yield start
    for console in opened:
        console.page.context.close()
    assert [each.complaints for each in opened] == [[] for _ in opened]


@pytest.fixture
def console(open_console: Callable[..., Console], address: str) -> Console:
    """A tab on the broker with traffic."""
    return open_console(address)


@pytest.fixture
def api(address: str) -> Iterator[httpx.Client]:
    """Plain HTTP to the same broker, to see what an act did."""
    with httpx.Client(base_url=f"{address}/api/v1", timeout=30) as client:
        yield client
