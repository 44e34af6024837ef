"""One broker with traffic and one browser for all tests of the console.

The Chromium of ``tests/servers/chromium.py``, driven by Playwright. Screenshots are kept in
``tests/browser/screenshots``.
"""

from __future__ import annotations

import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.integration.test_roles import SECRET
from tests.processes import clean_environment, up
from tests.servers.chromium import required

ROOT = Path(__file__).parents[2]
SCREENSHOTS = Path(__file__).parent / "screenshots"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
# The browser notes a request that was answered with an error, which some tests provoke.
EXPECTED = re.compile(r"Failed to load resource: the server responded with a status of 40[0134]")


@pytest.fixture(scope="package")
def built() -> None:
    """The console is part of the broker."""
    index = resources.files("queenstream.broker").joinpath("static", "index.html")
    assert index.is_file(), "the console is not built; run: make console"


@contextmanager
def beside(module: str, *args: str, timeout: float) -> Iterator[Callable[[], str]]:
    """A process of ours beside the tests that ends with its standard input; gives what waits for its line."""
    begun = time.monotonic()
    started = subprocess.Popen(
        [sys.executable, "-m", module, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        cwd=ROOT,
    )

    @cache
    def said() -> str:
        assert started.stdout is not None
        left = max(0.0, begun + timeout - time.monotonic())
        readable, _, _ = select.select([started.stdout], [], [], left)
        assert readable, f"{module} did not get ready within {timeout} s"
        line = started.stdout.readline().strip()
        assert line, f"{module} failed; its error is above"
        return line

    try:
        yield said
    finally:
        started.communicate(timeout=120)


@pytest.fixture(scope="package")
def begun(built: None) -> Iterator[tuple[str, Callable[[], str]]]:
    """A broker, and what waits until its traffic has something of everything."""
    with up("--ephemeral", "--port", "0") as broker:
        started = broker.ready()
        with beside("tests.browser.traffic", started, timeout=150) as ready:
            yield started, ready


@pytest.fixture(scope="package")
def address(begun: tuple[str, Callable[[], str]]) -> str:
    """A broker without tokens, where traffic begins."""
    return begun[0]


@pytest.fixture
def traffic(begun: tuple[str, Callable[[], str]]) -> None:
    """There is something of everything at that broker."""
    assert begun[1]() == "ready"


@pytest.fixture(scope="package")
def guarded(built: None) -> Iterator[str]:
    """A broker that asks for tokens."""
    with up("--ephemeral", "--port", "0", QUEEN_AUTH_SECRET=SECRET) as broker:
        yield broker.ready()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all; each test has a context of its own in it."""
    chromium = required()
    SCREENSHOTS.mkdir(exist_ok=True)
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium.executable, env=chromium.environment, chromium_sandbox=False
        )
        yield started
        started.close()


AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"


def check(page: Page, *rules: str, without: str = "") -> list[str]:
    """What axe finds that is serious, by these rules or by all, without one."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    options: dict[str, Any] = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    options |= {"rules": {without: {"enabled": False}}} if without else {}
    found: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{each['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


# The visible elements that scroll, or would with more in them, and are neither a named stop of the Tab key
# nor hold one.
_UNREACHABLE = """() => [...document.querySelectorAll("body *")]
  .filter((node) => node.checkVisibility())
  .filter((node) => { const { overflowX, overflowY } = getComputedStyle(node);
                      return [overflowX, overflowY].some((each) => ["auto", "scroll"].includes(each)) })
  .filter((node) => node.tabIndex < 0 || !(node.ariaLabel || node.labels?.length))
  .filter((node) => !node.querySelector("a[href], button, input, select, textarea, [tabindex='0']"))
  .map((node) => node.outerHTML.slice(0, 120))"""


def find_unreachable_regions(page: Page) -> list[str]:
    """What scrolls but cannot be scrolled by keyboard, or has no name that says what is in it."""
    found: list[str] = page.evaluate(_UNREACHABLE)
    return found


CHECKED: set[str] = set()
"""What ``Console.check_once`` has looked at."""


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

    def check_once(self, what: str) -> None:
        """That axe finds nothing serious, wide and on a phone, the first time that a test comes by."""
        if what in CHECKED:
            return
        CHECKED.add(what)
        for size in (PHONE, WIDE):
            self.page.set_viewport_size(size)  # type: ignore[arg-type]
            assert check(self.page) == [], what

    def open(self, path: str) -> Page:
        """Go there by its address, as a deep link does."""
        self.page.goto(self.address + path)
        return self.page

    def confirm(self, verb: str) -> None:
        """Press the button of the dialog that is open, and wait until it is done."""
        dialog = self.page.locator("dialog[open]")
        self.check_once(f"the dialog {verb}")
        dialog.get_by_role("button", name=verb, exact=True).click()
        dialog.wait_for(state="hidden")


def tab(browser: Browser, address: str) -> Console:
    """A tab of its own, with nothing stored in it."""
    context = browser.new_context(viewport=WIDE, color_scheme="light", locale="en-GB")  # type: ignore[arg-type]
    context.set_default_timeout(20_000)
    return Console(context.new_page(), address)


@pytest.fixture
def open_console(browser: Browser) -> Iterator[Callable[[str], Console]]:
    """Tabs that nobody has used; what they complain about fails the test."""
    opened: list[Console] = []

    def start(address: str) -> Console:
        opened.append(tab(browser, address))
        return opened[-1]

    yield start
    for console in opened:
        console.page.context.close()
    assert [each.complaints for each in opened] == [[] for _ in opened]


@pytest.fixture(scope="package")
def shared_tab(browser: Browser, address: str) -> Iterator[Console]:
    """One for all tests that leave nothing behind: it has the page's files already."""
    made = tab(browser, address)
    yield made
    made.page.context.close()


@pytest.fixture
def console(shared_tab: Console) -> Iterator[Console]:
    """A tab on the broker with traffic; what it complains about fails the test."""
    shared_tab.complaints.clear()
    shared_tab.page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    shared_tab.page.emulate_media(color_scheme="light")
    yield shared_tab
    complaints = [*shared_tab.complaints]
    shared_tab.page.goto("about:blank")  # nothing of this test goes on
    assert complaints == []


@pytest.fixture
def api(address: str) -> Iterator[httpx.Client]:
    """Plain HTTP to the same broker, to see what an act did."""
    with httpx.Client(base_url=f"{address}/api/v1", timeout=30) as client:
        yield client
