"""A pipeline on Spark, from inside: what the page shows of the local engine it shows of this one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, Console, beside, check
from tests.browser.spark_job import KEY, NAME, STEP

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def on_spark(built: None) -> Iterator[str]:
    """A broker with a pipeline on Spark."""
    with beside("tests.browser.spark_job", timeout=200) as said:
        yield said()


def test_a_pipeline_on_spark_from_inside(open_console: Callable[[str], Console], on_spark: str) -> None:
    page = open_console(on_spark).open(f"/pipelines/{NAME}?step=sink&key={KEY}")
    expect(page.get_by_text("spark", exact=True).first).to_be_visible()
    windows = page.get_by_role("button", name=STEP)
    expect(windows).to_contain_text("watermark", timeout=30_000)
    expect(windows).to_contain_text(re.compile(r"watermark .* behind"))
    expect(windows).to_contain_text(re.compile(r"busy \d+ % · held up \d+ %"))
    expect(page.get_by_role("button", name=re.compile("^orders"))).to_contain_text("/s")
    expect(page.get_by_role("img", name=re.compile("The last [0-9]+ batches"))).to_be_visible(timeout=30_000)
    expect(page.get_by_test_id("step").locator(".samples pre").first).to_contain_text(
        '"customer"', timeout=30_000
    )
    sinks = page.get_by_test_id("sinks")
    expect(sinks).to_contain_text(re.compile(r"sink.*rows, .*read.*compute.*stage.*commit.*last batch", re.S))
    expect(page.get_by_text("Committed")).to_be_visible()
    state = page.get_by_label(f"State of {KEY}").first
    expect(state).to_contain_text(f'"step": "{STEP}"', timeout=60_000)
    expect(state).to_contain_text(f'"key": "{KEY}"')
    expect(state).to_contain_text('"aggregates"')
    assert check(page) == []
    page.screenshot(path=SCREENSHOTS / "pipeline-spark.png", full_page=True)
