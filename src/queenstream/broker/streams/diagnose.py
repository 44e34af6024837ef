"""Why a group gets no window, gets one again, or misses messages: reasons with what to do about each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from queenstream.broker.schemas.streams import Explained, Reason
from queenstream.broker.streams.model import GLOBAL, Source, Stream
from queenstream.core import windows

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

SLOW_SECONDS = 5.0  # what is not assigned by then is held up
EXPIRED = "the lease expired before an acknowledgement"  # as queen.expire_lease says it
_LATEST = windows.to_us(datetime.max.replace(tzinfo=UTC))
_EARLIEST = windows.to_us(datetime.min.replace(tzinfo=UTC))


@dataclass
class Facts:
    """What was found out about a stream, a group and perhaps one key."""

    stream: Stream
    group_name: str | None
    key: str | None
    now: datetime
    maintenance: bool = False
    sources: list[Any] = field(default_factory=list)
    shared_keys: bool = True  # some key is in two sources; true where that does not matter
    following: Any = None  # the open window that ends first
    late: int = 0
    group: Any = None
    outstanding: list[Any] = field(default_factory=list)  # what comes next for the group, in each partition
    last_dead: Any = None

    @property
    def now_us(self) -> int:
        return windows.to_us(self.now)

    @property
    def assigned_up_to(self) -> datetime:
        """Everything that was stored before is in its windows."""
        waiting = [s["waiting_since"] for s in self.sources if s["waiting_since"] is not None]
        return min(waiting, default=self.now)


def moment(us: int) -> datetime:
    """The time, or the end of the calendar if it lies beyond: an event may have any time."""
    return windows.from_us(min(max(us, _EARLIEST), _LATEST))


async def explain(broker: Broker, stream: Stream, group: str | None, key: str | None) -> Explained:
    """Look and say why; a handful of short queries."""
    facts = await _look(broker, stream, group, key)
    holding = [reason for make in _HOLDING for reason in make(facts)]
    if not holding:
        holding = list(_up_to_date(facts))
    return Explained(
        stream.name,
        group,
        key,
        holding + [reason for make in _BESIDES for reason in make(facts)],
        facts.now,
        None if stream.watermark_us is None else moment(stream.watermark_us),
        facts.assigned_up_to,
    )


async def _look(broker: Broker, stream: Stream, group: str | None, key: str | None) -> Facts:
    ask, now = broker.database.admin, broker.database.now()
    facts = Facts(stream, group, key, (await ask("moment", now))[0]["now"], broker.maintenance)
    lanes = None if key is None else sorted({stream.lane(key, n) for n in range(stream.max_in_flight)})
    facts.sources = await ask("explain_sources", stream.id, key if stream.partitioned else None)
    if stream.partitioned and key is None and len(stream.sources) > 1:
        facts.shared_keys = (await ask("explain_shared_keys", stream.id))[0]["shared"]
    facts.following = next(iter(await ask("explain_next", stream.id, key)), None)
    facts.late = stream.late
    if stream.late and key is not None:
        facts.late = (await ask("count_late_messages", stream.id, key))[0]["total"]
    if group is not None:
        facts.group = next(iter(await ask("stream_groups", stream.id, group, lanes, now)), None)
    if facts.group is not None:
        facts.outstanding = await ask("explain_windows", facts.group["id"], lanes, now)
        if facts.group["dead"]:
            facts.last_dead = (await ask("explain_dead", stream.queue_id, group, lanes))[0]
    return facts


def _span(stream: Stream, row: Any) -> str:
    if row["start_us"] is None:  # retention took the window
        return "a window that is forgotten by now"
    if stream.window_type == "count":
        return f"the window of messages {row['start_us'] + 1} to {row['end_us']} of key {row['key']!r}"
    start, end = _iso(row["start_us"]), _iso(row["end_us"])
    return f"window [{start}, {end}) of key {row['key']!r}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _iso(us: int) -> str:
    return windows.iso(windows.to_us(moment(us)))


def _when(at: datetime) -> str:
    return windows.iso(windows.to_us(at))


def _for(seconds: float) -> str:
    """A duration, as short as it can be read."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.1f} s"


def _named(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# What holds a group up


def _no_such_group(facts: Facts) -> Iterator[Reason]:
    if facts.group_name is not None and facts.group is None:
        since = facts.stream.subscription_from
        start = "at the first message" if since is None else f"at {_when(since)} (subscription_from)"
        yield Reason(
            "no_such_group",
            f"Group {facts.group_name!r} has never polled this stream.",
            f"Poll with consumerGroup {facts.group_name!r}; a new group starts {start}. If it should exist, "
            "check how its name is spelled: /consumers lists the groups.",
        )


def _no_such_key(facts: Facts) -> Iterator[Reason]:
    stream, key = facts.stream, facts.key
    if key is None:
        return
    if not stream.partitioned and key != GLOBAL:
        yield Reason(
            "no_such_key",
            f"The stream is not partitioned, so no window has the key {key!r}.",
            f"Ask for the key {GLOBAL}, or define the stream with partitioned: true.",
        )
    elif stream.partitioned and not any(s["had_messages"] for s in facts.sources):
        names = _named([s["name"] for s in facts.sources])
        yield Reason(
            "no_such_key",
            f"No source has had a message in a partition named {key!r} (sources: {names}).",
            f"Push with partition {key!r}; the key is the partition's name, upper and lower case differ.",
        )


def _no_messages(facts: Facts) -> Iterator[Reason]:
    if facts.following is None and not any(s["has_messages"] for s in facts.sources):
        if facts.key is not None and not any(s["had_messages"] for s in facts.sources):
            return  # said by no_such_key
        names = _named([s["name"] for s in facts.sources])
        what = "in the sources" if facts.key is None else f"of key {facts.key!r} in the sources"
        yield Reason(
            "no_messages",
            f"There are no messages {what}: {names}.",
            "Push into a source, and check that these are the queues that you push into.",
        )


def not_assigned(facts: Facts) -> Iterator[Reason]:
    """Messages are stored, but no broker puts them into windows."""
    waited = (facts.now - facts.assigned_up_to).total_seconds()
    if not any(s["waiting_since"] is not None for s in facts.sources):
        return
    names = _named([s["name"] for s in facts.sources if s["waiting_since"] is not None])
    if facts.maintenance:
        yield Reason(
            "maintenance",
            f"The broker is in maintenance mode: messages in {names} are not put into windows.",
            'End it with POST /api/v1/system/maintenance {"enabled": false}.',
        )
    elif waited > SLOW_SECONDS:
        yield Reason(
            "not_assigned",
            f"Messages in {names} have waited for {_for(waited)} to be put into windows.",
            "The brokers are behind, or the step fails: look into their logs, and at background_failures in "
            "/metrics.",
        )


def _before_start(facts: Facts) -> Iterator[Reason]:
    since = None if facts.group is None else facts.group["subscription_from"]
    following = facts.following
    if since is None or facts.stream.window_type == "count":
        return
    if since > facts.now or (following is not None and following["start_us"] < windows.to_us(since)):
        yield Reason(
            "before_start",
            f"Group {facts.group_name!r} starts at {_when(since)}: windows that start before are not for it.",
            "Seek the group to an earlier time if it should have them.",
        )


def _not_ripe(facts: Facts) -> Iterator[Reason]:
    """The next window takes messages still, by the clock or by count."""
    stream, row = facts.stream, facts.following
    if row is None:
        return
    if stream.window_type == "count":
        size = row["end_us"] - row["start_us"]
        yield Reason(
            "not_ripe",
            f"{_capital(_span(stream, row))} has {row['messages']} of {size} messages.",
            f"Push {size - row['messages']} more into the key; only its last message closes a count window.",
        )
        return
    if stream.event_time_path is not None and (
        stream.watermark_us is None or stream.watermark_us < row["end_us"] + stream.grace_us
    ):
        return  # see _watermark
    ripe = row["end_us"] + stream.grace_us
    if stream.event_time_path is None and facts.now_us < ripe:
        yield Reason(
            "not_ripe",
            f"The next window, {_span(stream, row)}, closes at {_iso(ripe)}: its end and a grace of "
            f"{_for(stream.grace_us / 1e6)}. That is in {_for((ripe - facts.now_us) / 1e6)}; the clock is at "
            f"{_when(facts.now)}.",
            "Wait for it, or define the stream with a shorter window or window_grace_period_ms.",
        )
        return
    yield Reason(
        "closing",
        f"The next window, {_span(stream, row)}, is ripe since {_iso(ripe)} and is being closed.",
        "Poll again in a moment. If it stays so, a push into a source is under way for very long, or the "
        "brokers' logs say why they cannot close it.",
    )


def _watermark(facts: Facts) -> Iterator[Reason]:
    """By event time the sources decide, not the clock."""
    stream, row = facts.stream, facts.following
    if row is None or stream.event_time_path is None or stream.window_type == "count":
        return
    ripe = row["end_us"] + stream.grace_us
    if stream.watermark_us is not None and stream.watermark_us >= ripe:
        return
    mark = windows.Watermark(tuple(source.name for source in stream.sources), time=stream.watermark_us)
    mark.highest = {s.name: s.highest_us for s in stream.sources if s.highest_us is not None}
    mark.idle = {source.name for source in stream.sources if source.idle}
    at = "has no time yet" if stream.watermark_us is None else f"is at {_iso(stream.watermark_us)}"
    holders = mark.holders
    for source in stream.sources:
        if source.name not in holders:
            continue
        if source.highest_us is None:
            yield Reason(
                "source_silent",
                f"The watermark {at}: source {source.name!r} holds it, which has shown no event time yet. "
                f"{_idle_when(stream, source, facts.now)} The next window, {_span(stream, row)}, closes when "
                f"the watermark reaches {_iso(ripe)}.",
                f"Push into {source.name!r} (the time is read from {stream.event_time_path}), set "
                "idle_timeout_ms, or define the stream without this source.",
            )
        else:
            yield Reason(
                "watermark_held",
                f"The watermark {at}: source {source.name!r} holds it, whose highest event time is "
                f"{_iso(source.highest_us)}. The next window, {_span(stream, row)}, closes when it reaches "
                f"{_iso(ripe)} (its end and the grace). {_idle_when(stream, source, facts.now)}",
                f"Push a message with {stream.event_time_path} at {_iso(ripe)} or later into "
                f"{source.name!r}, or set idle_timeout_ms so that a quiet source holds nothing.",
            )


def _idle_when(stream: Stream, source: Source, now: datetime) -> str:
    if stream.idle_timeout_us is None:
        return "idle_timeout_ms is not set, so it holds the watermark however long it is quiet."
    if source.quiet_since is None:
        return "It is being read."
    left = source.quiet_since + timedelta(microseconds=stream.idle_timeout_us) - now
    return f"If it stays quiet, it counts as idle in {_for(left.total_seconds())} (idle_timeout_ms)."


def _leased(facts: Facts) -> Iterator[Reason]:
    stream = facts.stream
    rows = [row for row in facts.outstanding if row["leased"]]
    for row in rows[:5]:
        left = (row["ready_at"] - facts.now).total_seconds()
        yield Reason(
            "leased",
            f"Group {facts.group_name!r} has {_span(stream, row)} out under a lease until "
            f"{_when(row['ready_at'])} (in {_for(left)}), attempt {row['tries'] + 1}. The windows after it "
            "wait.",
            "Acknowledge it, or wait for the lease to end. Other keys go on meanwhile; max_in_flight lets "
            "more windows of one key out.",
        )
    if facts.group is not None and facts.group["leased"] > len(rows[:5]):
        yield Reason(
            "leased",
            f"In all, {facts.group['leased']} windows are out under leases of group {facts.group_name!r}.",
            "List them: /windows with consumerGroup and state=leased.",
        )


def _lease_expired(facts: Facts) -> Iterator[Reason]:
    stream = facts.stream
    for row in facts.outstanding:
        if not (row["ran_out"] or row["error"] == EXPIRED):
            continue
        count = row["tries"] + (1 if row["ran_out"] else 0)
        yield Reason(
            "lease_expired",
            f"A lease on {_span(stream, row)} ran out before it was acknowledged, so the same window comes "
            f"again; it has failed {_times(count)} (retry_limit {stream.retry_limit}).",
            f"Raise window_lease_timeout_ms (now {stream.lease_seconds * 1000:.0f}), renew the lease while "
            "the work goes on, and check that every window is acknowledged.",
        )
        return  # one says it all


def _retrying(facts: Facts) -> Iterator[Reason]:
    stream = facts.stream
    rows = [row for row in facts.outstanding if row["tries"] and row["error"] != EXPIRED]
    for row in rows[:5]:
        left = max(stream.retry_limit + 1 - row["tries"], 0)
        yield Reason(
            "retrying",
            f"{_capital(_span(stream, row))} has failed {_times(row['tries'])}; the "
            f"last error: {row['error']}. The group cannot pass it before {left} more, then it goes to the "
            f"dead letters (retry_limit {stream.retry_limit}).",
            "Mend what the error says, in the consumer or in the data; or seek the group past the window.",
        )


def _behind(facts: Facts) -> Iterator[Reason]:
    if facts.group is None or not any(row["ready_at"] <= facts.now for row in facts.outstanding):
        return
    waiting = facts.group["lag"] - facts.group["leased"]
    last = facts.group["last_ack_at"]
    seen = "It has acknowledged none yet." if last is None else f"Its last answer was at {_when(last)}."
    yield Reason(
        "behind",
        f"{waiting} closed {'window waits' if waiting == 1 else 'windows wait'} for group "
        f"{facts.group_name!r}, and nobody takes what is ready. {seen}",
        "Poll; if consumers do, they are too few or too slow: start more of them.",
    )


def _held_back(facts: Facts) -> Iterator[Reason]:
    row = next((r for r in facts.outstanding if not r["leased"] and r["ready_at"] > facts.now), None)
    if row is not None:
        yield Reason(
            "held_back",
            f"{_capital(_span(facts.stream, row))} is closed, but does not come before "
            f"{_when(row['ready_at'])}; the clock is at {_when(facts.now)}.",
            "Wait for it; or seek the group to the window's start, which makes it ready at once.",
        )


_HOLDING = (
    _no_such_group,
    _no_such_key,
    _no_messages,
    not_assigned,
    _leased,
    _retrying,
    _lease_expired,
    _behind,
    _held_back,
    _before_start,
    _watermark,
    _not_ripe,
)


def _up_to_date(facts: Facts) -> Iterator[Reason]:
    who = f"Group {facts.group_name!r} is past every window" if facts.group else "Every window is closed"
    yield Reason(
        "up_to_date",
        f"{who}, and no window is open{'' if facts.key is None else f' for key {facts.key!r}'}.",
        "Nothing to do: the next window begins with the next message.",
    )


# What does not hold it up, but explains what is missing


def _late(facts: Facts) -> Iterator[Reason]:
    if facts.late:
        one = facts.late == 1
        yield Reason(
            "late_messages",
            f"{facts.late} {'message is' if one else 'messages are'} in no window: late, or without an event "
            "time.",
            "See /late for which and why. Raise window_grace_period_ms if messages come later than that; "
            "check event_time_path if they have no time.",
        )


def _dead(facts: Facts) -> Iterator[Reason]:
    row = facts.last_dead
    if row is not None:
        count = facts.group["dead"]
        yield Reason(
            "dead",
            f"{count} {'window is' if count == 1 else 'windows are'} in the dead letters of group "
            f"{facts.group_name!r} and will not come again. The last, at {_when(row['failed_at'])}: "
            f"{_span(facts.stream, row)}, failed {_times(row['tries'])}: {row['error']}.",
            "List them: /windows with consumerGroup and state=dead. Mend the cause, then seek the group back "
            "to the window's start.",
        )


def _incomplete(facts: Facts) -> Iterator[Reason]:
    row = next((row for row in facts.outstanding if not row["complete"]), None)
    if row is not None:
        yield Reason(
            "incomplete",
            f"Retention has taken messages of {_span(facts.stream, row)}: it comes with complete: false.",
            "Consume sooner, or give the sources a longer ttl or retention.",
        )


def _partition_names(facts: Facts) -> Iterator[Reason]:
    stream = facts.stream
    if not stream.partitioned or len(facts.sources) < 2:
        return
    with_ = [s["name"] for s in facts.sources if s["had_messages"]]
    without = [s["name"] for s in facts.sources if not s["had_messages"]]
    remedy = (
        "A window joins partitions of the same name: push what belongs together into partitions whose names "
        "are equal in every source, upper and lower case included."
    )
    if facts.key is not None and with_ and without:
        yield Reason(
            "partition_names",
            f"Partition {facts.key!r} has messages in {_named(with_)}, but none in {_named(without)}.",
            remedy,
        )
    elif facts.key is None and len(with_) > 1 and not facts.shared_keys:
        yield Reason(
            "partition_names",
            f"No partition name appears in more than one source ({_named(with_)}), so no window holds "
            "messages of two.",
            remedy,
        )


_BESIDES = (_dead, _late, _incomplete, _partition_names)
