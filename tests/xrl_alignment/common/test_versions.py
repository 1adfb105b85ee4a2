"""Versions that are written beside a result."""

import platform

import torch

from xrl_alignment.common import versions


def test_python_and_installed_packages_are_listed():
    found = versions.versions()
    assert list(found)[0] == "python" and found["python"] == platform.python_version()
    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_what_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(versions, "PACKAGES", ("no-such-package", "numpy"))
    assert list(versions.versions()) == ["python", "numpy"]
