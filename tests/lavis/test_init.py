"""Importing lavis: light, alone, and with its paths registered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lavis
from lavis.common.registry import registry


def fake_distribution(folder: Path, name: str, top_level: str) -> None:
    """Metadata of an installed distribution in `folder`."""
    info = folder / f"{name.replace('-', '_')}-1.0.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.2\n", encoding="utf-8")
    (info / "top_level.txt").write_text(top_level, encoding="utf-8")


def run_import(extra_path: Path) -> subprocess.CompletedProcess:
    """`import lavis` in a process of its own that also sees the distributions in `extra_path`."""
    root = str(Path(lavis.__file__).parents[1])
    code = f"import sys; sys.path[:0] = [{root!r}, {str(extra_path)!r}]; import lavis; print('torch' in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_another_provider_of_lavis_is_named(tmp_path: Path) -> None:
    fake_distribution(tmp_path, "salesforce-lavis", "app\nlavis\n")
    result = run_import(tmp_path)
    assert result.returncode != 0
    assert "ImportError: another distribution also provides the package 'lavis': salesforce-lavis" in result.stderr


def test_our_own_distribution_is_no_other(tmp_path: Path) -> None:
    fake_distribution(tmp_path, lavis.OWN_DISTRIBUTION, "lavis\nxrl_alignment\n")
    fake_distribution(tmp_path, "something-else", "something\n")
    result = run_import(tmp_path)
    assert (result.returncode, result.stdout) == (0, "False\n")  # torch is not loaded by lavis alone


def test_paths_are_registered() -> None:
    assert Path(registry.get_path("library_root")) == Path(lavis.__file__).parent
    assert registry.get("SPLIT_NAMES") == ["train", "val", "test"]
