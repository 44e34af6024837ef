"""Everything an operator can do in the console, and that the broker has done it."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import SCREENSHOTS, Console


@pytest.fixture
def queue(api: httpx.Client) -> str:
    """A queue of the test's own: three messages; the group ``workers`` has given up on the first."""
    name = f"acts-{uuid.uuid4().hex[:8]}"
    options = {"retryLimit": 0, "retryDelay": 0}
    api.post("/configure", json={"queue": name, "options": options}).raise_for_status()
    items = [
        {"queue": name, "partition": "p", "payload": {"n": n}, "transactionId": f"t{n}"} for n in (1, 2, 3)
    ]
    api.post("/push", json={"items": items}).raise_for_status()
    popped = api.get(f"/pop/queue/{name}", params={"consumerGroup": "workers"}).json()
    [first] = popped["messages"]
    ack = {
        "transactionId": first["transactionId"],
        "partitionId": first["partitionId"],
        "leaseId": popped["leaseId"],
        "consumerGroup": "workers",
        "status": "failed",
        "error": "no such order 4711",
    }
    api.post("/ack", json=ack).raise_for_status()
    return name


def letters(api: httpx.Client, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/dlq", params={"queue": queue}).json()["messages"]
    return found


def waiting(api: httpx.Client, queue: str, group: str = "workers") -> int:
    lag: int = api.get(f"/consumer-groups/{group}").json()["queues"][queue]["lag"]
    return lag


def messages(api: httpx.Client, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/messages", params={"queue": queue}).json()["messages"]
    return found


def test_push_a_message_and_copy_how(console: Console, queue: str, api: httpx.Client) -> None:
    console.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = console.open(f"/queues/{queue}?tab=push")
    page.get_by_label("Payload, JSON").fill("{nonsense")
    expect(page.get_by_text("This is no JSON")).to_be_visible()
    expect(page.get_by_role("button", name="Push …")).to_be_disabled()
    page.get_by_label("Partition", exact=True).fill("ann")
    page.get_by_label("Payload, JSON").fill('{"it\'s": null}')
    page.get_by_role("button", name="Push …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("One message is stored at the end of partition ann")
    copied = {}
    for form in ("curl", "Python", "queen"):
        dialog.get_by_role("button", name=form, exact=True).click()
        dialog.get_by_role("button", name="Copy", exact=True).click()
        expect(dialog.get_by_role("status").filter(has_text="copied")).to_be_visible()
        copied[form] = page.evaluate("navigator.clipboard.readText()")
    assert copied["curl"].startswith(f"curl -sS -X POST {console.address}/api/v1/push")
    assert f'queen.queue("{queue}").partition("ann").push({{"it\'s": None}})' in copied["Python"]
    assert copied["queen"].startswith(f"queen push {queue} --partition ann")
    page.screenshot(path=SCREENSHOTS / "dialog.png")
    console.confirm("Push")
    expect(page.get_by_text("Stored in ann.")).to_be_visible()
    assert {"it's": None} in [each["data"] for each in messages(api, queue)]


def test_seek_tells_first_how_many_it_affects(console: Console, queue: str, api: httpx.Client) -> None:
    assert waiting(api, queue) == 2
    page = console.open(f"/groups/workers?queue={queue}")
    page.get_by_label("Move to").select_option("end")
    page.get_by_role("button", name="Preview and move …").click()
    expect(page.get_by_role("dialog")).to_contain_text("This moves it over 2 messages.")
    page.screenshot(path=SCREENSHOTS / "seek.png")
    page.get_by_role("button", name="Cancel").click()
    assert waiting(api, queue) == 2  # a preview, and nothing else
    page.get_by_role("button", name="Preview and move …").click()
    console.confirm("Move")
    assert waiting(api, queue) == 0


def test_replay_from_here(console: Console, queue: str, api: httpx.Client) -> None:
    api.post(f"/consumer-groups/workers/queues/{queue}/seek", json={"toEnd": True}).raise_for_status()
    second = next(each for each in messages(api, queue) if each["transactionId"] == "t2")
    page = console.open(f"/messages/{second['partitionId']}/t2")
    expect(page.get_by_role("row", name=re.compile("workers"))).to_contain_text("past it")
    page.get_by_role("row", name=re.compile("workers")).get_by_role(
        "button", name="Replay from here …"
    ).click()
    expect(page.get_by_role("dialog")).to_contain_text("This moves it over 2 messages.")
    console.confirm("Replay")
    assert waiting(api, queue) == 2


def test_a_message_is_given_up_on_and_another_deleted(
    console: Console, queue: str, api: httpx.Client
) -> None:
    second, third = (next(m for m in messages(api, queue) if m["transactionId"] == t) for t in ("t2", "t3"))
    page = console.open(f"/messages/{second['partitionId']}/t2")
    page.get_by_role("button", name="To the dead letters …").click()
    console.confirm("Move")
    assert {each["transactionId"] for each in letters(api, queue)} == {"t1", "t2"}
    page = console.open(f"/messages/{third['partitionId']}/t3")
    page.get_by_role("button", name="Delete …").click()
    console.confirm("Delete")
    expect(page).to_have_url(re.compile(f"/queues/{queue}$"))
    assert "t3" not in {each["transactionId"] for each in messages(api, queue)}


def test_a_dead_letter_is_edited_and_retried(console: Console, queue: str, api: httpx.Client) -> None:
    page = console.open(f"/dead-letters?queue={queue}")
    page.get_by_role("region", name="Dead letters, the newest first").get_by_role("link").first.click()
    expect(page.get_by_text("its tries were used up")).to_be_visible()
    console.check_once("a letter")
    page.screenshot(path=SCREENSHOTS / "letter.png", full_page=True)
    page.get_by_label("Payload").fill('{"n": 41}')
    page.get_by_role("button", name="Retry as edited …").click()
    console.confirm("Retry")
    expect(page.get_by_text("No dead letter fits")).to_be_visible()
    assert letters(api, queue) == []
    assert {"n": 41} in [each["data"] for each in messages(api, queue)]


@pytest.mark.parametrize(
    ("button", "verb", "left"), [("Retry all …", "Retry all", 4), ("Delete all …", "Delete all", 3)]
)
def test_all_letters_whose_error_is_alike(
    console: Console, queue: str, api: httpx.Client, button: str, verb: str, left: int
) -> None:
    page = console.open(f"/dead-letters?queue={queue}")
    row = page.get_by_role("row", name=re.compile("no such order #"))
    row.get_by_role("button", name=button).click()
    expect(page.get_by_role("dialog")).to_contain_text(f"{verb.split()[0]} 1 dead letter of {queue}")
    console.confirm(verb)
    expect(page.get_by_text("No dead letter fits")).to_be_visible()
    assert letters(api, queue) == []
    assert len(messages(api, queue)) == left


def test_one_dead_letter_is_deleted(console: Console, queue: str, api: httpx.Client) -> None:
    [letter] = letters(api, queue)
    page = console.open(f"/dead-letters/{letter['id']}")
    page.get_by_role("button", name="Delete …").click()
    console.confirm("Delete")
    assert letters(api, queue) == []


def test_a_queue_is_cleared_and_deleted(console: Console, queue: str, api: httpx.Client) -> None:
    page = console.open(f"/queues/{queue}")
    page.get_by_role("button", name="Clear …").click()
    expect(page.get_by_role("dialog")).to_contain_text("All its messages (3) are deleted for good")
    console.confirm("Clear")
    assert messages(api, queue) == []
    page.get_by_role("button", name="Delete …").click()
    console.confirm("Delete")
    expect(page).to_have_url(re.compile("/queues$"))
    assert api.get(f"/resources/queues/{queue}").status_code == 404


def test_options_are_changed_and_it_says_which(console: Console, queue: str, api: httpx.Client) -> None:
    page = console.open(f"/queues/{queue}?tab=options")
    change = page.get_by_role("button", name="Change …")
    expect(change).to_be_disabled()
    page.get_by_label("leaseTime").fill("soon")
    expect(page.get_by_role("status").filter(has_text="leaseTime is a whole number.")).to_be_visible()
    expect(change).to_be_disabled()
    page.get_by_label("leaseTime").fill("60")
    page.get_by_label("retentionEnabled").check()
    change.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("leaseTime from 300 s to 60 s, retentionEnabled from off to on.")
    dialog.get_by_role("button", name="queen", exact=True).click()
    expect(dialog).to_contain_text(f"queen queue create {queue} --set leaseTime=60")
    page.screenshot(path=SCREENSHOTS / "options-dialog.png")
    console.confirm("Change")
    expect(page.get_by_label("leaseTime")).to_have_value("60")
    expect(change).to_be_disabled()
    options = api.get(f"/resources/queues/{queue}").json()["options"]
    assert (options["leaseTime"], options["retentionEnabled"]) == (60, True)
    assert (options["retryLimit"], options["retryDelay"]) == (0, 0)  # as they were


def test_a_group_is_deleted(console: Console, queue: str, api: httpx.Client) -> None:
    group = f"once-{queue}"
    api.get(f"/pop/queue/{queue}", params={"consumerGroup": group, "autoAck": "true"}).raise_for_status()
    page = console.open(f"/groups/{group}")
    page.get_by_role("button", name="Delete …").click()
    console.confirm("Delete")
    expect(page).to_have_url(re.compile("/groups$"))
    assert api.get(f"/consumer-groups/{group}").status_code == 404


def test_a_stream_is_sought_and_deleted(console: Console, queue: str, api: httpx.Client) -> None:
    stream = f"windows-{queue}"
    window = {"window_duration_ms": 1, "window_grace_period_ms": 0}
    body = {"name": stream, "namespace": "acts", "source_queue_names": [queue], **window}
    api.post("/stream/define", json=body).raise_for_status()
    poll = {"streamName": stream, "consumerGroup": "w", "timeout": 20_000}
    taken = api.post("/stream/poll", json=poll).json()["window"]
    done = {"windowId": taken["id"], "leaseId": taken["leaseId"], "success": True}
    api.post("/stream/ack", json=done).raise_for_status()
    page = console.open(f"/streams/{stream}?tab=groups")
    page.get_by_role("button", name="Seek …").click()
    console.confirm("Move")
    assert api.post("/stream/poll", json=poll).json()["window"]["id"] == taken["id"]
    page.get_by_role("button", name="Delete …").click()
    console.confirm("Delete")
    expect(page).to_have_url(re.compile("/streams$"))
    assert api.get(f"/resources/streams/{stream}").status_code == 404


def test_a_pipeline_is_forgotten(console: Console, api: httpx.Client) -> None:
    report = {
        "engine": "local",
        "instance": "i",
        "state": "failed",
        "stats": {"messages": 1.0},
        "error": "<b>no disk</b>",
    }
    api.post("/pipelines/gone/report", json=report).raise_for_status()
    page = console.open("/pipelines/gone")
    expect(page.locator("pre").filter(has_text="<b>no disk</b>")).to_be_visible()
    page.get_by_role("button", name="Forget …").click()
    console.confirm("Forget")
    expect(page).to_have_url(re.compile("/pipelines$"))
    assert api.get("/pipelines/gone").status_code == 404


def test_maintenance_is_started_and_ended_and_noted(console: Console, api: httpx.Client) -> None:
    page = console.open("/system")
    page.get_by_role("button", name="Pause deliveries …").click()
    console.confirm("Turn on")
    expect(page.get_by_text("pop maintenance: messages are accepted, none is delivered")).to_be_visible()
    try:
        assert api.get("/system/maintenance/pop").json()["enabled"] is True
    finally:
        page.get_by_role("button", name="Resume deliveries …").click()
        console.confirm("Turn off")
    assert api.get("/system/maintenance/pop").json()["enabled"] is False
    page.get_by_role("button", name="Audit log").click()
    expect(page.get_by_text("set_pop_maintenance").first).to_be_visible()


def test_what_the_broker_refuses_is_said_in_the_dialog(
    console: Console, queue: str, api: httpx.Client
) -> None:
    page: Page = console.open(f"/dead-letters/{letters(api, queue)[0]['id']}")
    expect(page.get_by_role("button", name="Retry …")).to_be_visible()
    api.post("/dlq/delete", json={"queue": queue}).raise_for_status()
    page.get_by_role("button", name="Retry …").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
    assert json.dumps(letters(api, queue)) == "[]"
