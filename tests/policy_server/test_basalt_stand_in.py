from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from policy_server.basalt_stand_in import CAVE, BasaltStandIn
from policy_server.games.minerl import TASKS, no_op


def test_it_keeps_gymnasiums_rules():
    check_env(BasaltStandIn(), skip_render_check=True)


def test_walking_towards_the_cave_makes_it_larger():
    env = BasaltStandIn()
    env.reset(seed=0)
    bearing = np.degrees(np.arctan2(*CAVE))
    first, *_ = env.step({**no_op(), "camera": [0.0, bearing - env.yaw]})
    for _ in range(60):
        last, _, _, _, info = env.step({**no_op(), "forward": 1, "sprint": 1})
    dark = [int((frame["pov"].sum(2) < 200).sum()) for frame in (first, last)]
    assert 0 < dark[0] < dark[1] and info["distance"] < 10


def test_the_pitch_has_its_bounds():
    env = BasaltStandIn()
    env.reset(seed=0)
    env.step({**no_op(), "camera": [180.0, 0.0]})
    assert env.pitch == 90 and (env.render()[0, 0] == (96, 140, 62)).all()


def test_unknown_tasks_are_named():
    with pytest.raises(ValueError, match=next(iter(TASKS))):
        BasaltStandIn("Chess")
