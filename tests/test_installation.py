"""The installation without extras: what it brings, what works with it, and what the rest says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT

# What `pip install -e .` brings, with what that needs in turn. In `run_light` nothing else can be imported.
LIGHT = """numpy PIL gymnasium rich yaml filelock typing_extensions cloudpickle farama_notifications markdown_it mdurl
pygments alfworld_native lavis xrl_alignment""".split()
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in LIGHT and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""
PLAY = """
import alfworld_native  # registers the environments
import gymnasium
env = gymnasium.make("ALFWorldNative-v0", games="generated")
observation, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step(info["admissible_commands"][0])
"""

# gymnasium imports what stands before the colon: a program, or a config file with the id, needs no import of its own.
PLAY_BY_NAME = """
import gymnasium
env = gymnasium.make("alfworld_native:ALFWorldNative-v0", games="generated")
assert env.reset(seed=0)[1]["admissible_commands"]
envs = gymnasium.make_vec("alfworld_native:ALFWorldNative-v0", num_envs=8, games="generated")
observations, infos = envs.reset(seed=0)
observations, rewards, *_ = envs.step([commands[0] for commands in infos["admissible_commands"]])
assert type(envs).__name__ == "ALFWorldVectorEnv" and len(observations["text"]) == 8 and rewards.shape == (8,)
"""


def run_light(code: str, folder: Path, *blocked: str) -> str:
    """The output of `code` in a Python that has only the packages of LIGHT without `blocked`."""
    allowed = [name for name in LIGHT if name not in blocked]
    environment = {**os.environ, "PYTHONPATH": str(REPO_ROOT), "XDG_CACHE_HOME": str(folder)}
    program = f"LIGHT = {allowed}\n{BLOCK}\n{code}"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_shows_what_is_played_here():
    assert all(line in (REPO_ROOT / "README.md").read_text(encoding="utf-8") for line in PLAY.strip().splitlines())


def test_the_light_installation_generates_plays_renders_and_explores(tmp_path):
    code = """
from alfworld_native import choose_games, make_environment
from alfworld_native.base import information_of
from xrl_alignment.agents.experts import make_expert
env.unwrapped.render_mode = "rgb_array"
assert observation["text"].strip() and env.unwrapped.render().shape == (224, 224, 3)
(game,) = choose_games("household", "household_heldout", num=1, num_train=100, num_heldout=100)
environment, expert = make_environment("native"), make_expert("explorer")
now = environment.reset(game)
expert.begin(now.text, task_type=game.id)
while not now.done:
    action = expert.act(information_of(environment, now)).action
    now = environment.step(action)
    expert.observe(action, now.text)
print("won", now.won)
"""
    assert run_light(PLAY + code, tmp_path) == "won True\n"


GENERATE = ["alfworld_native.household", "--out", ".", "--num-train", "1", "--num-heldout", "1"]
WATCH = [
    "xrl_alignment.play",
    "--env",
    "native",
    "--split",
    "household_train",
    "--data",
    ".",
    "--player",
    "expert",
]


def test_gymnasium_finds_the_games_by_their_name_alone(tmp_path):
    assert run_light(PLAY_BY_NAME, tmp_path) == ""


def test_the_generators_program_and_play_need_no_extra(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(f"LIGHT = {LIGHT}\n{BLOCK}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPO_ROOT)])}
    for arguments, said in ((GENERATE, "games: "), ([*WATCH, "--delay", "0"], ", solved in ")):
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and said in done.stdout, done.stderr
    assert len(list(tmp_path.rglob("game.tw-pddl"))) == 2


def test_the_engine_needs_the_standard_library_only(tmp_path):
    run_light("import alfworld_native.engine.environment", tmp_path, *LIGHT[: LIGHT.index("alfworld_native")])


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("lavis.models.zoo", "torch", "train"),
        ("xrl_alignment.settings.loading", "omegaconf", "train"),
        ("alfworld_native.textworld", "alfworld", "textworld"),
        ("xrl_alignment.agents.experts.llm.endpoint", "openai", "teacher"),
        ("xrl_alignment.adapters.openenv", "openenv", "openenv"),
        ("xrl_alignment.adapters.inspect", "inspect_ai", "inspect"),
        ("xrl_alignment.adapters.verifiers", "verifiers", "verifiers"),
    ],
)
def test_what_is_not_installed_names_its_extra(module, package, extra, tmp_path):
    code = f"try:\n    import {module}\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    message = f"package {package} is not installed: run `pip install -e '.[{extra}]'`"
    assert run_light(code, tmp_path) == f"MissingExtraError {message}\n"


def test_every_line_that_installs_is_one_that_works():
    """No index has this project yet, so each is of this folder, in one spelling, with extras that exist."""
    (section,) = re.findall(
        r"^\[project.optional-dependencies\]$(.*?)^\[", (REPO_ROOT / "pyproject.toml").read_text(), re.M | re.S
    )
    extras = re.findall(r"^([a-z-]+) = \[", section, re.M)
    tracked = subprocess.run(["git", "ls-files"], cwd=REPO_ROOT, capture_output=True, text=True, check=True).stdout
    lines = 0
    for name in tracked.splitlines():
        if Path(name).suffix not in (".py", ".md", ".sh", ".toml", ".txt", ".yml", ".ipynb") or name == "CHANGELOG.md":
            continue
        text = (REPO_ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"pip install [^\n`]*emac-plus", text), f"{name}: no index has emac-plus"
        for listed in re.findall(r"pip install -e '\.\[([a-z, -]+)\]'", text):
            assert set(listed.replace(" ", "").split(",")) <= {*extras, "name"}, f"{name}: {listed}"
            lines += 1
    assert lines > 20


@pytest.mark.slow
@pytest.mark.timeout(1200)  # pip's time depends on the network and on what else the machine does
def test_the_wheel_in_an_empty_environment_plays(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    source = tmp_path / "source"  # setuptools leaves `build/` where it works
    tracked = subprocess.run(["git", "ls-files"], cwd=REPO_ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((REPO_ROOT / name).read_bytes())
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source)], check=True)
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin") / "python"
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([python, *pip[1:], "install", "-c", REPO_ROOT / "constraints.txt", wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    check = "import importlib.util as u; assert not any(map(u.find_spec, ('torch', 'textworld', 'alfworld')))"
    subprocess.run([python, "-c", check + PLAY], env=environment, cwd=tmp_path, check=True)
    subprocess.run([python, "-c", PLAY_BY_NAME], env=environment, cwd=tmp_path, check=True)
