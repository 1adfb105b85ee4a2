"""Frames in all four directions."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from alfworld_native import make_environment
from alfworld_native.around import AroundEnvironment
from alfworld_native.drawing.frames import AROUND, objects_labelled, render_labelled
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.errors import EnvironmentFault
from lavis.common.errors import ConfigError
from lavis.models import load_model_and_preprocess
from xrl_alignment.builders.environments import games_of
from xrl_alignment.settings.schema import EnvironmentConfig

(GAME,) = games_of(EnvironmentConfig(name="household", split="household_heldout", num_train=1, num_heldout=1), 1)


def test_the_first_frame_is_the_agents_and_the_others_show_the_rest_of_the_room() -> None:
    front, around = (make_environment("native", show_ids=False, camera=camera) for camera in ("front", "around"))
    for environment in (front, around):
        now = environment.reset(GAME)
        place = next(command for command in now.admissible_commands if command.startswith("go to "))
        environment.step(place)
    first, *others = np.split(around.render(), AROUND)
    assert np.array_equal(first, front.render()) and len(others) == AROUND - 1
    assert len({frame.tobytes() for frame in (first, *others)}) == AROUND


def test_a_clone_that_would_lose_the_camera_is_refused() -> None:
    environment = make_environment("native", camera="around")
    environment.reset(GAME)
    with pytest.raises(EnvironmentFault, match="AroundEnvironment has no clone: use copy.deepcopy"):
        environment.clone()
    assert isinstance(copy.deepcopy(environment), AroundEnvironment)


def test_labels_in_four_directions_name_more_than_those_of_one() -> None:
    environment, more = NativeEnvironment(), 0
    now = environment.reset(GAME)
    for command in [command for command in now.admissible_commands if command.startswith("go to ")]:
        environment.step(command)
        state = environment.room_state()
        front, around = objects_labelled(state), objects_labelled(state, around=True)
        assert {name for name in front if name in {state.names[key] for key in state.in_reach()}} <= around.keys()
        assert front.keys() <= {label.name for label in render_labelled(state)[1]}
        more += len(around) - len(front)
    assert more > 0


def test_the_model_reads_the_four_frames_as_a_video() -> None:
    environment = make_environment("native", camera="around")
    environment.reset(GAME)
    model, processors, _ = load_model_and_preprocess("blip2_emac", "demo", is_eval=True)
    image = processors["eval"](environment.render())
    assert image.shape == (AROUND, 3, 224, 224)
    queries = model.vision.encode_queries(image[None], [""])
    apart = model.vision.encode_queries(image, [""] * AROUND)
    assert queries.shape[:2] == (1, AROUND * apart.shape[1]) and queries.reshape(apart.shape).allclose(apart, atol=1e-5)


def test_it_can_be_copied() -> None:
    environment = copy.deepcopy(make_environment("native", camera="around"))
    environment.reset(GAME)
    assert environment.render().shape == (AROUND * 224, 224, 3) and environment.max_steps == 50


class OwnFrames:
    """An environment that renders by itself."""

    name = "own"


def test_an_environment_that_renders_by_itself_has_no_such_camera() -> None:
    with pytest.raises(ConfigError, match="environment.camera=around: own renders its own frames"):
        AroundEnvironment(OwnFrames())  # type: ignore[arg-type]
