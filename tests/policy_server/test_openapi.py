"""Requests made from the server's own description: whatever it allows is answered as it says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")


@pytest.fixture
def api_schema(serve):
    server = serve("queue.deadline_s=60")
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_server_keeps_what_it_describes(case):
    case.call_and_validate()
