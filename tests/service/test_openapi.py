"""Random requests made from the service's own OpenAPI document: never a 5xx, always a documented form of error."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.conftest import Server

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (pip install schemathesis)")


def test_no_request_makes_the_service_fail(server: Server) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 14

    for operation in operations:

        @settings(
            max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(operation.as_strategy())
        def send(case: schemathesis.Case) -> None:
            reply = case.call(timeout=20)
            assert reply.status_code < 500, reply.text
            if reply.status_code >= 400:
                assert reply.headers["content-type"] == ["application/problem+json"], reply.headers
                assert {"type", "title", "status", "detail", "retryable"} <= set(reply.json())

        send()


actions = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(st.characters()).map("say ".__add__),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(actions, min_size=1, max_size=4))
def test_any_json_value_is_an_action_or_a_named_error(server: Server, values: list[object]) -> None:
    """Random ids never reach a live session; this one does."""
    name = server.create()["session_id"]
    index = 0
    for value in values:
        body = json.dumps({"step_index": index, "action": value})
        headers = {"content-type": "application/json"}
        reply = server.http.post(f"/v1/sessions/{name}/step", content=body, headers=headers)
        assert reply.status_code == (200 if isinstance(value, str) else 422), reply.text
        index += reply.status_code == 200
    server.http.delete(f"/v1/sessions/{name}")
