"""Where the repository's own files lie: `prompts/` and `configs/` stand at its root."""

from __future__ import annotations

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[2]
