"""The way to a cluster of Cassandra: a session of the driver, and what its errors mean.

The driver's calls block, and its threads are its own: who is asyncio calls these from a thread.
"""

from __future__ import annotations

import ssl
from typing import Any

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.metadata import KeyspaceMetadata, TableMetadata
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    RetryPolicy,
    TokenAwarePolicy,
)
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import (
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    ServerError,
    TruncateError,
)
from cassandra.query import PreparedStatement, dict_factory

from queenstream.connectors.cassandra.schemas import created, quoted
from queenstream.core.schemas import Schema
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Cassandra

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 12.0  # a little longer than a node's own limits, so that its answer is heard
DEFINE_SECONDS = 60.0
PROTOCOL = 5  # to begin with: a cluster that knows only an older one says so
FIRST_RECONNECT_SECONDS, LAST_RECONNECT_SECONDS = 0.25, 4.0

AWAY = (
    NoHostAvailable,
    OperationTimedOut,
    Unavailable,
    ReadTimeout,
    WriteTimeout,
    ReadFailure,
    WriteFailure,
    ConnectionException,
    ConnectionBusy,
    NoConnectionsAvailable,
    OverloadedErrorMessage,
    IsBootstrappingErrorMessage,
    ServerError,
    TruncateError,
    OSError,
)
"""It passes: a pipeline waits."""

REFUSED = (InvalidRequest,)
"""The node will not take this statement, whenever it comes."""


def told(error: Exception) -> Exception:
    """An error of ``AWAY`` as people can read it: the driver's own shows its objects.

    >>> told(NoHostAvailable("Unable to complete the operation against any hosts", {}))
    ConnectionError('no node can be reached')
    """
    if not isinstance(error, NoHostAvailable):
        return error
    causes = "; ".join(dict.fromkeys(str(each) for each in error.errors.values()))
    return ConnectionError(f"no node can be reached{f': {causes}' if causes else ''}")


class Link:
    """A session with the cluster that an endpoint names."""

    def __init__(self, endpoint: Cassandra) -> None:
        keyspace = endpoint.keyspace
        if keyspace is None:
            raise ConfigError(f"{endpoint.title} has no keyspace; write Cassandra(…, keyspace='…')")
        self._cluster: Any = None
        self.endpoint = endpoint
        self.keyspace: str = keyspace
        self.place = f"{quoted(keyspace)}.{quoted(endpoint.table)}"
        self.server = f"Cassandra at {', '.join(endpoint.hosts)} port {endpoint.port}"

    def connect(self) -> None:
        """Connect. A cluster that does not answer is an error at once, not something to wait for."""
        endpoint = self.endpoint
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy()),
            retry_policy=RetryPolicy(),
            consistency_level=ConsistencyLevel.name_to_value[endpoint.consistency.upper()],
            request_timeout=REQUEST_SECONDS,
            row_factory=dict_factory,
        )
        login = None
        if endpoint.user is not None:
            login = PlainTextAuthProvider(endpoint.user, endpoint.password or "")
        self._cluster = Cluster(
            list(endpoint.hosts),
            endpoint.port,
            auth_provider=login,
            ssl_context=self._encryption(),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            # Without a limit on the tries: a node may be away for hours.
            reconnection_policy=ExponentialReconnectionPolicy(
                FIRST_RECONNECT_SECONDS, LAST_RECONNECT_SECONDS, max_attempts=None
            ),
            connect_timeout=CONNECT_SECONDS,
            control_connection_timeout=CONNECT_SECONDS,
        )
        self._cluster.protocol_version = PROTOCOL
        try:
            self.session: Session = self._cluster.connect()
        except (*AWAY, UnresolvableContactPoints, AuthenticationFailed) as error:
            self._cluster.shutdown()
            raise self._unreachable(error) from error

    def _encryption(self) -> ssl.SSLContext | None:
        """What checks who a node is; None: the connection is not encrypted."""
        tls = self.endpoint.tls
        if not tls:
            return None
        try:
            return ssl.create_default_context(cafile=None if tls is True else str(tls))
        except OSError as error:
            raise ConfigError(
                f"tls={str(tls)!r} cannot be used: {error}; name a file of certificates"
            ) from error

    def _unreachable(self, error: Exception) -> ConfigError:
        causes = error.errors.values() if isinstance(error, NoHostAvailable) else (error,)
        if any(isinstance(each, AuthenticationFailed) for each in causes):
            return ConfigError(f"{self.server} does not let us in; check user and password")
        return ConfigError(
            f"{self.server} does not answer: {told(error)}; start it, or name others with hosts= and port="
        )

    def close(self) -> None:
        """Let go of all connections; where there are none, nothing happens."""
        if self._cluster is not None:
            self._cluster.shutdown()

    @property
    def protocol(self) -> int:
        """The version of the protocol that both sides speak."""
        return int(self._cluster.protocol_version)

    # What there is

    def table(self) -> TableMetadata:
        """What the cluster says of the table; where it is not there, that is an error."""
        keyspace = self._known_keyspace()
        tables = {} if keyspace is None else keyspace.tables
        if keyspace is None:
            raise ConfigError(
                f"there is no keyspace {self.keyspace} in {self.server}; create it, or write "
                "create_keyspace=3 for three replicas"
            )
        partitioner = str(self._cluster.metadata.partitioner)
        if not partitioner.endswith("Murmur3Partitioner"):
            raise ConfigError(f"{self.server} uses {partitioner}; only the Murmur3Partitioner is known here")
        found = tables.get(self.endpoint.table)
        if found is None:
            known = ", ".join(sorted(tables)[:10]) or "no table at all"
            raise ConfigError(
                f"there is no table {self.endpoint.table} in the keyspace {self.keyspace}, which has "
                f"{known}; check the name, or write create_table=True with a schema and a partition_key"
            )
        return found

    def _known_keyspace(self) -> KeyspaceMetadata | None:
        return self._cluster.metadata.keyspaces.get(self.keyspace)

    def has_table(self, name: str) -> bool:
        """Whether the keyspace has a table of that name."""
        keyspace = self._known_keyspace()
        return keyspace is not None and name in keyspace.tables

    # What is made

    def make_keyspace(self, replicas: int) -> None:
        """Create the keyspace, if it is not there."""
        if self._known_keyspace() is None:
            self.define(
                f"create keyspace if not exists {quoted(self.keyspace)} with replication = "
                f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {replicas}}}"
            )

    def make_table(self, schema: Schema) -> None:
        """Create the table from a schema, if it is not there."""
        endpoint = self.endpoint
        if not self.has_table(endpoint.table):
            for statement in created(
                self.keyspace, endpoint.table, schema.fields, endpoint.partition_key, endpoint.clustering_key
            ):
                self.define(statement)

    def define(self, statement: str) -> None:
        """Run a statement that changes what there is."""
        try:
            self.session.execute(statement, timeout=DEFINE_SECONDS)
        except Unauthorized as error:
            raise ConfigError(
                f"{self.server} does not allow {statement!r}: {error}; let somebody who may run it"
            ) from error
        except (*AWAY, *REFUSED) as error:
            raise ConfigError(f"{self.server} did not run {statement!r}: {error}; mend that") from error

    def prepare(self, statement: str) -> PreparedStatement:
        """Prepare a statement, which may be repeated without harm."""
        try:
            prepared = self.session.prepare(statement)
        except Unauthorized as error:
            raise ConfigError(f"{self.server} does not allow it: {error}; ask for that right") from error
        except REFUSED as error:
            raise ConfigError(
                f"{self.endpoint.title} has changed, or is not fit for this: {error}; mend it and start again"
            ) from error
        prepared.is_idempotent = True
        return prepared

    def ask(self, prepared: PreparedStatement, *values: Any) -> list[dict[str, Any]]:
        """The rows of a small answer."""
        return list(self.session.execute(prepared, values))
