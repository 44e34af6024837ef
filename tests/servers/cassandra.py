"""One node of Cassandra for tests, from the jars of ``cassandra.pom.xml``, on free ports of the loopback.

A write is on the disk before it is answered, as one node has no replica: after ``kill()`` it is all there.

>>> with running(maven.required("cassandra")) as node:  # doctest: +SKIP
...     node.port
37042
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import RoundRobinPolicy
from cassandra.query import dict_factory

from tests.processes import free_port

READY_SECONDS = 120.0  # on a busy machine; alone it takes ten
STOP_SECONDS = 30.0
_SECRET = "in a folder of its own"
USER, PASSWORD = "cassandra", "cassandra"  # who may do everything on a new node

# What Cassandra's own start script gives to Java 17.
_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.compiler/com.sun.tools.javac",
    "jdk.management/com.sun.management.internal",
)
_EXPORTS = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.unsupported/sun.misc",
)
_SYNCED = {
    "durable": {"commitlog_sync": "batch"},
    "quick": {"commitlog_sync": "periodic", "commitlog_sync_period": "10s"},
}
_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class Node:
    """A node in a folder of its own.

    ``quick``: as users run it, compiled further and with writes that reach the disk a little later.
    """

    def __init__(self, jars: Path, folder: Path, *, quick: bool = False) -> None:
        self.port = free_port()
        self._jars = jars
        self._folder = folder
        self._quick = quick
        self.log = folder / "log"
        self.certificate = folder / "node.pem"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "cassandra.yaml").write_text(json.dumps(self._settings()))  # which is YAML
        (folder / "logback.xml").write_text(_LOGBACK)

    def _settings(self) -> dict[str, object]:
        storage_port = free_port()
        seeds = {"seeds": f"127.0.0.1:{storage_port}"}
        provider = {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [seeds]}
        return {
            "cluster_name": "queenstream tests",
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "client_encryption_options": {
                "enabled": True,
                "optional": True,  # who speaks in plain is understood, too
                "keystore": str(self._keystore()),
                "keystore_password": _SECRET,
            },
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "listen_address": "127.0.0.1",
            "rpc_address": "127.0.0.1",
            "storage_port": storage_port,
            "native_transport_port": self.port,
            "seed_provider": [provider],
            # Alone, it need not wait for others, nor share the ring.
            "auto_bootstrap": False,
            "num_tokens": 1,
            "initial_token": "0",
            **_SYNCED["quick" if self._quick else "durable"],
            "unlogged_batch_across_partitions_warn_threshold": 1,
            "commitlog_segment_size": "8MiB",
            "memtable_heap_space": "48MiB",
            "memtable_offheap_space": "48MiB",
            "key_cache_size": "0MiB",
            "counter_cache_size": "0MiB",
            "disk_access_mode": "standard",
            "concurrent_compactors": 1,
            "data_file_directories": [str(self._folder / "data")],
        }

    def _keystore(self) -> Path:
        """A key for the loopback; what vouches for it is in ``certificate``."""
        store = self._folder / "keys.p12"
        common = ["-keystore", str(store), "-storepass", _SECRET, "-alias", "node"]
        for command in (
            ["-genkeypair", *common, "-storetype", "PKCS12", "-keyalg", "EC", "-dname", "CN=tests",
             "-ext", "san=ip:127.0.0.1"],
            ["-exportcert", *common, "-rfc", "-file", str(self.certificate)],
        ):  # fmt: skip
            subprocess.run(["keytool", *command], check=True, capture_output=True)
        return store

    def _command(self) -> list[str]:
        properties = {
            "cassandra.config": (self._folder / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": str(self._folder),
            "cassandra.ring_delay_ms": "0",
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.superuser_setup_delay_ms": "0",
            "cassandra.auth_bcrypt_gensalt_log2_rounds": "4",  # the fewest: nobody is to guess it
            "cassandra-foreground": "yes",
            "io.netty.tryReflectionSetAccessible": "true",
            "jdk.attach.allowAttachSelf": "true",
            "logback.configurationFile": str(self._folder / "logback.xml"),
        }
        return [
            "java", "-Xms512m", "-Xmx512m", "-Xss512k", "-XX:+UseSerialGC", "-XX:-UsePerfData",
            *([] if self._quick else ["-XX:TieredStopAtLevel=1"]),
            *(f"--add-opens={each}=ALL-UNNAMED" for each in _OPENS),
            *(f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTS),
            *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp", f"{self._jars}/*", "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip

    def start(self) -> None:
        """Start it, on the same port each time, and wait until it answers."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(), stdout=output, stderr=subprocess.STDOUT, cwd=self._folder
            )
        ends = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(OSError, NoHostAvailable):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                with self.connected():
                    return
            if self._process.poll() is not None or time.monotonic() > ends:
                self.kill()
                raise AssertionError(f"Cassandra did not get ready: {self.log.read_text()[-3_000:]}")
            time.sleep(0.1)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Session]:
        """A session of the driver itself; a row is a dictionary."""
        profile = ExecutionProfile(RoundRobinPolicy(), request_timeout=60, row_factory=dict_factory)
        cluster = Cluster(
            ["127.0.0.1"],
            self.port,
            auth_provider=PlainTextAuthProvider(USER, PASSWORD),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=5,
        )
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()

    def kill(self) -> None:
        """As by the kernel: nothing is flushed, nobody is told."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As by an administrator."""
        self._end(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send it a signal; ``SIGSTOP``: as if it hung."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(number)
            self._process.wait(STOP_SECONDS)


@contextlib.contextmanager
def running(jars: Path, *, quick: bool = False) -> Iterator[Node]:
    """A node that has started; ended at the end whatever happens."""
    with tempfile.TemporaryDirectory(prefix="queenstream-cassandra-") as folder:
        node = Node(jars, Path(folder), quick=quick)
        try:
            node.start()
            yield node
        finally:
            node.kill()  # nothing of it is needed any more
