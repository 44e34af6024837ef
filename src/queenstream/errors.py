"""Every error that Queenstream raises.

    QueenstreamError
    ├── BadAnswer               what came back is not a broker's answer
    ├── BrokerUnreachable       no broker answered in time
    ├── BufferFull              a buffered push was refused or dropped: more is pending than allowed
    ├── CheckpointError         a checkpoint is damaged, unknown, in use, or of another plan
    │   └── OwnershipLost       another run has taken over the checkpoint or one of its sinks
    ├── ClientClosed            the client is used after it was closed
    ├── ConfigError             a flag, variable, file or argument says something we cannot use
    │   ├── ExpressionError     a text is no expression (queenstream.pipeline.expr.expressions)
    │   └── SchemaError         a definition is no schema (queenstream.core.schemas)
    ├── DecryptionError         a stored payload cannot be decrypted: changed, or its key is wrong
    │   ├── KeyMissing          the key that encrypted it is not in encryption_keys
    │   └── PayloadAltered      it was changed in the database, or is another message's
    ├── LeaseLost               an acknowledgement or renewal came too late: the lease is over
    ├── PayloadInvalid          a payload is not JSON, or does not fit the type it was given
    │   └── RecordError         a record does not fit its schema (queenstream.core.schemas)
    ├── PipelineError           what is wrong in a pipeline, all of it (queenstream.pipeline.errors)
    ├── PostgresError           a server cannot be found, started, reached or stopped
    │   └── DatabaseUnusable    a server answers, but its version, rights or schema do not fit
    ├── RunFailed               a run of a pipeline has ended with an error
    │   ├── RunAborted          it was told to end at once
    │   └── StepFailed          a step failed on a record, and its policy is to end the pipeline
    ├── TransactionFailed       nothing of a transaction was done
    └── RequestError            a request that the broker refuses; each has one HTTP status
        ├── InvalidRequest      400  what was sent does not fit the contract
        ├── Unauthorized        401  no token, or one that does not hold
        ├── Forbidden           403  a good token with too small a role
        ├── NotFound            404  no such route, queue, message, group
        ├── MethodNotAllowed    405  the path exists, the method does not
        ├── RequestTimeout      408  the request did not arrive in time
        ├── Conflict            409  it contradicts what is stored
        ├── TooLarge            413  a body or batch over its limit
        ├── QueueFull           429  the queue's maxSize is reached, or new names come too fast
        ├── HeadersTooLarge     431  request line or headers over their limit
        ├── ServerFailed        500  the broker failed; its log says why
        └── Unavailable         503  the database is away, or the broker is stopping

A message says what is wrong and what to do about it, in one line.

>>> raise InvalidRequest("batch must be at least 1; send batch=1 or leave it out")
Traceback (most recent call last):
queenstream.errors.InvalidRequest: batch must be at least 1; send batch=1 or leave it out
"""

from __future__ import annotations

from typing import ClassVar


class QueenstreamError(Exception):
    """The root: catch this to catch everything that is ours."""


class BadAnswer(QueenstreamError):
    """What came back is not a broker's answer: another server, or a proxy in between."""


class BrokerUnreachable(QueenstreamError):
    """No broker answered in time; the message says which were tried and why each failed."""


class BufferFull(QueenstreamError):
    """A buffered push was refused or dropped, because more is pending than its threshold allows."""


class CheckpointError(QueenstreamError):
    """A checkpoint cannot be used: damaged, unknown, of another plan, or in use by another run."""


class OwnershipLost(CheckpointError):
    """Another run has taken over the checkpoint of this run, or a sink; the message says which run."""


class ClientClosed(QueenstreamError):
    """The client, or a producer of it, is used after it was closed."""


class ConfigError(QueenstreamError):
    """A setting that cannot be used; the message names it and where it came from."""


class DecryptionError(QueenstreamError):
    """A stored payload cannot be decrypted: it was changed or damaged, or its key is wrong."""


class KeyMissing(DecryptionError):
    """The key that encrypted a payload is not among ``encryption_keys``."""


class PayloadAltered(DecryptionError):
    """An encrypted payload was changed in the database, or belongs to another message."""


class LeaseLost(QueenstreamError):
    """The lease is over: it expired or passed to somebody else, and the message will come again."""


class PayloadInvalid(QueenstreamError):
    """A payload cannot be written as JSON, or does not fit the type that the queue was given."""


class PostgresError(QueenstreamError):
    """A PostgreSQL server cannot be found, started, reached or stopped."""


class DatabaseUnusable(PostgresError):
    """A PostgreSQL server answers but does not fit: version, rights or schema."""


class RunFailed(QueenstreamError):
    """A run of a pipeline has ended with an error; the cause is what the engine raised."""


class RunAborted(RunFailed):
    """A run was told to end at once; what was under way is done again by the next one."""


class StepFailed(RunFailed):
    """A step failed on a record, and its policy is to end the pipeline; the cause is what it raised."""


class TransactionFailed(QueenstreamError):
    """Nothing of a transaction was done; the message says which part was refused."""


class RequestError(QueenstreamError):
    """A refused request. ``status`` is what the client gets; ``retry_after`` in seconds, if any."""

    status: ClassVar[int] = 400
    retry_after: ClassVar[int | None] = None


class InvalidRequest(RequestError):
    """What was sent does not fit the contract."""


class Unauthorized(RequestError):
    """No token, or one that does not hold."""

    status = 401


class Forbidden(RequestError):
    """A good token whose role does not allow this."""

    status = 403


class NotFound(RequestError):
    """No such route, queue, message or group."""

    status = 404


class MethodNotAllowed(RequestError):
    """The path exists, the method does not. ``allowed`` lists the methods that do."""

    status = 405

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTimeout(RequestError):
    """The request did not arrive in time."""

    status = 408


class Conflict(RequestError):
    """The request contradicts what is stored."""

    status = 409


class TooLarge(RequestError):
    """A body or batch over its limit."""

    status = 413


class QueueFull(RequestError):
    """The queue's ``maxSize`` is reached, or new names come too fast; nothing was stored."""

    status = 429
    retry_after = 1


class HeadersTooLarge(RequestError):
    """The request line or the headers are over their limit."""

    status = 431


class ServerFailed(RequestError):
    """The broker failed; its log says why."""

    status = 500


class Unavailable(RequestError):
    """The database is away, or the broker is starting or stopping; try again."""

    status = 503
    retry_after = 1
