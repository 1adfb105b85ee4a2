"""Requests made from the server's own description: whatever it allows is answered as it says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402


def test_the_server_keeps_what_it_describes(serve):
    """Statuses, content types and bodies of every route are those of `/openapi.json`; nothing ends in a 500."""
    schema = schemathesis.openapi.from_url(f"{serve().url}/openapi.json")
    routes = []
    for result in schema.get_all_operations():
        operation = result.ok()
        routes.append(f"{operation.method.upper()} {operation.path}")
        check_operation(operation)
    assert {"POST /get_action", "POST /get_action/image", "GET /health"} <= set(routes)


def check_operation(operation) -> None:
    @settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case) -> None:
        # What a schema cannot say (base64, an image, a known task) may be refused all the same.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    check()
