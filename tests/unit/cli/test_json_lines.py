"""Lines of JSON as messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.cli.support import json_lines
from queenstream.cli.support.json_lines import BadLine, Line, Rules, batches


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.text(max_size=20), st.text(max_size=20))
def test_an_id_stands_for_number_and_content(one: int, other: int, this: str, that: str) -> None:
    def id_of(number: int, text: str) -> str | None:
        import json

        return Line.read(number, json.dumps(text).encode(), Rules()).transaction_id

    assert (id_of(one, this) == id_of(other, that)) == ((one, this) == (other, that))


def test_numbers_do_not_run_into_content() -> None:
    assert Line.read(1, b"23", Rules()).transaction_id != Line.read(12, b"3", Rules()).transaction_id


def test_ids_do_not_change_between_versions() -> None:
    """A file that was pushed by an older release must be known to a newer one."""
    line = Line.read(3, b'{"n": 1}', Rules())
    assert line.transaction_id == "27d03d3b3a31180d8eaff06396104a4b9ca88df8"


def test_the_payload_is_kept_byte_for_byte() -> None:
    text = b'{"a" : 1.10, "b":"\\u00fc"}'
    assert bytes(Line.read(1, text, Rules()).payload) == text


@pytest.mark.parametrize(
    ("text", "rules", "partition", "id"),
    [
        (b'{"user":{"id":7}}', Rules(partition_key="user.id", anew=True), "7", None),
        (b'{"user":{"id":7}}', Rules(partition_key="data.user.id", anew=True), "7", None),
        (b'{"o":"x"}', Rules("p", transaction_id_key="o"), "p", "x"),
        (b"[1]", Rules(anew=True), "Default", None),
    ],
)
def test_rules(text: bytes, rules: Rules, partition: str, id: str | None) -> None:
    line = Line.read(1, text, rules)
    assert (line.partition, line.transaction_id) == (partition, id)


@pytest.mark.parametrize(
    ("text", "rules", "why"),
    [
        (b"{oops", Rules(), "not JSON"),
        (b"", Rules(), "not JSON"),
        (b"NaN", Rules(), "not JSON"),
        (b"\xff", Rules(), "not JSON"),
        (b'"\xff"', Rules(), "not JSON"),
        (b"[" * 100_000, Rules(), "not JSON"),
        (b"1 2", Rules(), "not JSON"),
        (b"{}", Rules(partition_key="user"), "no text or whole number at user"),
        (b'{"user":1.5}', Rules(partition_key="user"), "no text or whole number"),
        (b'{"user":true}', Rules(partition_key="user"), "no text or whole number"),
        (b'{"user":""}', Rules(partition_key="user"), "1 to 255"),
        (b'{"user":"' + b"x" * 256 + b'"}', Rules(transaction_id_key="user"), "1 to 255"),
        (b'{"user":"a\\u0000"}', Rules(partition_key="user"), "1 to 255"),
        (b"7", Rules(partition_key="user"), "no text or whole number"),
    ],
)
def test_bad_lines_say_why_and_where(text: bytes, rules: Rules, why: str) -> None:
    with pytest.raises(BadLine, match=f"line 17: .*{why}") as caught:
        Line.read(17, text, rules)
    assert caught.value.number == 17
    assert len(str(caught.value)) < 200


def test_batches_are_bounded_by_lines_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MOST_LINES", 3)
    monkeypatch.setattr(json_lines, "MOST_BYTES", 20)
    sizes = [1, 1, 1, 1, 30, 1, 12, 12, 1]
    lines = [Line.read(n, b"1" * size, Rules()) for n, size in enumerate(sizes)]
    assert [[len(bytes(line.payload)) for line in batch] for batch in batches(lines)] == [
        [1, 1, 1], [1, 30], [1, 12, 12], [1],
    ]  # fmt: skip


def test_lines_before_a_bad_one_come_first() -> None:
    def lines() -> Iterator[Line]:
        yield Line.read(1, b"1", Rules())
        yield Line.read(2, b"2", Rules())
        Line.read(3, b"{oops", Rules())

    found = batches(lines())
    assert [line.number for line in next(found)] == [1, 2]
    with pytest.raises(BadLine, match="line 3"):
        next(found)
