"""``queen group``."""

from __future__ import annotations

from tests.integration.cli.running import Queen


async def test_list_and_show(queen: Queen) -> None:
    assert await queen.rows("group", "ls") == []
    await queen("push", "orders", "1", "2", "3")
    await queen("pop", "orders", "--group", "billing")
    listed = (await queen("group", "ls")).row
    assert (listed["name"], listed["topics"], listed["totalLag"]) == ("billing", ["orders"], 2)
    shown = (await queen("group", "show", "billing")).row
    assert shown["queues"]["orders"]["partitionDetails"][0]["lag"] == 2
    (await queen("group", "show", "none")).failed(5, "there is no consumer group none")
    async with queen.terminal("group", "ls") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[0].split() == ["GROUP", "STATE", "LAG", "BEHIND", "MEMBERS", "QUEUES"]
    assert terminal.lines[1].split()[:3] == ["billing", "Stable", "2"]
    async with queen.terminal("group", "show", "billing") as terminal:
        assert await terminal.ended() == 0
    assert "lag      2" in terminal.lines


async def test_seek_tells_what_it_would_do_and_does_it(queen: Queen) -> None:
    await queen("push", "orders", "1", "2", "3")
    assert len(await queen.rows("pop", "orders", "-n", "3", "--group", "billing")) == 3
    seek = ("group", "seek", "billing", "--queue", "orders")
    dry = (await queen(*seek, "--to", "15 minutes ago", "--dry-run")).row
    assert (dry["dryRun"], dry["affected"], dry["partitionsUpdated"]) == (True, 3, 0)
    assert await queen.rows("pop", "orders", "--group", "billing") == []
    (await queen(*seek, "--to", "15 minutes ago")).failed(2, "--yes", "3 messages in between")
    assert await queen.rows("pop", "orders", "--group", "billing") == []
    assert (await queen(*seek, "--to", "15 minutes ago", "--yes")).row["partitionsUpdated"] == 1
    assert [row["data"] for row in await queen.rows("pop", "orders", "-n", "2", "--group", "billing")] == [
        1,
        2,
    ]
    assert (await queen(*seek, "--to", "end", "--yes")).row["toEnd"] is True
    assert await queen.rows("pop", "orders", "--group", "billing") == []
    await queen(*seek, "--to", "beginning", "--yes", "--partition", "Default")
    assert (await queen("pop", "orders", "--group", "billing")).row["data"] == 1


async def test_seek_to_where_or_what_is_not_there(queen: Queen) -> None:
    await queen("push", "orders", "1")
    seek = ("group", "seek", "billing", "--yes")
    (await queen(*seek, "--queue", "orders", "--to", "soon")).failed(2, "'soon' is no moment")
    (await queen(*seek, "--queue", "none", "--to", "end")).failed(5, "there is no queue none")
    missing = await queen(*seek, "--queue", "orders", "--to", "end", "--partition", "none")
    missing.failed(5, "no partition none")


async def test_seek_asks_on_a_terminal(queen: Queen) -> None:
    await queen("push", "orders", "1", "2")
    await queen("pop", "orders", "-n", "2", "--group", "g")
    async with queen.terminal("group", "seek", "g", "--queue", "orders", "--to", "beginning") as terminal:
        await terminal.until("Move group g to the beginning in queue orders? 2 messages in between. [y/N]: ")
        terminal.type("y\n")
        assert await terminal.ended() == 0
    assert terminal.lines[-1] == "moved group g to the beginning in queue orders"
    assert len(await queen.rows("pop", "orders", "-n", "2", "--group", "g")) == 2


async def test_delete(queen: Queen) -> None:
    await queen("push", "orders", "1")
    await queen("push", "jobs", "1")
    for queue in ("orders", "jobs"):
        assert len(await queen.rows("pop", queue, "--group", "g")) == 1
    (await queen("group", "delete", "g")).failed(2, "--yes")
    assert (await queen("group", "delete", "g", "--queue", "orders", "--yes")).row["queues"] == ["orders"]
    assert len(await queen.rows("pop", "orders", "--group", "g")) == 1
    assert await queen.rows("pop", "jobs", "--group", "g") == []
    assert sorted((await queen("group", "delete", "g", "--yes")).row["queues"]) == ["jobs", "orders"]
    assert await queen.rows("group", "ls") == []
    (await queen("group", "delete", "g", "--yes")).failed(5, "there is no consumer group g")
