"""``queen rules``."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cli.running import Queen

FILE = """
[fraud.patterns]
rapid = "COUNT(*) > 10 IN 30s WHERE action = 'click'"
many = "COUNT(*) > 100 IN 1h"

[fraud.anomalies.spend]
field = "amount"
window = "10m"

[sensors]
"""


async def test_apply_look_and_apply_again(queen: Queen, tmp_path: Path) -> None:
    assert await queen.rows("rules", "ls") == []
    file = tmp_path / "rules.toml"
    file.write_text(FILE)
    tried = await queen.rows("rules", "apply", str(file), "--dry-run")
    assert [(row["set"], row["rule"], row["change"], row["version"]) for row in tried] == [
        ("fraud", "rapid", "new", 0),
        ("fraud", "many", "new", 0),
        ("fraud", "spend", "new", 0),
    ]
    assert await queen.rows("rules", "ls") == []
    await queen.rows("rules", "apply", str(file))
    listed = {row["name"]: row for row in await queen.rows("rules", "ls", "-o", "json")}
    assert [(row["patterns"], row["anomalies"]) for row in listed.values()] == [(2, 1), (0, 0)]

    file.write_text(FILE.replace("> 10 ", "> 20 ").replace('window = "10m"', 'window = "10m"\nthreshold = 4'))
    applied = await queen.rows("rules", "apply", str(file))
    assert {row["rule"]: row["change"] for row in applied} == {
        "rapid": "changed",
        "many": "kept",
        "spend": "tuned",
    }
    shown = (await queen("rules", "show", "fraud")).row
    assert shown["version"] == applied[0]["version"] > listed["fraud"]["version"]
    assert shown["rules"]["anomalies"]["spend"]["threshold"] == 4.0
    async with queen.terminal("rules", "show", "fraud") as terminal:
        assert await terminal.ended() == 0
    assert "many   patterns   COUNT(*) > 100 IN 1h" in terminal.lines
    async with queen.terminal("rules", "apply", str(file)) as terminal:
        assert await terminal.ended() == 0
    assert f"queen: fraud: still version {shown['version']}" in terminal.lines

    (await queen("rules", "delete", "fraud")).failed(2, "Delete the set fraud (3 rules)?", "--yes")
    assert (await queen("rules", "delete", "fraud", "--yes")).row["existed"] is True
    (await queen("rules", "show", "fraud")).failed(5, "there is no set of rules 'fraud'")


async def test_what_cannot_be_read_shows_the_place_and_changes_nothing(queen: Queen, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(FILE.replace("IN 1h", "FOR 1h"))
    nobody = ("--url", "http://127.0.0.1:1")  # the file is read before a broker is looked for
    done = await queen("rules", "apply", str(file), *nobody)
    assert (done.code, done.err) == (
        2,
        "queen: fraud.patterns.many: expected IN and a span such as 30s, found FOR\n"
        "  COUNT(*) > 100 FOR 1h\n"
        "                 ^\n",
    )
    (await queen("rules", "apply", str(tmp_path / "none.toml"), *nobody)).failed(2, "cannot be read")
    file.write_text(FILE)
    (await queen("rules", "apply", str(file), *nobody)).failed(3, "no broker at")
    assert await queen.rows("rules", "ls") == []
