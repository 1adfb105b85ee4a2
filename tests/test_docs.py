"""The documentation names only what is there, names every setting, and becomes a site; its first code runs."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from alfworld_native import gym_env
from lavis.common.paths import REPO_ROOT
from lavis.common.run_settings import RunSettings
from lavis.models import memory
from lavis.models.blip2_models.emac_config import CONFIG_DEFAULTS, model_section
from lavis.models.hf_vlm import options as hf_vlm
from policy_server import settings as served
from tests.browser import running_browser
from xrl_alignment.builders.student import load_student
from xrl_alignment.common.moved import name_of_today
from xrl_alignment.runs.checkpoint import save_checkpoint
from xrl_alignment.settings import planning, schema

PAGES = [REPO_ROOT / "README.md", REPO_ROOT / "CONTRIBUTING.md", *sorted((REPO_ROOT / "docs").rglob("*.md"))]
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


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    plain = [unicodedata.normalize("NFKD", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    words = [re.sub(r"[^\w\s-]", "", line.encode("ascii", "ignore").decode()).strip().lower() for line in plain]
    return {re.sub(r"[-\s]+", "-", line) for line in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    missing = [
        f"{file}#{anchor}" for file, anchor in links if anchor not in headings((page.parent / file) if file else page)
    ]
    assert missing == []


def nav_pages(nav: Any) -> list[str]:
    """Every page that the site's navigation names."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in nav_pages(item)]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = nav_pages(yaml.safe_load((REPO_ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    hook = (REPO_ROOT / "docs" / "site" / "repository.py").read_text(encoding="utf-8")
    ours = [page.relative_to(REPO_ROOT / "docs").as_posix() for page in PAGES[2:]]
    assert sorted(pages) == sorted([*ours, *re.findall(r'"(\w+\.md)",', hook)])


def blocks(page: str) -> list[str]:
    """The Python code of a page of `docs/`."""
    return re.findall(
        r"^```python\n(.*?)^```", (REPO_ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_first_steps_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    model, _ = load_student({"model_type": "demo"}, torch.device("cpu"))
    save_checkpoint(tmp_path / "emma_checkpoint_1.pth", model=model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gym_env, "GENERATED", 6)  # games: a hundred take longer
    games, action = blocks("tutorials/first_steps.md")
    lines = [[line for line in block.splitlines() if line] for block in (games, action)]
    assert [len(block) for block in lines] == [11, 8]  # as its headings say
    names: dict[str, Any] = {}
    exec(compile(games, "first steps, the games", "exec"), names)
    assert names["observation"]["image"].shape == (224, 224, 3) and names["done"]
    assert "Your task is to:" in capsys.readouterr().out
    exec(compile(action, "first steps, an action", "exec"), names)
    assert re.fullmatch(r"\['.+'\]\n", capsys.readouterr().out)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's advertisement, as in the Makefile
    built = subprocess.run(command, cwd=REPO_ROOT, env=quiet, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        # What a browser loads by itself; a link (`<a href>`) is followed by the reader only.
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\ssrc=[\"']?([^\"'\s>]+)", text)
        loaded += [found for found in re.findall(r"<link\b[^>]*>", text) if "canonical" not in found]
        assert [found for found in loaded if "//" in found] == [], page
    assert "url(http" not in "".join(sheet.read_text(encoding="utf-8") for sheet in tmp_path.rglob("*.css"))
    assert "ALFWorldEnv" in (tmp_path / "api" / "environments.html").read_text(encoding="utf-8")
    check_search(tmp_path)


def check_search(site: Path) -> None:
    """A site that is opened as a file finds its pages: browsers start no worker there (docs/site/iframe-worker.js)."""
    with running_browser(site / "browser") as browser, browser.page() as page:
        page.open((site / "index.html").as_uri())
        page.wait("document.querySelector('.md-search__input') !== null")
        page.evaluate("document.querySelector('label.md-header__button[for=__search]').click()")
        page.evaluate(
            "(() => { const box = document.querySelector('.md-search__input'); box.focus(); box.value = 'staleness'; "
            "box.dispatchEvent(new KeyboardEvent('keyup', { bubbles: true })); })()"
        )
        page.wait("document.querySelectorAll('.md-search-result__item').length > 0")
        assert "staleness" in page.text(".md-search-result__list").lower()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = set(re.findall(r"-m ((?:alfworld_native|xrl_alignment|lavis)[\w.]*)", text))
    missing = []
    for module in modules:
        names = (name_of_today(module), name_of_today(f"{module}.__main__"))
        if not any((REPO_ROOT / f"{name.replace('.', '/')}.py").is_file() for name in names):
            missing.append(module)
    targets = set(re.findall(r"^([a-z-]+):", (REPO_ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    missing += set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE)) - targets
    assert missing == []


COMMAND = re.compile(r"python[\w.]* (?:-m ((?:alfworld_native|xrl_alignment|lavis)[\w.]*)|([\w/]+\.py))(.*)")
# A thin program: `from a.b import main` says where its command is.
COMMAND_OF = re.compile(r"^ *from (\w[\w.]*) import main$", re.MULTILINE)
# What a program takes beside the options in its own file: where these are defined.
SHARED_OPTIONS = {
    "parse_args(": "lavis/common/program.py",
    "from _bench import": "benchmarks/_bench.py",
    "import _bench": "benchmarks/_bench.py",
    "All other options go to the client": "split_inference/alfworld_vllm_client.py",
}


def program(module: str, script: str) -> Path | None:
    """The source of `python -m module` or `python script`; None for programs of others."""
    name = script.removesuffix(".py")
    modules = [name_of_today(module), name_of_today(f"{module}.__main__")] if module else []
    places = [f"{name.replace('.', '/')}.py" for name in modules] or [f"{name}.py", f"split_inference/{name}.py"]
    return next((REPO_ROOT / place for place in places if (REPO_ROOT / place).is_file()), None)


def declares(source: str, option: str) -> bool:
    """Whether an option is written in the source, or as a field of which it makes one."""
    field = f"\n    {option.removeprefix('--').replace('-', '_')}: "
    return f'"{option}"' in source or ("dataclasses.fields(" in source and field in source)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_commands_exist(page: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    wrong = []
    for module, script, rest in COMMAND.findall(text):
        if path := program(module, script):
            source = path.read_text(encoding="utf-8")
            shared = {place for sign, place in SHARED_OPTIONS.items() if sign in source}
            commands = {f"{module.replace('.', '/')}.py" for module in COMMAND_OF.findall(source)}
            if not all((REPO_ROOT / place).is_file() for place in commands):
                continue  # another library's command
            shared |= commands
            source += "".join((REPO_ROOT / place).read_text(encoding="utf-8") for place in shared)
            options = re.findall(r"(?<!\S)--[a-z][a-z-]*", re.split(r"`|  #", rest)[0])
            wrong += [f"{path.name} {option}" for option in options if not declares(source, option)]
    assert wrong == []


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_every_setting_is_listed(schema: type) -> None:
    text = (REPO_ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    sections = [part for part in text.split("\n## ") if part.startswith(f"`{schema.section}`")]
    listed = [set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) for section in sections]
    assert any({field.name for field in dataclasses.fields(schema)} <= names for names in listed)


OTHERS = [
    (planning.PlannedEnvironmentConfig, "environment"),
    (RunSettings, "run"),
    (served.ServerSettings, "server"),
    (served.ModelSettings, "model"),
]
NOT_KEYS = {"model.sources"}  # an attribute of the model


def known_keys() -> set[str]:
    """Every `section.key` of the project's settings: of runs, offline training, the model and the policy server."""
    ours = [(kind, re.sub(r"^(Evaluate|Loop)|Config$", "", kind.__name__).lower()) for kind in SCHEMAS]
    keys = {f"{section}.{field.name}" for kind, section in ours + OTHERS for field in dataclasses.fields(kind)}
    return keys | {f"model.{key}" for key in (*CONFIG_DEFAULTS, *hf_vlm.CONFIG_DEFAULTS)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    """Such as `run.num_envs` in the text, or run.num_envs=3 in a command."""
    sections = "run|environment|expert|policy|server|reflexion|model"
    named = re.findall(rf"(?<![\w./-])((?:{sections})\.[a-z]\w*)(?=[`=])", page.read_text(encoding="utf-8"))
    files = {name for name in named if name.endswith((".json", ".log", ".md", ".yml", ".yaml"))}
    assert set(named) - files - NOT_KEYS - known_keys() == set()


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
