import httpx


async def test_push_pop_ack(http: httpx.AsyncClient) -> None:
    pushed = await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": {"n": 1}}]})
    assert pushed.status_code == 201
    popped = (await http.get("/api/v1/pop/queue/q")).json()
    assert [m["data"] for m in popped["messages"]] == [{"n": 1}]
