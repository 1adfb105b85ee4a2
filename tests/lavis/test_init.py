"""Importing lavis: light, alone, and with its paths registered."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
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


PROGRAMS = ["train.py", "evaluate.py", "dagger_server.py", "alfworld_client.py", "generate_reflections.py"]
COMMANDS = ["xrl_alignment.lab.demo", "xrl_alignment.lab.pipeline", "xrl_alignment.show.report", "lavis.models.verify"]


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter without any library, as `python` is where nobody has activated .venv."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


@pytest.mark.parametrize("command", [*([name] for name in PROGRAMS), *(["-m", name] for name in COMMANDS)])
def test_the_wrong_interpreter_is_one_line(empty_python: Path, command: list[str]) -> None:
    done = subprocess.run([empty_python, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"error: {empty_python} (Python {sys.version.split()[0]}) lacks numpy, omegaconf, to")
    assert ".venv/bin/python" in done.stderr and done.stderr.count("\n") == 1


def test_every_program_looks_at_its_interpreter_first() -> None:
    """Before any import but the standard library's, and in words that Python 3.8 can read."""
    for path in ROOT.glob("*.py"):
        if path.name in ("setup.py", "post_processing.py"):
            continue
        imports = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8)).body[2:]
        first = next(line for line in imports if not isinstance(line, ast.ImportFrom | ast.Import))
        assert ast.unparse(first) == "if __name__ == '__main__':\n    import lavis", path
        assert imports[0] is first, path
    for name in ("__init__.py", "common/__init__.py", "common/registry.py", "common/errors.py"):
        ast.parse((Path(lavis.__file__).parent / name).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_program_is_told_of_another_provider_in_one_line(tmp_path: Path) -> None:
    fake_distribution(tmp_path, "salesforce-lavis", "app\nlavis\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: another distribution also provides the package 'lavis': salesforce-lavis")


def test_cache_root_is_that_of_the_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    package = Path(lavis.__file__).parent
    stated = OmegaConf.load(package / "configs" / "default.yaml").env.cache_root
    assert lavis.cache_root(package) == package.parent / Path(stated).expanduser()
    (tmp_path / "lavis" / "configs").mkdir(parents=True)
    for line, folder in (("'cache'", tmp_path / "cache"), ("/var/cache  # shared", Path("/var/cache"))):
        (tmp_path / "lavis" / "configs" / "default.yaml").write_text(f"env:\n  cache_root: {line}\n", encoding="utf-8")
        assert lavis.cache_root(tmp_path / "lavis") == folder
        monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/me")
        assert lavis.cache_root(tmp_path / "lavis") == folder
    assert lavis.cache_root(package) == Path("/scratch/me/emac-plus/lavis")
    Path(stated).expanduser().mkdir(parents=True)  # with what was downloaded before the variable counted
    assert lavis.cache_root(package) == tmp_path / "home" / ".cache" / "emac-plus" / "lavis"


def test_paths_are_registered() -> None:
    assert Path(registry.get_path("library_root")) == Path(lavis.__file__).parent
    assert registry.get("SPLIT_NAMES") == ["train", "val", "test"]
