from __future__ import annotations

import pytest

from lavis.common.errors import ConfigError
from policy_server.refusals import RequestRefused
from policy_server.web.api_keys import KEYS_VARIABLE, ApiKeys, read_keys

ONE, TWO, THREE = ("a" * 20, "b" * 20, "c" * 20)


def test_keys_come_from_the_file_and_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# who\nlab {ONE}   # the lab's\n\n{TWO}\n")
    assert read_keys(str(file), {KEYS_VARIABLE: f" {THREE} ,"}) == {"env1": THREE, "lab": ONE, "line4": TWO}
    assert read_keys("", {}) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("short", "line1.*at least 16"),
        (f"a {ONE} {TWO}", "line 1: write"),
        (f"a {ONE}\na {TWO}", "'a' is given twice"),
        (f"a {ONE}\nb {ONE}", "'b' is given twice"),
    ],
)
def test_bad_key_files_are_named_and_keys_are_not_shown(tmp_path, text, complaint):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_keys(str(file), {})
    assert ONE not in str(caught.value)


def test_a_missing_key_file_is_named():
    with pytest.raises(ConfigError, match="keys_file=/nowhere/keys cannot be read"):
        read_keys("/nowhere/keys", {})


@pytest.mark.parametrize(
    "headers", [{"authorization": f"Bearer {TWO}"}, {"x-api-key": TWO}, {"authorization": f"bearer  {TWO} "}]
)
def test_a_key_has_a_name(headers):
    assert ApiKeys({"lab": ONE, "home": TWO}).caller(headers, "10.0.0.1") == "home"


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": TWO}, {"authorization": f"Basic {ONE}"}, {"x-api-key": ONE[:-1]}, {"x-api-key": "ä"}],
)
def test_without_a_valid_key_nobody_is_let_in(headers):
    with pytest.raises(RequestRefused) as caught:
        ApiKeys({"lab": ONE}).caller(headers, "10.0.0.1")
    assert caught.value.status == 401


def test_without_keys_each_address_is_a_caller():
    assert ApiKeys({}).caller({}, "10.0.0.1") != ApiKeys({}).caller({}, "10.0.0.2")
