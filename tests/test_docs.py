"""The documentation names only what is there, and names every setting."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from xrl_alignment import config
from xrl_alignment.paths import REPO_ROOT

PAGES = [REPO_ROOT / "README.md", *sorted((REPO_ROOT / "docs").glob("*.md"))]
SCHEMAS = [
    config.RunConfig,
    config.EvaluateRunConfig,
    config.EnvironmentConfig,
    config.ExpertConfig,
    config.PolicyConfig,
    config.ServerConfig,
    config.ReflexionConfig,
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    configs = set(re.findall(r"configs/\w+/\w+\.yaml", text))
    missing += [name for name in configs if not (REPO_ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = set(re.findall(r"-m ((?:xrl_alignment|lavis)[\w.]*)", text))
    missing = []
    for module in modules:
        path = REPO_ROOT / module.replace(".", "/")
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
            missing.append(module)
    targets = set(re.findall(r"^([a-z-]+):", (REPO_ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    missing += set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE)) - targets
    assert missing == []


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_every_setting_is_listed(schema: type) -> None:
    keys = " ".join(field.name for field in dataclasses.fields(schema))
    assert f"`{keys}`" in (REPO_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
