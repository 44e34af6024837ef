"""The contract, black box: leases, acknowledgements, retries, dead letters, fencing."""

from __future__ import annotations

import itertools

import httpx
import pytest

from tests.acceptance.speaking import (
    OPTIONAL,
    Fields,
    ack,
    ack_batch,
    ack_of,
    check,
    configure,
    data,
    dead,
    done,
    extend,
    moment,
    push,
    take,
)
from tests.conftest import Clock

RESULT: Fields = {
    "index": int,
    "transactionId": str,
    "success": bool,
    "error": OPTIONAL,
    "queueName": OPTIONAL,
    "partitionName": OPTIONAL,
    "leaseReleased": bool,
    "dlq": bool,
}
OURS = {"redelivered"}
# what an ack answers


async def test_ack_answers_the_contract(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, partition="p", ids=["t"])
    (message,) = await take(http, "q")
    answer = await http.post("/api/v1/ack", json=ack_of(message))
    assert answer.status_code == 200
    (result,) = answer.json()
    check(result, RESULT, OURS)
    assert {k: v for k, v in result.items() if k not in OURS} == {
        "index": 0,
        "transactionId": "t",
        "success": True,
        "error": None,
        "queueName": "q",
        "partitionName": "p",
        "leaseReleased": True,
        "dlq": False,
    }
    assert await take(http, "q") == []


async def test_ack_batch_answers_in_the_order_of_the_request(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2, partition="a", ids=["a1", "a2"])
    await push(http, "q", 3, partition="b", ids=["b1"])
    messages = {
        m["transactionId"]: m for m in await take(http, "q", batch=9, partitions=9, consumerGroup="g")
    }
    order = ["a2", "b1", "a1"]
    acks = [ack_of(messages[id]) for id in order]
    for one in acks:
        del one["consumerGroup"]  # it is named once, for all
    answer = await http.post("/api/v1/ack/batch", json={"consumerGroup": "g", "acknowledgments": acks})
    assert answer.status_code == 200
    results = answer.json()
    for result in results:
        check(result, RESULT, OURS)
        assert result["success"] is True
    assert [r["index"] for r in results] == [0, 1, 2]
    assert [r["transactionId"] for r in results] == order
    assert [r["partitionName"] for r in results] == ["a", "b", "a"]


async def test_an_empty_batch(http: httpx.AsyncClient) -> None:
    for more in ({}, {"consumerGroup": "g"}, {"brief": True}):
        answer = await http.post("/api/v1/ack/batch", json={"acknowledgments": [], **more})
        assert (answer.status_code, answer.json()) == (200, [])


async def test_a_brief_answer_has_only_what_was_refused(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2, 3, ids=["a", "b", "c"])
    acks = [ack_of(message) for message in await take(http, "q", batch=3)]
    unknown = {**acks[1], "transactionId": "nobody's"}
    body = {"acknowledgments": [acks[0], unknown, acks[1]], "brief": True}
    answer = await http.post("/api/v1/ack/batch", json=body)
    assert answer.status_code == 200
    (result,) = answer.json()
    check(result, RESULT, OURS)
    assert (result["index"], result["transactionId"], result["success"]) == (1, "nobody's", False)
    answer = await http.post("/api/v1/ack/batch", json={"acknowledgments": [acks[2]], "brief": True})
    assert answer.json() == []
    assert await take(http, "q", batch=3) == []


async def test_the_lease_ends_with_the_last_of_its_messages(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2, 3, 4)
    messages = await take(http, "q", batch=3)
    assert [(await ack(http, m))["leaseReleased"] for m in messages[:2]] == [False, False]
    assert await take(http, "q") == []
    assert (await ack(http, messages[2]))["leaseReleased"] is True
    assert data(await take(http, "q")) == [4]


async def test_an_ack_needs_no_lease_id(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    body = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    answer = await http.post("/api/v1/ack", json={**body, "status": "completed"})
    assert answer.json()[0]["success"] is True
    assert await take(http, "q") == []


async def test_what_is_not_leased_cannot_be_acknowledged(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1, 2)
    (message,) = await take(http, "q", consumerGroup="g")
    for wrong in (
        {"transactionId": "none"},
        {"partitionId": "999999"},
        {"partitionId": "no number"},
        {"consumerGroup": "other"},
        {"consumerGroup": None},
        {"leaseId": "00000000-0000-0000-0000-000000000001"},
        {"leaseId": "no uuid"},
    ):
        for status in ("completed", "failed", "dlq", "retry"):
            result = await ack(http, message, status, **wrong)
            check(result, RESULT, OURS)
            assert result["success"] is False
            assert result["error"]
            assert not result["leaseReleased"]
    await done(http, message)  # nothing of that changed anything
    (second,) = await take(http, "q", consumerGroup="g")
    assert (second["data"], second["retryCount"]) == (2, 0)


async def test_a_message_that_was_not_popped_yet_cannot_be_acknowledged(http: httpx.AsyncClient) -> None:
    _, second = await push(http, "q", 1, 2)
    (message,) = await take(http, "q")
    assert (await ack(http, message, transactionId=second["transaction_id"]))["success"] is False
    await done(http, message)
    assert data(await take(http, "q")) == [2]


async def test_a_repeated_ack_is_a_success(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2, 3)
    messages = await take(http, "q", batch=2)
    for _ in range(2):
        for message in messages:
            assert (await ack(http, message))["success"] is True
    results = await ack_batch(http, *(ack_of(m) for m in messages))
    assert [r["success"] for r in results] == [True, True]
    assert data(await take(http, "q")) == [3]


async def test_a_repeated_ack_of_what_was_completed_before_a_failure_is_a_success(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await push(http, "q", 1, 2)
    one, two = await take(http, "q", batch=2)
    await ack_batch(http, ack_of(one), ack_of(two, "failed"))
    assert (await ack(http, one))["success"] is True  # the answer was lost: said once more
    assert (await ack(http, two))["success"] is False  # it did fail
    clock.turn(1.1)
    (again,) = await take(http, "q", batch=2)
    assert (again["data"], again["retryCount"]) == (2, 1)


async def test_a_repeated_dlq_is_a_success_and_buries_once(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    for _ in range(2):
        assert (await ack(http, message, "dlq"))["success"] is True
    assert data(await dead(http, "q")) == [1]


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
async def test_a_message_named_twice_counts_once(http: httpx.AsyncClient, clock: Clock, status: str) -> None:
    await push(http, "q", 1, 2)
    one, two = await take(http, "q", batch=2)
    results = await ack_batch(http, ack_of(one, status), ack_of(one, status), ack_of(two, "retry"))
    assert all(r["success"] for r in results)
    clock.turn(1.1)
    again = await take(http, "q", batch=2)
    assert data(again) == ([2] if status == "dlq" else [1, 2])
    assert again[0]["retryCount"] == (1 if status == "failed" else 0)
    assert data(await dead(http, "q")) == ([1] if status == "dlq" else [])


async def test_what_is_settled_ahead_of_a_gap_stays_so(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1, 2, 3)
    one, two, three = await take(http, "q", batch=3)
    assert (await ack(http, two, "dlq"))["success"] is True
    assert (await ack(http, three))["success"] is True
    assert (await ack(http, two, "dlq"))["success"] is True
    assert (await ack(http, two, "failed"))["success"] is False
    assert (await ack(http, three, "dlq"))["success"] is False
    assert data(await dead(http, "q")) == [2]
    assert (await ack(http, one))["leaseReleased"] is True
    clock.turn(1000)
    assert await take(http, "q") == []


async def test_the_same_message_twice_in_one_batch(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2)
    (message,) = await take(http, "q")
    results = await ack_batch(http, ack_of(message), ack_of(message))
    assert [r["success"] for r in results] == [True, True]
    assert data(await take(http, "q")) == [2]


# leases


async def test_a_lease_is_exclusive_in_its_partition_and_group(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", leaseTime=30)
    await push(http, "q", "a1", "a2", partition="a")
    (held,) = await take(http, "q")
    assert await take(http, "q") == []
    assert await take(http, "q", partition="a") == []
    await push(http, "q", "b1", partition="b")
    assert data(await take(http, "q")) == ["b1"]  # other partitions go on
    assert data(await take(http, "q", partition="a", consumerGroup="g")) == ["a1"]  # and other groups
    clock.turn(29)
    assert await take(http, "q", partition="a") == []
    clock.turn(2)
    (again,) = await take(http, "q", partition="a")
    assert again["transactionId"] == held["transactionId"]
    assert again["retryCount"] == 1


async def test_extend_answers_the_contract_and_holds_the_lease(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", leaseTime=10)
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    clock.turn(8)
    answer = await http.post(f"/api/v1/lease/{message['leaseId']}/extend", json={"seconds": 30})
    assert answer.status_code == 200
    (result,) = answer.json()
    check(result, {"index": int, "leaseId": str, "success": bool, "error": OPTIONAL, "expiresAt": moment})
    assert (result["index"], result["leaseId"], result["success"]) == (0, message["leaseId"], True)
    assert result["error"] is None
    clock.turn(29)
    assert await take(http, "q") == []
    clock.turn(2)
    (again,) = await take(http, "q")
    assert again["retryCount"] == 1


@pytest.mark.parametrize("body", [b"{}", b""])
async def test_extend_is_by_sixty_seconds_unless_said(
    http: httpx.AsyncClient, clock: Clock, body: bytes
) -> None:
    await configure(http, "q", leaseTime=10)
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    answer = await http.post(f"/api/v1/lease/{message['leaseId']}/extend", content=body)
    assert answer.json()[0]["success"] is True
    clock.turn(58)
    assert await take(http, "q") == []
    clock.turn(3)
    assert data(await take(http, "q")) == [1]


async def test_a_lease_that_ended_cannot_be_extended(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", leaseTime=10)
    await push(http, "q", 1, 2)
    (expired,) = await take(http, "q")
    clock.turn(11)
    (acked,) = await take(http, "q")
    await done(http, acked)
    (released,) = await take(http, "q")
    await ack(http, released, "failed")
    for lease in (expired["leaseId"], acked["leaseId"], released["leaseId"], "none"):
        result = await extend(http, lease)
        assert result["success"] is False
        assert result["error"]
        assert result["expiresAt"] is None


async def test_an_expired_lease_cannot_be_extended_even_if_nobody_took_it(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", leaseTime=10)
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    clock.turn(11)
    assert (await extend(http, message["leaseId"]))["success"] is False


@pytest.mark.parametrize("status", ["completed", "failed", "dlq", "retry"])
async def test_a_stale_lease_is_refused_and_changes_nothing(
    http: httpx.AsyncClient, clock: Clock, status: str
) -> None:
    await configure(http, "q", leaseTime=10)
    await push(http, "q", 1, 2)
    stale = await take(http, "q", batch=2)
    clock.turn(11)
    fresh = await take(http, "q", batch=2)
    for result in await ack_batch(http, *(ack_of(m, status) for m in stale)):
        assert result["success"] is False
        assert result["error"]
        assert not result["leaseReleased"]
        assert not result["dlq"]
    assert await take(http, "q") == []  # the lease holds
    assert (await extend(http, stale[0]["leaseId"]))["success"] is False
    assert await dead(http, "q") == []
    await done(http, *fresh)
    assert await take(http, "q") == []
    # Nor after the other has finished, except that what is done is done.
    assert (await ack(http, stale[0], "failed"))["success"] is False
    clock.turn(5)
    assert await take(http, "q") == []


async def test_an_ack_under_an_expired_lease_that_nobody_took_counts(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", leaseTime=10)
    await push(http, "q", 1, 2)
    messages = await take(http, "q", batch=2)
    clock.turn(11)
    await done(http, *messages)
    assert await take(http, "q") == []


# order


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_a_failed_message_and_all_after_it_come_again(
    http: httpx.AsyncClient, clock: Clock, order: tuple[int, ...]
) -> None:
    await push(http, "q", "a", "b", "c")
    await push(http, "q", "elsewhere", partition="other")
    messages = await take(http, "q", partition="Default", batch=3)
    (other,) = await take(http, "q", partition="other")
    statuses = ["completed", "failed", "completed"]
    results = await ack_batch(http, *(ack_of(messages[n], statuses[n]) for n in order), ack_of(other))
    assert all(r["success"] for r in results)
    assert results[0]["leaseReleased"] is True
    assert await take(http, "q", batch=9) == []  # retryDelay
    clock.turn(1.1)
    again = await take(http, "q", batch=9)
    assert data(again) == ["b", "c"]
    assert [m["retryCount"] for m in again] == [1, 0]


async def test_all_failed(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1, 2, 3)
    messages = await take(http, "q", batch=3)
    await ack_batch(http, *(ack_of(m, "failed") for m in messages))
    clock.turn(1.1)
    again = await take(http, "q", batch=3)
    assert [(m["data"], m["retryCount"]) for m in again] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_single_acks_in_any_order_complete_the_lease(
    http: httpx.AsyncClient, order: tuple[int, ...]
) -> None:
    await push(http, "q", 0, 1, 2, 3)
    messages = await take(http, "q", batch=3)
    results = [await ack(http, messages[n]) for n in order]
    assert [r["success"] for r in results] == [True] * 3
    assert [r["leaseReleased"] for r in results] == [False, False, True]
    assert data(await take(http, "q", batch=9)) == [3]


async def test_acks_out_of_order_skip_nothing_when_the_lease_ends(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", leaseTime=10)
    await push(http, "q", 1, 2, 3, 4)
    messages = await take(http, "q", batch=4)
    for n in (3, 0, 2):
        assert (await ack(http, messages[n]))["success"] is True
    clock.turn(11)
    again = await take(http, "q", batch=9)
    assert data(again)[0] == 2  # neither back to 1 nor over 2
    assert data(again) in ([2], [2, 3, 4])
    assert again[0]["retryCount"] == 1
    assert all(m["retryCount"] == 0 for m in again[1:])  # they did not fail
    await done(http, *again)
    assert await take(http, "q") == []


async def test_a_late_failure_behind_completions_moves_nothing_back(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await push(http, "q", 1, 2, 3)
    messages = await take(http, "q", batch=3)
    await ack(http, messages[0])
    await ack(http, messages[2])
    await ack(http, messages[1], "failed")
    clock.turn(1.1)
    assert data(await take(http, "q", batch=9)) == [2, 3]


async def test_what_is_completed_cannot_fail_any_more(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2)
    messages = await take(http, "q", batch=2)
    await ack(http, messages[0])
    for status in ("failed", "dlq", "retry"):
        assert (await ack(http, messages[0], status))["success"] is False
    assert (await ack(http, messages[1]))["success"] is True
    assert await dead(http, "q") == []
