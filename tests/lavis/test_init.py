"""Importing lavis: light, alone, and with its paths registered."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from omegaconf import OmegaConf

import lavis
from lavis.common.registry import registry

ROOT = Path(lavis.__file__).parents[1]
HEAVY = {"torch", "transformers", "numpy", "omegaconf", "yaml"}


def fake_distribution(folder: Path, name: str, top_level: str) -> None:
    """Metadata of an installed distribution in `folder`."""
    info = folder / f"{name.replace('-', '_')}-1.0.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.2\n", encoding="utf-8")
    (info / "top_level.txt").write_text(top_level, encoding="utf-8")


def run_import(extra_path: Path) -> subprocess.CompletedProcess:
    """`import lavis` in a process of its own that also sees the distributions in `extra_path`."""
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(extra_path)!r}]; import lavis; print(sorted(sys.modules))"
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
    assert result.returncode == 0
    assert not HEAVY & set(ast.literal_eval(result.stdout))


def test_the_foundation_loads_without_torch(tmp_path: Path) -> None:
    modules = ("errors", "files", "progress", "registry")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    code += "".join(f"import lavis.common.{name}; " for name in modules) + "print(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(ast.literal_eval(result.stdout))


def test_cache_root_is_that_of_the_yaml(tmp_path: Path) -> None:
    package = Path(lavis.__file__).parent
    stated = OmegaConf.load(package / "configs" / "default.yaml").env.cache_root
    assert registry.get_path("cache_root") == str(package.parent / Path(stated).expanduser())
    (tmp_path / "lavis" / "configs").mkdir(parents=True)
    for line, folder in (("'cache'", tmp_path / "cache"), ("/var/cache  # shared", Path("/var/cache"))):
        (tmp_path / "lavis" / "configs" / "default.yaml").write_text(f"env:\n  cache_root: {line}\n", encoding="utf-8")
        assert lavis.cache_root(tmp_path / "lavis") == folder


def test_paths_are_registered() -> None:
    assert Path(registry.get_path("library_root")) == Path(lavis.__file__).parent
    assert registry.get("SPLIT_NAMES") == ["train", "val", "test"]
