"""Many clients at once: nobody is forgotten."""

from __future__ import annotations

import asyncio

import httpx

from tests.policy_server.servers import CAVE, picture


def test_every_request_of_64_clients_is_answered(serve):
    server = serve("queue.limit=24", "queue.deadline_s=60")
    steps = 3

    async def client(http: httpx.AsyncClient, number: int) -> list[tuple[int, bool]]:
        seen = []
        for step in range(steps):
            fields = {"task_name": CAVE, "step": 1000 * number + step, "session": f"c{number}"}
            sent = {"params": fields, "content": picture(), "headers": {"Content-Type": "image/png"}}
            answer = await http.post("/get_action/image", **sent)
            own = answer.status_code != 200 or answer.json()["step"] == fields["step"]
            seen.append((answer.status_code, own and (answer.status_code != 503 or "retry-after" in answer.headers)))
        return seen

    async def everybody() -> list[list[tuple[int, bool]]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=64)) as http:
            return await asyncio.gather(*(client(http, number) for number in range(64)))

    answers = [answer for client in asyncio.run(everybody()) for answer in client]
    assert len(answers) == 64 * steps
    assert {status for status, _ in answers} <= {200, 503} and all(fine for _, fine in answers)
    assert sum(status == 200 for status, _ in answers) >= 24
    metrics = server.http.get("/metrics").text
    assert "policy_in_hand 0.0" in metrics and "policy_queue_length 0.0" in metrics
