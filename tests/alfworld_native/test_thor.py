"""AI2-THOR without Unity: doubles of alfworld's answers first, then alfworld's own source over a recorded room."""

import importlib.util
import inspect
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from alfworld_native import find_games, thor
from alfworld_native.base import Environment, Game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.alfworld import AlfworldExpert
from alfworld_native.language.sentences import TASK_TYPES
from alfworld_native.thor import ThorEnvironment, thor_config, write_names
from tests.alfworld_native import recorded_thor
from xrl_alignment.agents.experts import make_expert

DESK, MUG = "Desk|+01.00|+00.00|+00.50", "Mug|+01.10|+00.70|+00.60"


class AlfredThread:
    """alfworld.agents.environment.alfred_thor_env.AlfredThorEnv.Thor as far as it is used."""

    def __init__(self):
        self.alive, self.results, self.train_eval = True, (), "train"
        self.expert = SimpleNamespace(act=None)
        segmentation = np.zeros((300, 300, 3), np.uint8)
        segmentation[100:200, 100:200] = (7, 8, 9)
        event = SimpleNamespace(instance_segmentation_frame=segmentation, color_to_object_id={(7, 8, 9): DESK})
        self.env = SimpleNamespace(last_event=event)
        self.controller = SimpleNamespace(receptacles={DESK: {"num_id": "desk 1"}}, objects={MUG: {"num_id": "mug 1"}})

    def is_alive(self):
        return self.alive

    def get_results(self):
        return self.results


class Alfred:
    """AlfredThorEnv after init_env(1)."""

    def __init__(self, config, train_eval):
        self.config, self.train_eval = config, train_eval
        self.envs = [AlfredThread()]
        self.json_file_list, self.commands, self.closed, self.dies = [], [], False, False

    def _infos(self, won=False):
        self.envs[0].results = (len(self.commands),)
        return {
            "admissible_commands": [["go to desk 1", "move mug 1 to desk 1", "look", "look"]],
            "won": [won],
            "goal_condition_success_rate": [0.5],
            "extra.gamefile": ["somewhere"],
            "extra.expert_plan": [["move mug 1 to desk 1"] if self.envs[0].train_eval == "train" else []],
        }

    def reset(self):
        return ["-= Welcome to TextWorld, ALFRED! =-\n\nYou are ..."], self._infos()

    def step(self, commands):
        self.commands += commands
        if self.dies:
            self.envs[0].alive = False  # its results stay as they were
            return ["Nothing happens."], None, [False], {}
        won = commands == ["put mug 1 in/on desk 1"]
        return ["You put the mug 1 in/on the desk 1."], None, [won], self._infos(won)

    def get_frames(self):
        frame = np.zeros((1, 300, 300, 3), np.uint8)
        frame[..., 0] = 200  # blue, in OpenCV's order
        return frame

    def close(self):
        self.closed = True


@pytest.fixture
def game(tmp_path):
    path = tmp_path / "pick_and_place_simple-Mug-None-Desk-301" / "trial_1" / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    (path.parent / "traj_data.json").write_text(json.dumps({"scene": {"scene_num": 301, "object_poses": []}}))
    return Game("pick_and_place_simple-Mug-None-Desk-301/trial_1", path)


def test_an_episode(game):
    environment = ThorEnvironment(expert="handcoded", start=Alfred)
    step = environment.reset(game)
    assert isinstance(environment, Environment)
    assert step.admissible_commands == ["go to desk 1", "look", "put mug 1 in/on desk 1"]
    assert not step.done
    assert environment._alfred.json_file_list == [str(game.path.parent / "traj_data.json")]
    step = environment.step(environment.expert_action())
    assert environment._alfred.commands == ["put mug 1 in/on desk 1"]
    assert step.won and step.done
    with pytest.raises(EnvironmentFault, match="episode is over"):
        environment.step("look")
    alfred = environment._alfred
    environment.close()
    environment.close()
    assert alfred.closed


def test_both_dialects_reach_the_controller_as_put(game):
    environment = ThorEnvironment(start=Alfred)
    environment.reset(game)
    environment.step("move mug 1 to sidetable 1")
    assert environment._alfred.commands == ["put mug 1 in/on sidetable 1"]


def test_step_limit_and_no_expert(game):
    environment = ThorEnvironment(max_steps=1, start=Alfred)
    environment.reset(game)
    assert environment._alfred.envs[0].train_eval == "eval"
    assert environment._alfred.config["dagger"]["training"]["max_nb_steps_per_episode"] == 1
    assert environment.step("look").done
    with pytest.raises(EnvironmentFault, match="without an expert"):
        environment.expert_action()


def test_frames_are_rgb_and_named_on_request(game):
    plain = ThorEnvironment(show_ids=False, start=Alfred)
    plain.reset(game)
    frame = plain.render()
    assert frame.shape == (300, 300, 3) and frame.dtype == np.uint8
    assert (frame[0, 0] == (0, 0, 200)).all()
    named = ThorEnvironment(start=Alfred)
    named.reset(game)
    changed = (named.render() != frame).any(axis=2)
    assert changed[140:160, 130:170].any()
    assert not changed[:100].any() and not changed[200:].any()
    named._thread.env.last_event.instance_segmentation_frame = None
    assert (named.render() == frame).all()


def test_small_things_stay_unnamed():
    frame, segmentation = np.zeros((50, 50, 3), np.uint8), np.zeros((50, 50, 3), np.uint8)
    segmentation[10:12, 10:12] = (1, 2, 3)
    assert (write_names(frame, segmentation, {(1, 2, 3): "pen 1"}) == frame).all()


@pytest.mark.parametrize("stoppable", [True, False])
def test_a_dead_simulator_is_stopped_and_an_error_not_a_wait(game, monkeypatch, stoppable):
    if not stoppable:
        monkeypatch.setattr(Alfred, "close", lambda self: 1 / 0)
    environment = ThorEnvironment(start=Alfred)
    environment.reset(game)
    alfred = environment._alfred
    alfred.dies = True
    with pytest.raises(EnvironmentFault, match="stopped answering"):
        environment.step("look")
    assert alfred.closed is stoppable
    with pytest.raises(EnvironmentFault, match="call reset"):
        environment.step("look")


def test_games_without_poses_cannot_be_built(household_data, tmp_path):
    environment = ThorEnvironment(start=Alfred)
    with pytest.raises(EnvironmentFault, match="no object poses.*alfworld-download"):
        environment.reset(find_games("household_train", household_data)[0])
    with pytest.raises(FileNotFoundError, match="traj_data.json"):
        environment.reset(Game("a/b", tmp_path / "game.tw-pddl"))


def test_missing_packages_and_display_are_named(monkeypatch):
    monkeypatch.setattr(thor.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"ai2thor, opencv-python, torchvision.*pip install -e '\.\[thor\]'"):
        thor.start_alfred_thor(thor_config("somewhere"), "train")
    monkeypatch.setattr(thor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(thor.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(EnvironmentFault, match="DISPLAY is not set; run the program under `xvfb-run -a`"):
        thor.start_alfred_thor(thor_config("somewhere"), "train")
    monkeypatch.setenv("DISPLAY", ":987654")
    with pytest.raises(EnvironmentFault, match="DISPLAY=:987654, but no X server is there; run the program under"):
        thor.start_alfred_thor(thor_config("somewhere"), "train")
    monkeypatch.setenv("DISPLAY", "far:1")  # another machine's is not looked at
    with pytest.raises(EnvironmentFault, match="AI2-THOR could not be started .ImportError: .*doctor --thor"):
        thor.start_alfred_thor(thor_config("somewhere"), "train")


def test_damaged_object_poses_are_named(game):
    trajectory = game.path.parent / "traj_data.json"
    for content in (trajectory.read_text()[:20], "[]", '{"scene": null}'):
        trajectory.write_text(content)
        with pytest.raises(EnvironmentFault, match="traj_data.json cannot be read .*: get it again with `alfw"):
            ThorEnvironment(start=Alfred).reset(game)


def test_a_simulator_that_does_not_start_says_why(alfworld_source, alfworld_data, monkeypatch):
    def start(self, **options):
        raise AssertionError("Invalid DISPLAY :0 - cannot find X server with xdpyinfo")

    monkeypatch.setattr(recorded_thor.Controller, "start", start)
    with pytest.raises(EnvironmentFault, match=r"not be started \(AssertionError: Invalid DISPLAY :0.*doctor --thor"):
        ThorEnvironment().reset(official_game("pick_heat_then_place_in_recep"))


@pytest.mark.parametrize(("options", "said"), [({"max_steps": 0}, "at least 1"), ({"expert": "planner"}, "handcoded")])
def test_bad_options(options, said):
    with pytest.raises(EnvironmentFault, match=said):
        ThorEnvironment(start=Alfred, **options)


def test_faults_before_a_game():
    environment = ThorEnvironment(start=Alfred)
    for call in (lambda: environment.step("look"), environment.render):
        with pytest.raises(EnvironmentFault, match="call reset"):
            call()


def test_the_configuration_has_every_key_that_alfworld_reads():
    """Against alfworld's source: every literal key path that AlfredThorEnv asks its configuration for."""
    import re

    from alfworld_native.household.alfworld_tables import alfworld_path

    source = (alfworld_path() / "agents/environment/alfred_thor_env.py").read_text().replace('"', "'")
    paths = {tuple(re.findall(r"'(\w+)'", keys)) for keys in re.findall(r"config((?:\['\w+'\])+)", source)}
    assert len(paths) > 10
    for path in paths - {("rl", "training", "max_nb_steps_per_episode"), ("mask_rcnn", "pretrained_model_path")}:
        value = thor_config("somewhere")
        for key in path:
            value = value[key]


@pytest.fixture
def alfworld_source(monkeypatch):
    with recorded_thor.installed(monkeypatch):
        yield


def official_game(task_type):
    """The first `valid_seen` game of a task type."""
    return next(game for game in find_games("valid_seen") if game.id.startswith(f"{task_type}-"))


def play_with(name, environment, game):
    """The texts of an episode that an expert plays, and its last time step."""
    expert = AlfworldExpert(environment) if environment.expert else make_expert(name)
    step = environment.reset(game)
    expert.begin(step.text, task_type=game.id)
    texts = [step.text]
    while not step.done:
        action = expert.act({"admissible_commands": step.admissible_commands}).action or "look"
        step = environment.step(action)
        expert.observe(action, step.text)
        texts += [f"> {action}", step.text]
    return texts, step


def test_alfworlds_own_source_plays_an_official_game(alfworld_source, alfworld_data, capsys):
    game = official_game("pick_heat_then_place_in_recep")
    environment = ThorEnvironment(expert="handcoded", show_ids=False)
    texts, step = play_with("handcoded", environment, game)
    assert step.won, "\n".join(texts)  # `_name_put`: without it the expert never puts the hot thing down
    assert texts[0].startswith("-= Welcome to TextWorld, ALFRED! =-") and "Your task is to: " in texts[0]
    assert any(text.startswith("> put ") for text in texts) and not any(text.startswith("> move ") for text in texts)
    assert (environment.render() == environment._thread.env.last_event.frame).all()
    controller = environment._thread.env
    poses = json.loads((game.path.parent / "traj_data.json").read_text())["scene"]["object_poses"]
    assert [a["objectPoses"] for a in controller.actions if a["action"] == "SetObjectPoses"] == [poses]
    environment.close()
    assert controller.stopped


PLAIN = [("explorer", "pick_cool_then_place_in_recep"), ("handcoded", "pick_clean_then_place_in_recep")]
PLAYS = [(name, task_type) for name in ("explorer", "handcoded") for task_type in TASK_TYPES]


@pytest.mark.parametrize(
    ("name", "task_type"), [pytest.param(*play, marks=[] if play in PLAIN else pytest.mark.slow) for play in PLAYS]
)
def test_every_task_type_is_won_through_alfworlds_source(alfworld_source, alfworld_data, task_type, name):
    environment = ThorEnvironment(expert="handcoded" if name == "handcoded" else None)
    texts, step = play_with(name, environment, official_game(task_type))
    environment.close()
    assert step.won, "\n".join(texts)


@pytest.mark.slow
def test_ai2thors_own_package_plays_too(alfworld_data, tmp_path, monkeypatch):
    """With the extra `thor`, under `xvfb-run -a`: only Unity's program is another one, which answers over HTTP."""
    pytest.importorskip("ai2thor.controller", reason="needs ai2thor: pip install -e '.[thor]'")
    if not os.environ.get("DISPLAY"):
        pytest.skip("needs a display: run pytest under `xvfb-run -a`")
    lacking = [name for name in ("cv2", "torchvision") if importlib.util.find_spec(name) is None]
    for name, names in recorded_thor.UNUSED.items():
        if name.partition(".")[0] in lacking:
            monkeypatch.setitem(sys.modules, name, recorded_thor.made_module(name, names))
    build = tmp_path / "build"
    build.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("unity_stand_in.py")} "$@"\n')
    build.chmod(0o755)
    from alfworld.env.thor_env import ThorEnv

    parameters = list(inspect.signature(ThorEnv.__init__).parameters.values())[1:]
    defaults = [str(build) if one.name == "build_path" else one.default for one in parameters]
    monkeypatch.setattr(ThorEnv.__init__, "__defaults__", tuple(defaults))
    environment = ThorEnvironment(expert="handcoded")
    texts, step = play_with("handcoded", environment, official_game("pick_heat_then_place_in_recep"))
    assert step.won, "\n".join(texts)
    assert environment.render().shape == (300, 300, 3)
    process = environment._thread.env.unity_pid
    environment.close()
    assert not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
