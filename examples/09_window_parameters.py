"""What a stream can be told: its windows, grace, lease, order and retries."""

from __future__ import annotations

from queenstream import Queen
from queenstream.errors import Conflict

# How long after its end a window waits for what is still on the way. The longer, the later it comes.
GRACE = {"sensors over a network": 30, "changes from a database": 10, "queues in this broker": 5}


def main() -> None:
    with Queen() as queen:
        for name in ("plain", "full", "slow", "overlap", "pauses", "dozens", *map(_name, GRACE)):
            queen.stream(f"parameters-{name}").delete()
        queen.queue("parameters-events").delete()
        queen.queue("parameters-events").create()
        sources = ["parameters-events"]

        # The least: sources and a window. 30 s of grace, 60 s of lease.
        queen.stream("parameters-plain", "docs").sources(sources).tumbling_time(60).define()

        # Everything. lease_timeout is what a consumer has for a window; it is renewed while the handler runs.
        (
            queen.stream("parameters-full", "docs")
            .sources(sources)
            .partitioned()  # a window for each partition name
            .tumbling_time("5m")
            .grace_period("1m")
            .lease_timeout("2m")
            .event_time("data.ts")  # a time in the payload, instead of when the message was stored
            .idle_timeout("30s")  # a source that is quiet for so long holds no window back
            .retry_limit(3)  # then it goes to the dead letters
            .max_in_flight(2)  # windows of one key that may be out at once
            .emit_empty()  # windows without messages come, too
            .define()
        )

        # Long windows are fewer and cost less; short ones come sooner.
        queen.stream("parameters-slow", "docs").sources(sources).tumbling_time("1h").define()

        # Other kinds of windows.
        queen.stream("parameters-overlap", "docs").sources(sources).sliding_time("1m", "10s").define()
        queen.stream("parameters-pauses", "docs").sources(sources).session_gap("5m").define()
        queen.stream("parameters-dozens", "docs").sources(sources).count(12).define()

        for what, seconds in GRACE.items():
            stream = queen.stream(f"parameters-{_name(what)}", "docs").sources(sources)
            stream.tumbling_time(60).grace_period(seconds).define()

        for found in sorted(queen.admin.streams(), key=lambda stream: stream.name):
            if found.name.startswith("parameters-"):
                key = "partition" if found.partitioned else "global"
                times = f"grace {found.window_grace_period_ms} ms, lease {found.window_lease_timeout_ms} ms"
                print(f"{found.name.removeprefix('parameters-')}: {found.window_type}, {key}, {times}")

        # To say the same again changes nothing. Other windows need reset=True, once there are any.
        queen.stream("parameters-dozens", "docs").sources(sources).count(12).define()
        queen.queue("parameters-events").push([{"n": number} for number in range(12)])
        queen.consumer("parameters-dozens", "reader").process(lambda _: None, limit=1)
        try:
            queen.stream("parameters-dozens", "docs").sources(sources).count(10).define()
        except Conflict:
            print("refused: the stream has windows of 12")
        queen.stream("parameters-dozens", "docs").sources(sources).count(10).define(reset=True)


def _name(text: str) -> str:
    return text.split()[0]


if __name__ == "__main__":
    main()
