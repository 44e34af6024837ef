"""The primary dies under load and its standby is promoted: clients see 503, then go on; nothing is lost."""

from __future__ import annotations

import httpx

from tests.faults.replicas import streaming_pair
from tests.faults.test_postgres_kills import Pusher, pop_all
from tests.processes import up

BACK_SECONDS = 30.0


def test_a_standby_is_promoted_under_load() -> None:
    with streaming_pair() as pair, up("--pg", pair.url, "--port", "0") as running:
        address = running.ready()
        pusher = Pusher(address)
        try:
            pusher.wait_for(20, 20)
            pair.kill_primary()
            # The standby does not take writes yet: not ready, and no 500.
            health = httpx.get(f"{address}/health/ready", timeout=10)
            while health.status_code == 200:
                health = httpx.get(f"{address}/health/ready", timeout=10)
            assert health.status_code == 503
            assert health.headers["retry-after"] == "1"
            pair.promote()
            pusher.wait_for(20, BACK_SECONDS)
        finally:
            pusher.stop()
        assert set(pusher.refused) == {503}
        assert httpx.get(f"{address}/health/ready", timeout=10).status_code == 200
        assert set(pusher.answered) <= set(pop_all(address))
