"""What the client reads is what the broker writes; a broker of another version does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import fields

from queenstream.broker import (
    wire,
    wire_admin,
    wire_audit,
    wire_history,
    wire_live,
    wire_pipelines,
    wire_rules,
    wire_search,
    wire_streams,
    wire_system,
)
from queenstream.client._base import (
    answers,
    answers_audit,
    answers_history,
    answers_live,
    answers_pipelines,
    answers_rules,
    answers_search,
    answers_streams,
    answers_system,
)
from queenstream.client._base.answers import Page

# What the client reads by another name than the broker writes it.
NAMED_OTHERWISE: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    answers.Pagination: wire_admin.Page,
    answers.QueueDeleted: wire.Deleted,
    answers.QueueOptions: wire.Options,
    answers_system.Happened: wire_system.Counts,
}
# What says nothing: an error is an exception, ``payload`` is ``data`` again, a page knows its length.
NOT_READ = {"success", "payload", "count"}


def structs() -> Iterator[tuple[type[msgspec.Struct], type[msgspec.Struct]]]:
    """The client's types, each with the broker's."""
    for ours, theirs in (
        (answers, wire_admin),
        (answers_audit, wire_audit),
        (answers_live, wire_live),
        (answers_search, wire_search),
        (answers_history, wire_history),
        (answers_pipelines, wire_pipelines),
        (answers_rules, wire_rules),
        (answers_streams, wire_streams),
        (answers_system, wire_system),
    ):
        for name, kind in vars(ours).items():
            is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            if is_struct and kind.__module__ == ours.__name__ and kind is not answers.Reply:
                yield kind, NAMED_OTHERWISE.get(kind) or getattr(theirs, name)


@pytest.mark.parametrize(("ours", "theirs"), list(structs()), ids=lambda kind: kind.__name__)
def test_the_client_reads_what_the_broker_writes(
    ours: type[msgspec.Struct], theirs: type[msgspec.Struct]
) -> None:
    read = {field.encode_name: field.required for field in fields(ours)}
    written = {field.encode_name for field in fields(theirs)}
    assert set(read) <= written
    assert written - set(read) - NOT_READ == set()
    sometimes = {field.encode_name for field in fields(theirs) if field.default is msgspec.UNSET}
    assert not sometimes & {name for name, required in read.items() if required}, "these may be absent"


def test_what_a_newer_broker_adds_is_passed_over_and_what_an_older_leaves_out_has_a_default() -> None:
    written = (
        b'{"consumerGroup":"g","queue":"q","partitionsUpdated":2,"mood":{"new":true},'
        b'"targetTimestamp":"2026-01-31T12:00:00Z"}'
    )
    sought = msgspec.json.decode(written, type=answers.Sought)
    assert (sought.partitions_updated, sought.dry_run, sought.affected) == (2, False, None)
    assert sought.target_timestamp == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert msgspec.json.decode(b"{}", type=answers_system.Snapshot).messages.pushed == 0


@pytest.mark.parametrize(
    ("items", "offset", "total", "more"),
    [(2, 0, 3, True), (1, 2, 3, False), (0, 9, 3, False), (2, 0, None, True), (1, 0, None, False)],
)
def test_a_page_knows_whether_there_is_more(items: int, offset: int, total: int | None, more: bool) -> None:
    page = Page(range(items), limit=2, offset=offset, total=total)
    assert page == list(range(items))
    assert page.more is more


def test_the_options_of_a_queue_have_the_defaults_of_the_broker() -> None:
    assert msgspec.to_builtins(answers.QueueOptions()) == msgspec.to_builtins(wire.Options())
