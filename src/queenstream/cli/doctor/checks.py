"""What ``queen doctor`` checks: pure functions from facts to findings.

``CHECKS`` is the list of them. ``facts.py`` names the facts, ``probes.py`` finds them out, ``settings.py``
has the table of PostgreSQL settings.

>>> [finding] = examine(Facts(python=(3, 10, 1)), only="python")
>>> finding.status, finding.found
(<Status.PROBLEM: 'problem'>, '3.10.1')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from queenstream.cli.doctor.facts import GB, KB, MB, CannotLook, Facts, Holder, Missing, Value, known
from queenstream.cli.doctor.settings import MINUTE, SETTINGS, Expected, set_it

OLDEST_PYTHON = (3, 11)
OLDEST_POSTGRES = 15
JAVA_FOR_SPARK = 17
CLOCK_WARNING_SECONDS, CLOCK_PROBLEM_SECONDS = 1.0, 30.0
HELD_WARNING_SECONDS, HELD_PROBLEM_SECONDS = 60.0, 3600.0
HELD_WARNING_TRANSACTIONS = 1_000_000  # for a slot, which has no age in seconds
DEAD_ROWS, DEAD_SHARE = 10_000, 0.5
WRAPAROUND_WARNING, WRAPAROUND_PROBLEM = 500_000_000, 1_500_000_000  # of 2^31
COMMIT_WARNING_SECONDS = 0.010
DISK_PROBLEM_BYTES, DISK_WARNING_SHARE = GB, 0.10
CHECKPOINTS_TO_JUDGE = 10
BLOCKS_TO_JUDGE, HITS_WANTED = 100_000, 0.95
FILES_WANTED = 4096
CONNECTIONS_BESIDE_POOL = 4  # of each worker


class Status(StrEnum):
    """How a check came out. ``UNKNOWN`` could not be looked at."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """What one check found, why it matters, and what to do.

    >>> Finding("fsync", "durability", Status.OK, "on").remedy
    ''
    """

    check: str
    group: str
    status: Status
    found: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Outcome:
    """A finding without what the check knows itself; ``about`` goes behind the check's name."""

    status: Status
    found: str
    remedy: str = ""
    about: str = ""


@dataclass(frozen=True)
class Check:
    """One thing to look at. ``look`` gives outcomes, or raises CannotLook."""

    name: str
    group: str
    why: str
    look: Callable[[Facts], Iterator[Outcome]]

    def findings(self, facts: Facts) -> list[Finding]:
        """What it finds in these facts."""
        try:
            return [
                Finding(self.name + one.about, self.group, one.status, one.found, self.why, one.remedy)
                for one in self.look(facts)
            ]
        except CannotLook as error:
            if error.missing.silent:
                return []
            found = f"could not look: {error.missing.reason}"
            return [Finding(self.name, self.group, Status.UNKNOWN, found, self.why)]


def examine(facts: Facts, *, only: str | None = None) -> list[Finding]:
    """All findings, in the order of the checks."""
    wanted = [check for check in CHECKS if only in (None, check.name)]
    return [finding for check in wanted for finding in check.findings(facts)]


# PostgreSQL settings


def _look_at_setting(expected: Expected) -> Callable[[Facts], Iterator[Outcome]]:
    def look(facts: Facts) -> Iterator[Outcome]:
        value = _setting(facts, expected.name)
        shown, advice = value.value, expected.advice
        if expected.name == "autovacuum_vacuum_cost_limit":
            shown, value = _cost_limit(facts, value)
        if value.choices and advice not in value.choices:
            advice = "on"  # lz4, where PostgreSQL was built without it
        if expected.fits(value):
            yield Outcome(Status.OK, shown)
        else:
            remedy = set_it(expected.name, advice, value, known(facts.server))
            yield Outcome(Status(expected.otherwise), shown, remedy)

    return look


def _setting(facts: Facts, name: str) -> Value:
    value = known(facts.settings).get(name)
    if value is None:
        raise CannotLook(Missing("needs the role pg_read_all_settings"))
    return value


def _cost_limit(facts: Facts, value: Value) -> tuple[str, Value]:
    """-1 stands for vacuum_cost_limit; and without a delay there is no limit at all."""
    if value.setting == "-1":
        other = _setting(facts, "vacuum_cost_limit")
        value = Value(other.value, other.setting)
    if _setting(facts, "autovacuum_vacuum_cost_delay").number == 0:
        return "no limit (autovacuum_vacuum_cost_delay is 0)", Value("10000", "10000")
    return value.value, value


# The other checks


def _python(facts: Facts) -> Iterator[Outcome]:
    found = known(facts.python)
    shown = ".".join(map(str, found))
    if found[:2] < OLDEST_PYTHON:
        yield Outcome(Status.PROBLEM, shown, "install Python 3.11 or newer, and Queenstream in it")
    else:
        yield Outcome(Status.OK, shown)


def _queenstream(facts: Facts) -> Iterator[Outcome]:
    yield Outcome(Status.OK, known(facts.queenstream))


def _java(facts: Facts) -> Iterator[Outcome]:
    found = known(facts.java)
    if found is None:
        yield Outcome(
            Status.NOTE, "none", "only for pipelines on Spark: apt-get install openjdk-17-jre-headless"
        )
        return
    major = int((re.match(r"(?:1\.)?(\d+)", found) or [0, 0])[1])
    if major < JAVA_FOR_SPARK:
        yield Outcome(Status.NOTE, found, "only for pipelines on Spark: install Java 17 or newer")
    else:
        yield Outcome(Status.OK, found)


def _postgres(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.server, Missing) and facts.server.reason:
        what, _, remedy = facts.server.reason.partition("; ")
        yield Outcome(Status.PROBLEM, what, remedy)
        return
    server = known(facts.server)
    shown = f"{server.version} at {known(facts.place)}"
    if server.version_number < OLDEST_POSTGRES * 10_000:
        yield Outcome(Status.PROBLEM, shown, f"upgrade PostgreSQL to {OLDEST_POSTGRES} or newer")
    elif server.in_recovery:
        yield Outcome(Status.PROBLEM, f"{shown}, a read-only standby", "give the URL of the primary: --pg")
    else:
        yield Outcome(Status.OK, shown)


def _schema(facts: Facts) -> Iterator[Outcome]:
    schema = known(facts.schema)
    if schema.applied is None:
        yield Outcome(Status.NOTE, "not there yet", "start the broker, it makes it: queen up")
    elif not schema.compatible:
        shown = f"{schema.applied}, this version knows {schema.known}"
        yield Outcome(Status.PROBLEM, shown, "upgrade Queenstream: pip install --upgrade queenstream")
    elif schema.applied < schema.known:
        shown = f"{schema.applied}, this version has {schema.known}"
        yield Outcome(Status.WARNING, shown, "start the broker, it migrates: queen up")
    elif not schema.functions_current:
        shown = f"{schema.applied}, without the functions of this version"
        yield Outcome(Status.WARNING, shown, "start a broker of this version, it adds them: queen up")
    else:
        newer = "" if schema.applied == schema.known else ", of a newer release that this one can work beside"
        yield Outcome(Status.OK, f"{schema.applied}{newer}")


def _checkpoints(facts: Facts) -> Iterator[Outcome]:
    timed, requested = known(facts.checkpoints)
    shown = f"{timed} timed, {requested} requested"
    if timed + requested < CHECKPOINTS_TO_JUDGE:
        yield Outcome(Status.OK, f"{shown}: too few to judge")
    elif requested > timed:
        size = _setting(facts, "max_wal_size")
        advice = f"{max(4, round(2 * size.number / GB))}GB"
        yield Outcome(Status.WARNING, shown, set_it("max_wal_size", advice, size, known(facts.server)))
    else:
        yield Outcome(Status.OK, shown)


def _shared_buffers(facts: Facts) -> Iterator[Outcome]:
    value, memory = _setting(facts, "shared_buffers"), known(facts.memory_bytes)
    hits, reads = known(facts.cache)
    shown = f"{value.value} of {size(memory)} memory"
    remedy = set_it("shared_buffers", f"{round(memory / 4 / MB)}MB", value, known(facts.server))
    if value.number > memory / 2:
        yield Outcome(Status.WARNING, f"{shown}: more than half", remedy)
    elif value.number >= memory / 8:
        yield Outcome(Status.OK, shown)
    elif hits + reads >= BLOCKS_TO_JUDGE and hits / (hits + reads) < HITS_WANTED:
        yield Outcome(Status.WARNING, f"{shown}; {hits / (hits + reads):.0%} of reads found in it", remedy)
    else:
        # Small, but nothing suffers from it yet.
        yield Outcome(Status.NOTE, f"{shown}; enough so far", f"when more waits than fits: {remedy}")


def _autovacuum(facts: Facts) -> Iterator[Outcome]:
    value = _setting(facts, "autovacuum")
    if value.setting == "on":
        yield Outcome(Status.OK, value.value)
    else:
        yield Outcome(Status.PROBLEM, value.value, set_it("autovacuum", "on", value, known(facts.server)))


def _connections(facts: Facts) -> Iterator[Outcome]:
    value = _setting(facts, "max_connections")
    most = int(value.number - _setting(facts, "superuser_reserved_connections").number)
    used, ours = known(facts.connections)
    needed = facts.needed_connections
    if not isinstance(facts.brokers, Missing) and facts.brokers:
        needed = sum(broker.pool + CONNECTIONS_BESIDE_POOL for broker in facts.brokers)
    others = max(0, used - ours)
    shown = f"{value.value}; {used} in use, brokers need {needed}"
    if others + needed > most or used > 0.8 * most:
        # Twice what is there now, in round figures.
        advice = str(max(100, -(-2 * (others + max(needed, ours)) // 50) * 50))
        remedy = set_it("max_connections", advice, value, known(facts.server))
        yield Outcome(Status.WARNING, shown, remedy)
    else:
        yield Outcome(Status.OK, shown)


def _open_files(facts: Facts) -> Iterator[Outcome]:
    soft = known(facts.open_files)
    open_now = 0 if isinstance(facts.brokers, Missing) else max(
        (broker.open_connections for broker in facts.brokers), default=0
    )  # fmt: skip
    shown = f"{soft}; client connections now: {open_now}"
    remedy = "ulimit -n 65536 before queen up (LimitNOFILE=65536 in a systemd unit)"
    if soft < 1024 or open_now > 0.8 * soft:
        yield Outcome(Status.WARNING, shown, remedy)
    elif soft < FILES_WANTED:
        yield Outcome(Status.NOTE, shown, f"for thousands of consumers: {remedy}")
    else:
        yield Outcome(Status.OK, shown)


def _clock(of: str) -> Callable[[Facts], Iterator[Outcome]]:
    def look(facts: Facts) -> Iterator[Outcome]:
        clock = known(facts.database_clock if of == "database" else facts.broker_clock)
        # What the measurement cannot tell is not held against anybody.
        off = max(0.0, abs(clock.ahead_seconds) - clock.error_seconds)
        side = "ahead of" if clock.ahead_seconds > 0 else "behind"
        shown = f"{abs(clock.ahead_seconds):.3f} s {side} this machine (± {clock.error_seconds:.3f} s)"
        remedy = "let both machines follow a time server: timedatectl set-ntp true"
        if off > CLOCK_PROBLEM_SECONDS:
            yield Outcome(Status.PROBLEM, shown, remedy)
        elif off > CLOCK_WARNING_SECONDS:
            yield Outcome(Status.WARNING, shown, remedy)
        else:
            yield Outcome(Status.OK, shown)

    return look


def _holders(facts: Facts) -> Iterator[Outcome]:
    holders = known(facts.holders)
    held = [one for one in holders if _held_for_long(one) is not Status.OK]
    if not held:
        shown = "nobody" if not holders else f"nobody for long; oldest: {_holder(holders[0])}"
        yield Outcome(Status.OK, shown)
    for one in held:
        yield Outcome(_held_for_long(one), _holder(one), _release(one), about=f" {one.pid or one.name}")


def _held_for_long(one: Holder) -> Status:
    if (one.seconds or 0) > HELD_PROBLEM_SECONDS:
        return Status.PROBLEM
    if (one.seconds or 0) > HELD_WARNING_SECONDS or (one.transactions or 0) > HELD_WARNING_TRANSACTIONS:
        return Status.WARNING
    return Status.OK


def _holder(one: Holder) -> str:
    names = {"prepared": f"prepared transaction {one.name}", "slot": f"replication slot {one.name}"}
    who = names.get(one.kind, f"pid {one.pid}")
    about = [
        f"application {one.application}" if one.application else "",
        f"user {one.user}" if one.user else "",
    ]
    about.append(one.state or ("state hidden: needs pg_monitor" if one.kind == "backend" else ""))
    since = "" if one.seconds is None else f" for {duration(one.seconds)}"
    return f"{who} ({', '.join(filter(None, about))}){since}, {one.transactions or 0} transactions"


def _release(one: Holder) -> str:
    if one.kind == "prepared":
        return f"rollback prepared {_literal(one.name)};"
    if one.kind == "slot":
        drop = f"select pg_drop_replication_slot({_literal(one.name)});"
        return f"let its consumer catch up, or if it is gone: {drop}"
    return f"end its transaction, or: select pg_terminate_backend({one.pid});"


def _literal(text: str | None) -> str:
    return "'" + (text or "").replace("'", "''") + "'"


def _tables(facts: Facts) -> Iterator[Outcome]:
    for table in known(facts.tables):
        share = table.dead / max(1, table.live + table.dead)
        since = table.vacuumed_seconds
        ago = "never" if since is None else f"{duration(since)} ago"
        shown = f"{size(table.bytes)}, {table.dead} dead rows ({share:.0%}), vacuumed {ago}"
        about = f" queen.{table.name}"
        if table.dead >= DEAD_ROWS and share > DEAD_SHARE:
            remedy = f"see who holds dead rows; if nobody: vacuum (analyze) queen.{table.name};"
            yield Outcome(Status.WARNING, shown, remedy, about)
        else:
            yield Outcome(Status.OK, shown, about=about)


def _wraparound(facts: Facts) -> Iterator[Outcome]:
    database, age = known(facts.wraparound)
    shown = f"{age / 1e6:.1f} million of 2147 (database {database})"
    remedy = f"see who holds dead rows, then: vacuumdb --freeze --dbname={database}"
    if age > WRAPAROUND_PROBLEM:
        yield Outcome(Status.PROBLEM, shown, remedy)
    elif age > WRAPAROUND_WARNING:
        yield Outcome(Status.WARNING, shown, remedy)
    else:
        yield Outcome(Status.OK, shown)


def _commit(facts: Facts) -> Iterator[Outcome]:
    seconds = known(facts.commit_seconds)
    shown = f"{seconds * 1000:.2f} ms (median)"
    if seconds > COMMIT_WARNING_SECONDS:
        yield Outcome(Status.WARNING, shown, "put PostgreSQL's log (pg_wal) on a faster disk, nearer by")
    else:
        yield Outcome(Status.OK, shown)


def _disk(facts: Facts) -> Iterator[Outcome]:
    where, free, total = known(facts.disk)
    shown = f"{size(free)} free of {size(total)} at {where}"
    remedy = "free some space, or set ttl and retention on the queues"
    wal = 0.0 if isinstance(facts.settings, Missing) else _setting(facts, "max_wal_size").number
    if free < DISK_PROBLEM_BYTES:
        yield Outcome(Status.PROBLEM, shown, remedy)
    elif free < DISK_WARNING_SHARE * total or free < wal + GB:
        yield Outcome(Status.WARNING, shown, remedy)
    else:
        yield Outcome(Status.OK, shown)


def _health(facts: Facts) -> Iterator[Outcome]:
    health = known(facts.health)
    if health is None:
        yield Outcome(
            Status.NOTE, f"not running at {facts.broker_url}", "start it (queen up), or say where: --url"
        )
    elif not health.healthy:
        shown = f"unhealthy at {facts.broker_url}, database {health.database}"
        yield Outcome(
            Status.PROBLEM, shown, "its log says why; does it have the database that is checked here?"
        )
    else:
        yield Outcome(Status.OK, f"healthy at {facts.broker_url}")


def _versions(facts: Facts) -> Iterator[Outcome]:
    health, ours = facts.health, known(facts.queenstream)
    if health is None or isinstance(health, Missing):
        return  # the check before this one says so
    found = {health.version}
    if not isinstance(facts.brokers, Missing):
        found |= {broker.version for broker in facts.brokers}
    shown = f"{', '.join(sorted(found))}; this one is {ours}"
    if found != {ours}:
        yield Outcome(Status.WARNING, shown, "restart all brokers with one version, and use the same here")
    else:
        yield Outcome(Status.OK, ours)


def _brokers(facts: Facts) -> Iterator[Outcome]:
    brokers = known(facts.brokers)
    yield Outcome(Status.OK, f"{len(brokers)}: {', '.join(sorted({one.address for one in brokers}))}")


def _access(facts: Facts) -> Iterator[Outcome]:
    if known(facts.insecure):
        remedy = "set a key: queen keys new, then QUEEN_AUTH_SECRET; or listen on 127.0.0.1"
        yield Outcome(Status.WARNING, "other machines need no token (--insecure)", remedy)
    else:
        yield Outcome(Status.OK, "a token, or this machine only")


def _maintenance(facts: Facts) -> Iterator[Outcome]:
    mode = known(facts.maintenance)
    if not mode:
        yield Outcome(Status.OK, "off")
        return
    path = "/api/v1/system/maintenance" + ("/pop" if mode == "pop" else "")
    remedy = f"""curl {facts.broker_url}{path} -d '{{"enabled": false}}'"""
    yield Outcome(Status.WARNING, "on" if mode == "all" else "on for pops", remedy)


def _failures(facts: Facts) -> Iterator[Outcome]:
    found: dict[str, int] = {}
    for broker in known(facts.brokers):
        for task, count in broker.failures.items():
            found[task] = found.get(task, 0) + count
    shown = ", ".join(f"{task} {count}" for task, count in sorted(found.items()) if count)
    if shown:
        yield Outcome(Status.WARNING, shown, "the broker's log says why; they are counted since its start")
    else:
        yield Outcome(Status.OK, "none")


def _settings_of(group: str) -> list[Check]:
    return [Check(one.name, group, one.why, _look_at_setting(one)) for one in SETTINGS if one.group == group]


CHECKS = (
    Check("python", "versions", "older ones lack what Queenstream is written with", _python),
    Check("queenstream", "versions", "", _queenstream),
    Check("postgresql", "versions", "everything is kept there", _postgres),
    Check("schema", "versions", "a broker works with the schema of its version", _schema),
    Check("java", "versions", "pipelines on Spark need 17 or newer; nothing else does", _java),
    *_settings_of("durability"),
    *_settings_of("log and checkpoints"),
    Check("checkpoints", "log and checkpoints", "one that is requested comes because max_wal_size is full",
          _checkpoints),
    Check("commit time", "disk and memory", "a lone push takes at least one commit", _commit),
    Check("disk", "disk and memory", "a full disk stops every push", _disk),
    Check("shared_buffers", "disk and memory", "the newest messages and all cursors stay in memory",
          _shared_buffers),
    Check("autovacuum", "vacuum", "without it tables only grow, and at last PostgreSQL stops", _autovacuum),
    *_settings_of("vacuum"),
    Check("held rows", "vacuum", "under an open transaction nothing dead can be cleaned away", _holders),
    Check("table", "vacuum", "pops slow down with every dead version", _tables),
    Check("transaction ids", "vacuum", "PostgreSQL stops before they run out", _wraparound),
    Check("max_connections", "connections", "each worker needs its pool and 4 more", _connections),
    *_settings_of("connections"),
    Check("open files", "connections", "each consumer that waits is an open connection of the broker",
          _open_files),
    Check("database's clock", "clocks", "leases, delays and ttl go by it; tokens and logs by the machines'",
          _clock("database")),
    Check("broker's clock", "clocks", "tokens begin and end by it", _clock("broker")),
    Check("broker", "broker", "it serves the clients", _health),
    Check("brokers alive", "broker", "they share the work", _brokers),
    Check("brokers' versions", "broker", "two versions are for the minutes of an upgrade", _versions),
    Check("access", "broker", "without a key, whoever reaches the broker may administer it", _access),
    Check("maintenance", "broker", "while it is on, nothing is delivered", _maintenance),
    Check("background failures", "broker", "what has expired is not deleted meanwhile", _failures),
)  # fmt: skip


def size(number: float) -> str:
    """Bytes for people.

    >>> size(512), size(3 * GB), size(1_500_000)
    ('512 B', '3.0 GB', '1.4 MB')
    """
    for unit, factor in (("TB", GB << 10), ("GB", GB), ("MB", MB), ("kB", KB)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f} B"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(5), duration(600), duration(90_000)
    ('5 s', '10 min', '25 h')
    """
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
