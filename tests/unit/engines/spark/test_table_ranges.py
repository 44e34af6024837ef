"""How tables are cut into batches and tasks, without a server."""

from __future__ import annotations

import random

import pytest

from queenstream.connectors.postgres.catalog import Column, Table
from queenstream.connectors.postgres.keys import KeyOrder
from queenstream.engines.spark.sources.tables.cassandra import LEAST, MOST, Span, cut, next_span, place_of
from queenstream.engines.spark.sources.tables.options import BEGINNING, Limits, offset_of
from queenstream.errors import CheckpointError


def test_conditions_of_a_key_of_two_columns() -> None:
    columns = [Column(name, "text", "text", -1, required=True, computed=False) for name in ("a", 'b"c')]
    table = Table(1, "s", "t", "r", {each.name: each for each in columns}, ())
    order = KeyOrder(table, tuple(columns))
    assert order.ordered == 'r."a", r."b""c"'
    assert order.beyond(None) == "true"
    assert order.beyond(["x", "y"], 3) == (
        'r."a" >= $3::text::text and (r."a", r."b""c") > ($3::text::text, $4::text::text)'
    )
    assert order.up_to(["1", "2"]) == 'r."a" <= 1 and (r."a", r."b""c") <= (1, 2)'


def test_limits_are_of_rows_and_of_bytes() -> None:
    limits = Limits(1_000, 10_000, 2)
    assert [limits.most(each) for each in (None, 1.0, 50.0, 1e6)] == [1_000, 1_000, 200, 1]


def test_an_offset_of_another_way_to_read_is_refused() -> None:
    assert offset_of({**BEGINNING}, "t") == BEGINNING
    with pytest.raises(
        CheckpointError, match="this checkpoint was written when t was still read in another way"
    ):
        offset_of({"logOffset": 3}, "t")


def test_the_ring_is_read_once_whatever_is_planned() -> None:
    chance = random.Random(7)
    ring = sorted(chance.randint(LEAST + 1, MOST) for _ in range(3_000))
    ring += [ring[500]] * 900  # a large partition
    ring.sort()
    for sample, most in ((100, 40), (100, 700), (2_000, 5_000)):
        after, spans = LEAST, list[Span]()
        while not spans or spans[-1].upto < MOST:
            tokens = [token for token in ring if token > after][:sample]
            span = next_span(after, tokens, all_of_them=len(tokens) < sample, most=most)
            assert span.upto > after
            spans.append(span)
            after = span.upto
        sizes = [sum(each.after < token <= each.upto for token in ring) for each in spans]
        assert sum(sizes) == len(ring)
        assert max(sizes) <= 2 * most + 900
        parts = [part for each in spans for part in cut(each, 4)]
        assert [part.after for part in parts] == [LEAST, *(part.upto for part in parts[:-1])]
    assert 0 <= place_of(LEAST) < place_of(MOST) < 1 << 48
