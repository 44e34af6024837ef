"""How the console is served, who gets in, and what it costs."""

from __future__ import annotations

import gzip
import re
import subprocess
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ROOT, SCREENSHOTS, Console
from tests.integration.test_roles import token
from tests.processes import up

MOST_BYTES = 300_000


def test_the_first_load_is_small(open_console: Callable[[str], Console], address: str) -> None:
    console = open_console(address)
    seen: dict[str, float] = {}
    urls: dict[str, str] = {}
    session = console.page.context.new_cdp_session(console.page)
    session.send("Network.enable")
    session.on("Network.responseReceived", lambda e: urls.update({e["requestId"]: e["response"]["url"]}))
    session.on("Network.loadingFinished", lambda e: seen.update({e["requestId"]: e["encodedDataLength"]}))
    page = console.open("/")
    expect(page.locator("canvas")).to_be_visible()  # the chart's library is loaded, too
    sizes = {urls[each]: size for each, size in seen.items() if "/api/" not in urls.get(each, "/api/")}
    assert any(url.endswith(".js") for url in sizes)
    assert sum(sizes.values()) < MOST_BYTES, sizes
    assert all(url.startswith(console.address) for url in urls.values()), "it loads something from elsewhere"


def test_files_are_compressed_kept_and_fenced(address: str) -> None:
    with httpx.Client(base_url=address) as http:
        page = http.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert page.headers["cache-control"] == "no-cache"
        again = http.get("/streams", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        script = re.search(r'src="(/console/[^"]+\.js)"', page.text)
        assert script is not None
        packed = http.get(script[1])
        assert packed.headers["content-encoding"] == "gzip"
        assert "immutable" in packed.headers["cache-control"]
        plain = http.get(script[1], headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == packed.content
        assert plain.headers["etag"] != packed.headers["etag"]
        refused = http.get(script[1], headers={"accept-encoding": "gzip;q=0"})
        assert "content-encoding" not in refused.headers
        assert len(gzip.compress(plain.content)) < len(plain.content) / 2
        assert http.head("/").status_code == 200
        assert http.get("/console/nothing.js").status_code == 404
        assert http.get("/nothing").json()["error"].startswith("there is no /nothing")


def test_a_broker_open_to_other_machines_says_so(
    open_console: Callable[[str], Console], address: str
) -> None:
    with up("--ephemeral", "--port", "0", "--host", "0.0.0.0", "--insecure") as broker:
        page = open_console(broker.ready().replace("0.0.0.0", "127.0.0.1")).open("/")
        expect(page.get_by_role("alert")).to_contain_text("without a token")
        page.goto("about:blank")  # it would complain that the broker is gone
    page = open_console(address).open("/")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_text("without a token")).to_have_count(0)


def test_signing_in_and_out(open_console: Callable[[str], Console], guarded: str) -> None:
    console = open_console(guarded)
    page = console.open("/queues")
    field = page.get_by_label("Token")
    field.fill("not.a.token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.screenshot(path=SCREENSHOTS / "sign-in.png")
    admin = token("admin")
    field.fill(f"Bearer {admin}")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    expect(page.locator(".who")).to_contain_text("ada")
    expect(page.locator(".foot .link")).to_have_text("live")  # the events carry the token, too
    assert admin not in page.url
    assert page.evaluate("JSON.stringify(localStorage)").find(admin) == -1
    page.reload()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize(
    ("role", "clear", "push"),
    [("read-only", False, False), ("read-write", False, True), ("admin", True, True)],
)
def test_what_a_role_may_do(
    open_console: Callable[[str], Console], guarded: str, role: str, clear: bool, push: bool
) -> None:
    headers = {"authorization": f"Bearer {token('admin')}"}
    items = [{"queue": "shop", "payload": 1}]
    httpx.post(f"{guarded}/api/v1/push", json={"items": items}, headers=headers).raise_for_status()
    console = open_console(guarded)
    page = console.open("/queues/shop?tab=push")
    page.get_by_label("Token").fill(token(role))
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".who")).to_contain_text(role)
    expect(page.get_by_role("button", name="Clear …")).to_be_enabled(enabled=clear)
    expect(page.get_by_role("button", name="Push …")).to_be_enabled(enabled=push)


def test_a_broker_that_goes_away_and_comes_back(open_console: Callable[[str], Console], address: str) -> None:
    console = open_console(address)
    console.page.clock.install()
    page = console.open("/")
    expect(page.locator(".foot .link")).to_have_text("live")
    page.context.set_offline(True)
    page.clock.run_for(10_000)
    expect(page.get_by_role("alert").first).to_contain_text("The broker does not answer")
    page.context.set_offline(False)
    page.clock.run_for(10_000)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".foot .link")).to_have_text("live")
    console.complaints.clear()  # that the network was away


def test_the_components() -> None:
    """The console's own tests: no broker is needed."""
    command = ["npm", "test", "--silent"]
    done = subprocess.run(command, cwd=ROOT / "console", capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
