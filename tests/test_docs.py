"""The documentation names only what is there, and names every setting."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest

from lavis.models import memory
from lavis.models.blip2_models.emac_config import CONFIG_DEFAULTS, model_section
from xrl_alignment.common.paths import REPO_ROOT
from xrl_alignment.config import planning, schema

PAGES = [REPO_ROOT / "README.md", REPO_ROOT / "CONTRIBUTING.md", *sorted((REPO_ROOT / "docs").glob("*.md"))]
SCHEMAS = [
    schema.RunConfig,
    schema.EvaluateRunConfig,
    schema.EnvironmentConfig,
    schema.ExpertConfig,
    schema.PolicyConfig,
    schema.ServerConfig,
    schema.ReflexionConfig,
    planning.LoopRunConfig,
    planning.PlannerConfig,
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


COMMAND = re.compile(r"python[\w.]* (?:-m ((?:xrl_alignment|lavis)[\w.]*)|([\w/]+\.py))(.*)")
# A thin program: `from a.b import main` says where its command is.
COMMAND_OF = re.compile(r"^from (\w[\w.]*) import main$", re.MULTILINE)
# What a program takes beside the options in its own file: where these are defined.
SHARED_OPTIONS = {
    "parse_args(": "xrl_alignment/common/program.py",
    "from _bench import": "benchmarks/_bench.py",
    "import _bench": "benchmarks/_bench.py",
    "All other options go to the client": "split_inference/alfworld_vllm_client.py",
}


def program(module: str, script: str) -> Path | None:
    """The source of `python -m module` or `python script`; None for programs of others."""
    name = module.replace(".", "/") or script.removesuffix(".py")
    places = [f"{name}.py", f"{name}/__main__.py", f"split_inference/{name}.py"]
    return next((REPO_ROOT / place for place in places if (REPO_ROOT / place).is_file()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_commands_exist(page: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    wrong = []
    for module, script, rest in COMMAND.findall(text):
        if path := program(module, script):
            source = path.read_text(encoding="utf-8")
            shared = {place for sign, place in SHARED_OPTIONS.items() if sign in source}
            shared |= {f"{module.replace('.', '/')}.py" for module in COMMAND_OF.findall(source)}
            source += "".join((REPO_ROOT / place).read_text(encoding="utf-8") for place in shared)
            options = re.findall(r"(?<!\S)--[a-z][a-z-]*", re.split(r"`|  #", rest)[0])
            wrong += [f"{path.name} {option}" for option in options if f'"{option}"' not in source]
    assert wrong == []


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_every_setting_is_listed(schema: type) -> None:
    text = (REPO_ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    listed = " ".join(re.findall(r"^\| (`\w+`) \|", text, re.MULTILINE))
    assert " ".join(f"`{field.name}`" for field in dataclasses.fields(schema)) in listed


# In the text the figure follows the command; in a list of commands it stands behind the `#`.
PREDICTION = re.compile(r"python -m lavis\.models\.memory ([-\w. /]+?)(?:`[^`]*?|\s+# )(\d+\.\d\d) GiB")


def test_memory_figures_are_what_the_command_prints(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    skeleton = memory.skeleton

    @functools.cache  # it takes seconds
    def built(model_type: str, on_cpu: bool) -> dict[str, Any]:
        return skeleton({**CONFIG_DEFAULTS, **model_section(model_type)}, on_cpu=on_cpu)

    monkeypatch.setattr(memory, "skeleton", lambda options, *, on_cpu: built(options["model_type"], on_cpu))
    figures = {found for page in PAGES for found in PREDICTION.findall(page.read_text(encoding="utf-8"))}
    assert figures
    for arguments, figure in sorted(figures):
        assert memory.main(arguments.split()) == 0
        assert capsys.readouterr().out.split()[-2:] == [figure, "GiB"], arguments


def test_commands_are_written_for_the_activated_environment() -> None:
    """One spelling: `python`. Ray's commands start on other machines, where nobody has activated anything."""
    lines = "".join(page.read_text(encoding="utf-8") for page in PAGES).splitlines()
    elsewhere = [line for line in lines if re.search(r"\.venv/bin/(python|alfworld)", line)]
    assert [line for line in elsewhere if "run_scripts/ray/" not in line] == []
