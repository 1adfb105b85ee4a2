"""The machine's lines, against real libraries, disks and ports."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT
from xrl_alignment.lab.doctor import machine
from xrl_alignment.lab.doctor.finding import Finding


def test_python_too_old_is_a_fail():
    assert machine.check_python((3, 9, 1)).level == "fail"
    assert machine.check_python((3, 12, 0)).level == "ok"


def test_libraries_name_what_is_missing():
    findings = list(machine.check_libraries({"numpy": "numpy", "no_such_module_here": "no-such-dist"}))
    assert [f.level for f in findings] == ["fail", "ok"]
    assert "no-such-dist" in str(findings[0]) and "numpy " in findings[1].detail


def test_device_line_never_fails_here():
    assert machine.check_device().level in ("ok", "warn")


def test_disk(tmp_path):
    assert machine.check_disk(tmp_path, needed=1).level == "ok"
    assert machine.check_disk(tmp_path, needed=1 << 70).level == "fail"


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.check_cache() == Finding("ok", "cache", str(tmp_path / "emac"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")  # root may write wherever modes alone forbid it
    found = machine.check_cache()
    assert found.level == "warn" and found.advice.endswith("set XDG_CACHE_HOME to a folder of yours")
    assert "/proc/emac" in found.detail


def test_port_free_and_held():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        held = machine.check_port(port)
        assert held.level == "fail" and str(port) in held.what
        if Path("/proc/net/tcp").exists():
            assert f"process {os.getpid()}" in held.detail
    assert machine.check_port(port).level == "ok"


def test_port_out_of_range_is_a_fail():
    assert machine.check_port(70000).level == "fail"


def test_keys_are_never_shown():
    (finding,) = machine.check_keys({"A_KEY": "sesame-42"}, names=("A_KEY",))
    assert "sesame" not in str(finding) and finding.detail == "set"
    (finding,) = machine.check_keys({}, names=("A_KEY",))
    assert "not set" in finding.detail


@pytest.fixture
def project() -> dict:
    """The package's own metadata."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    return tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())["project"]


def test_extras_named_are_those_of_the_package(project):
    assert {extra for extra, _ in machine.EXTRAS.values()} <= set(project["optional-dependencies"])


def test_libraries_named_are_those_of_the_package(project):
    extras, named = project["optional-dependencies"], set(machine.LIBRARIES.values())
    base, others = (
        {re.match(r"[\w-]+", line)[0] for line in lines}
        for lines in (project["dependencies"], [*extras["train"], *extras["textworld"]])
    )
    assert base <= named <= base | others and "tenacity" in named
