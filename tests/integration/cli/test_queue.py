"""``queen queue``."""

from __future__ import annotations

from msgspec import yaml

from tests.integration.cli.running import Queen


async def test_create_list_show_clear_delete_in_a_pipe(queen: Queen) -> None:
    assert await queen.rows("queue", "ls") == []
    flags = (
        "--namespace",
        "shop",
        "--task",
        "bill",
        "--set",
        "leaseTime=60",
        "--set",
        "retentionEnabled=true",
    )
    created = (await queen("queue", "create", "orders", *flags)).row
    assert (created["namespace"], created["task"]) == ("shop", "bill")
    assert (created["options"]["leaseTime"], created["options"]["retentionEnabled"]) == (60, True)
    await queen("push", "orders", '{"n": 1}', '{"n": 2}', "--partition", "ann")
    await queen("push", "other", "1")

    listed = {row["name"]: row for row in await queen.rows("queue", "ls")}
    assert set(listed) == {"orders", "other"}
    assert listed["orders"]["messages"] == {
        "total": 2, "pending": 2, "processing": 0, "completed": 0, "deadLetter": 0,
    }  # fmt: skip
    assert [row["name"] for row in await queen.rows("queue", "ls", "--namespace", "shop")] == ["orders"]
    assert [row["name"] for row in await queen.rows("queue", "ls", "--search", "oth")] == ["other"]
    assert len(await queen.rows("queue", "ls", "-n", "1")) == 1

    shown = (await queen("queue", "show", "orders")).row
    assert {p["name"]: p["total"] for p in shown["partitions"]} == {"Default": 0, "ann": 2}
    as_yaml = await queen("queue", "show", "orders", "-o", "yaml")
    assert yaml.decode(as_yaml.out)["options"] == shown["options"]
    names = yaml.decode((await queen("queue", "ls", "-o", "yaml")).out)
    assert [row["name"] for row in names] == ["orders", "other"]

    cleared = (await queen("queue", "clear", "orders", "--partition", "ann", "--yes")).row
    assert (cleared["queue"], cleared["deleted"]) == ("orders", 2)
    assert (await queen("queue", "delete", "orders", "--yes")).row["existed"] is True
    assert [row["name"] for row in await queen.rows("queue", "ls")] == ["other"]


async def test_a_table_on_a_terminal(queen: Queen) -> None:
    await queen("push", "orders", "1", "2")
    async with queen.terminal("queue", "ls") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[0].split() == [
        "QUEUE", "NAMESPACE", "PARTITIONS", "GROUPS", "PENDING", "PROCESSING", "COMPLETED", "DEAD",
    ]  # fmt: skip
    assert terminal.lines[1].split() == ["orders", "-", "1", "0", "2", "0", "0", "0"]
    assert "\x1b[" in terminal.raw
    async with queen.terminal("queue", "show", "orders") as terminal:
        assert await terminal.ended() == 0
    assert "queue                      orders" in terminal.lines
    assert "leaseTime                  300" in terminal.lines
    assert "partitions" in terminal.lines
    in_a_pipe = await queen("queue", "ls", "-o", "table")
    assert in_a_pipe.out.startswith("QUEUE")
    assert "\x1b" not in in_a_pipe.out


async def test_nothing_there_is_said_to_people(queen: Queen) -> None:
    async with queen.terminal("queue", "ls") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines == ["no queues; the first push makes one"]


async def test_deleting_asks_on_a_terminal(queen: Queen) -> None:
    await queen("push", "orders", "1")
    for answer, code in (("n\n", 1), ("\n", 1), ("\x04", 1), ("\x03", 130), ("y\n", 0)):
        async with queen.terminal("queue", "delete", "orders") as terminal:
            await terminal.until("Delete queue orders with 1 message? [y/N]: ")
            terminal.type(answer)
            assert await terminal.ended() == code
        assert ("queen: nothing was changed" in terminal.text) == (code == 1)
        assert len(await queen.rows("queue", "ls")) == (1 if code else 0)
    assert "deleted queue orders" in terminal.lines


async def test_deleting_in_a_pipe_needs_yes(queen: Queen) -> None:
    await queen("push", "orders", "1")
    for command in ("delete", "clear"):
        (await queen("queue", command, "orders")).failed(2, "--yes")
    assert (await queen("queue", "show", "orders")).row["messages"]["total"] == 1


async def test_what_is_not_there(queen: Queen) -> None:
    for command in (("show",), ("delete", "--yes"), ("clear", "--yes")):
        (await queen("queue", command[0], "none", *command[1:])).failed(5, "there is no queue none")


async def test_options_that_cannot_be(queen: Queen) -> None:
    (await queen("queue", "create", "q", "--set", "lease=5")).failed(2, "no option lease", "leaseTime")
    (await queen("queue", "create", "q", "--set", "ttl")).failed(2, "has no value", "--set leaseTime=60")
    (await queen("queue", "create", "q", "--set", "ttl=soon")).failed(2, "a number, true or false")
    (await queen("queue", "create", "q", "--set", "ttl=-1")).failed(2, "ttl")
    assert await queen.rows("queue", "ls") == []


async def test_names_that_a_shell_or_a_url_would_mind(queen: Queen) -> None:
    name = "a b/ü?&%\x1b[31m"
    await queen("push", name, "1")
    assert (await queen("queue", "show", name)).row["name"] == name
    async with queen.terminal("queue", "ls") as terminal:
        await terminal.ended()
    assert "a b/ü?&%\\x1b[31m" in terminal.text
    assert "\x1b[31m " not in terminal.raw.replace("\x1b[31m\x1b", "")
