"""The interface is the package itself: nothing outside it imports its modules."""

from __future__ import annotations

import re
from pathlib import Path

import lavis
from lavis.models import fast_llm

ROOT = Path(lavis.__file__).parents[1]
PACKAGES = ("lavis", "xrl_alignment", "policy_server", "split_inference", "benchmarks")


def test_only_the_interface_is_imported_outside() -> None:
    own = Path(fast_llm.__file__).parent
    inside = re.compile(r"lavis\.models\.fast_llm\.\w")
    outside = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if own not in path.parents]
    assert len(outside) > 50
    assert [str(path) for path in outside if inside.search(path.read_text(encoding="utf-8"))] == []


def test_every_public_name_has_a_docstring() -> None:
    calls = [getattr(fast_llm, name) for name in fast_llm.__all__ if callable(getattr(fast_llm, name))]
    assert len(calls) > 8 and all(call.__doc__ for call in calls)
