"""What the client reads is what the broker writes; a broker of another version does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import fields

from queenstream.broker.schemas import (
    admin,
    audit,
    history,
    live,
    messages,
    pipelines,
    rules,
    search,
    streams,
    system,
)
from queenstream.client._base.responses import (
    audit as answers_audit,
)
from queenstream.client._base.responses import (
    history as answers_history,
)
from queenstream.client._base.responses import (
    live as answers_live,
)
from queenstream.client._base.responses import (
    pipelines as answers_pipelines,
)
from queenstream.client._base.responses import (
    resources,
)
from queenstream.client._base.responses import (
    rules as answers_rules,
)
from queenstream.client._base.responses import (
    search as answers_search,
)
from queenstream.client._base.responses import (
    streams as answers_streams,
)
from queenstream.client._base.responses import (
    system as answers_system,
)
from queenstream.client._base.responses.resources import Page

# What the client reads by another name than the broker writes it.
NAMED_OTHERWISE: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    resources.Pagination: admin.Page,
    resources.QueueDeleted: messages.Deleted,
    resources.QueueOptions: messages.Options,
    answers_system.Happened: system.Counts,
}
# What says nothing: an error is an exception, ``payload`` is ``data`` again, a page knows its length.
NOT_READ = {"success", "payload", "count"}


def structs() -> Iterator[tuple[type[msgspec.Struct], type[msgspec.Struct]]]:
    """The client's types, each with the broker's."""
    for ours, theirs in (
        (resources, admin),
        (answers_audit, audit),
        (answers_live, live),
        (answers_search, search),
        (answers_history, history),
        (answers_pipelines, pipelines),
        (answers_rules, rules),
        (answers_streams, streams),
        (answers_system, system),
    ):
        for name, kind in vars(ours).items():
            is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            if is_struct and kind.__module__ == ours.__name__ and kind is not resources.Reply:
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
    sought = msgspec.json.decode(written, type=resources.Sought)
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
    assert msgspec.to_builtins(resources.QueueOptions()) == msgspec.to_builtins(messages.Options())
