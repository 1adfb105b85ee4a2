"""The page about settings is the one that the schema gives."""

from __future__ import annotations

import subprocess
import sys

from lavis.common.paths import REPO_ROOT
from xrl_alignment.settings.settings_page import settings_page


def test_the_page_in_docs_is_up_to_date() -> None:
    page = (REPO_ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == settings_page(), "run: python -m xrl_alignment.config > docs/settings.md"


def test_a_row_says_default_rule_meaning_and_resume() -> None:
    rows = settings_page().splitlines()
    assert "| `seed` | `42` | a number from 0 to 4294967295 | seed of everything random in the run |  |" in rows
    device = "one of auto, cpu, cuda, cuda:&lt;index>"
    assert any(row.startswith(f"| `device` | `auto` | {device} |") and row.endswith("| may change |") for row in rows)
    assert any(row.startswith("| `beta` | `[0.0]` | a list of probabilities") for row in rows)
    assert any(row.startswith("| `enabled` | `true` | true or false |") for row in rows)


def test_the_module_prints_the_page() -> None:
    command = [sys.executable, "-m", "xrl_alignment.config"]
    assert subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPO_ROOT).stdout == settings_page()
