"""A broker that wants tokens: the run's goes to its sources, its sinks and its reports."""

from __future__ import annotations

import time

import jwt
import pytest

from queenstream import Pipeline, Queen, Queue
from queenstream.errors import RunFailed
from tests.processes import up

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]
SECRET = "a secret of more than thirty-two bytes"


def double(row: dict[str, int]) -> dict[str, int]:
    return {"n": 2 * row["n"]}


def test_the_run_s_token_is_shown_to_its_broker() -> None:
    token = jwt.encode({"role": "admin", "sub": "t", "exp": time.time() + 86_400}, SECRET, algorithm="HS256")
    pipeline = Pipeline("doubled").source(Queue("in")).transform("double", double).to(Queue("out"))
    with up("--ephemeral", "--port", "0", QUEEN_AUTH_SECRET=SECRET) as broker:
        url = broker.ready()
        with Queen(url, token=token) as queen:
            queen.queue("in").push([{"n": 1}, {"n": 2}])
            with pytest.raises(
                RunFailed, match=r"doubled failed: there is no token; .*give the client a token"
            ):
                pipeline.run(url=url, until="caught_up")
            pipeline.run(url=url, token=token, until="caught_up")
            assert [message.data for message in queen.queue("out").batch(10).pop()] == [{"n": 2}, {"n": 4}]
            assert [each.name for each in queen.admin.pipelines()] == ["doubled"]
