from __future__ import annotations

import pytest

from policy_server.refusals import RequestRefused
from policy_server.web.conversion import json_object, query_from, validated
from policy_server.web.schemas import ActionFields, TextFields
from tests.policy_server.servers import CAVE, ROOM, TEXT


def test_fields_without_text_make_a_query_without_text():
    query = query_from(ActionFields(task_name=CAVE, step=3, session="s"), b"image")
    assert (query.task, query.step, query.session, query.image) == (CAVE, 3, "s", b"image")
    assert (query.prompt, query.commands) == ("", ())


def test_text_fields_reach_the_query():
    query = query_from(validated(TextFields, {**TEXT, "admissible_commands": ["look"]}), b"")
    assert (query.prompt, query.commands, query.temperature) == (ROOM, ("look",), 0)


def test_reasons_are_few_and_do_not_repeat_what_was_sent():
    with pytest.raises(RequestRefused) as caught:
        validated(TextFields, {"task_name": CAVE, **{f"colour{i}": "a secret" for i in range(9)}})
    assert caught.value.status == 422 and str(caught.value).count(";") == 4
    assert "colour0" in str(caught.value) and "a secret" not in str(caught.value)


@pytest.mark.parametrize(("text", "status"), [("{", 400), ("[" * 100_000, 400), ("[]", 422), ("3", 422)])
def test_only_json_objects_are_messages(text, status):
    with pytest.raises(RequestRefused) as caught:
        json_object(text)
    assert caught.value.status == status
