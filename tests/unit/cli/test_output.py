"""What commands print, in each form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Struct, yaml

from queenstream.cli.support import output
from queenstream.cli.support.output import (
    Column,
    Format,
    Printer,
    clock,
    compact,
    count,
    lasting,
    milliseconds,
    number,
    since,
    text,
    visible,
    yes_no,
)

Capture = pytest.CaptureFixture[str]


class Inner(Struct, rename="camel"):
    dead_letter: int


class Thing(Struct, rename="camel"):
    name: str
    created_at: datetime
    messages: Inner


MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
THINGS = [Thing("orders", MOMENT, Inner(0)), Thing("a\x1b[31m", MOMENT, Inner(1234))]
COLUMNS = [Column("QUEUE", "name"), number("DEAD", "messages.deadLetter", alarm="red"), Column("X", "a.b.c")]


def test_in_a_pipe_it_is_json_by_line_under_the_names_of_the_api(capsys: Capture) -> None:
    Printer().rows(THINGS, COLUMNS, empty="nothing")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "name": "orders",
        "createdAt": "2026-01-31T12:00:00Z",
        "messages": {"deadLetter": 0},
    }
    assert lines[1]["name"] == "a\x1b[31m"


def test_a_table_has_a_title_for_each_column_and_cuts_nothing(capsys: Capture) -> None:
    long = Thing("q" * 300, MOMENT, Inner(5))
    Printer(Format.TABLE).rows([*THINGS, long], COLUMNS, empty="nothing")
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()] == [
        ["QUEUE", "DEAD", "X"],
        ["orders", "0", "-"],
        ["a\\x1b[31m", "1,234", "-"],
        ["q" * 300, "5", "-"],
    ]
    assert "\x1b" not in shown


def test_yaml_is_one_list_or_one_thing(capsys: Capture) -> None:
    Printer(Format.YAML).rows(THINGS, COLUMNS, empty="nothing")
    assert [row["name"] for row in yaml.decode(capsys.readouterr().out)] == ["orders", "a\x1b[31m"]
    Printer(Format.YAML).record(THINGS[0], COLUMNS)
    assert yaml.decode(capsys.readouterr().out)["createdAt"] == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("form", "expected"), [(Format.TABLE, "no queues\n"), (Format.JSON, ""), (Format.YAML, "")]
)
def test_nothing_to_show(capsys: Capture, form: Format, expected: str) -> None:
    Printer(form).rows([], COLUMNS, empty="no queues")
    assert capsys.readouterr().out == expected


def test_a_record_has_fields_and_tables(capsys: Capture) -> None:
    record = {"name": "orders", "groups": [{"name": "g"}], "none": [], "queues": {"a": {"name": "q"}}}
    names = [Column("NAME", "name")]
    Printer(Format.TABLE).record(
        record,
        [Column("queue", "name"), Column("since", "no")],
        [("groups", names), ("none", names), ("queues", names)],
    )
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "queue  orders", "since  -", "", "groups", "NAME", "g", "", "queues", "NAME", "q",
    ]  # fmt: skip


def test_lines_without_end_line_up_and_show_the_last_column_whole(capsys: Capture) -> None:
    out = Printer(Format.TABLE)
    columns = [Column("PARTITION", "p"), Column("DATA", "data", compact)]
    out.line({"p": "long name", "data": {"x": "y" * 200}}, columns)
    out.line({"p": "b", "data": "\x07"}, columns)
    assert capsys.readouterr().out.splitlines() == [
        'long name  {"x":"' + "y" * 200 + '"}',
        'b          "\\u0007"',
    ]


def test_an_outcome_is_a_sentence_for_people_and_an_answer_for_programs(capsys: Capture) -> None:
    Printer(Format.TABLE).done({"deleted": True}, "deleted queue a\x1b")
    Printer().done({"deleted": True}, "deleted")
    assert capsys.readouterr().out == 'deleted queue a\\x1b\n{"deleted":true}\n'


def test_cells() -> None:
    now = datetime.now(UTC)
    assert (text(None), text(""), text(["a", "b"]), text(0)) == ("-", "-", "a, b", "0")
    assert (yes_no(True), yes_no(None)) == ("yes", "no")
    assert (count(None), count(1_000)) == ("-", "1,000")
    assert (since(None), since(now - timedelta(minutes=5, seconds=1))) == ("-", "5m ago")
    assert (lasting(None), lasting(90)) == ("-", "1m")
    assert (milliseconds(None), milliseconds(60_000)) == ("-", "1m")
    assert clock(now) == f"{now.astimezone():%H:%M:%S}.{now.microsecond // 1000:03}"
    assert clock(datetime(2026, 1, 31, 12, 0, 0, 5000).astimezone()) == "2026-01-31 12:00:00.005"
    assert clock(None) == "-"
    assert visible("plain ä") == "plain ä"
    assert visible("a\n\x9b\u202e") == "a\\x0a\\x9b\\x202e"


def test_a_narrow_terminal_shortens_only_what_may_be(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [Column("NAME", "name"), Column("DATA", "data", cut=True), Column("MORE", "more", cut=True)]
    record = {"name": "n" * 30, "data": "d" * 60, "more": "m" * 18}
    for width, data, more in ((40, "d" * 15 + "…", "m" * 15 + "…"), (80, "d" * 27 + "…", "m" * 18)):
        monkeypatch.setattr(output, "_PIPE_WIDTH", width)
        Printer(Format.TABLE).rows([record], columns, empty="")
        _, row = capsys.readouterr().out.splitlines()
        assert row.split() == ["n" * 30, data, more]
