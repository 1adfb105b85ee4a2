"""The state service: truths of both kinds, and going back to any state with all that was read."""

from __future__ import annotations

import re

import pytest

from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.explorer import Explorer
from alfworld_native.experts.state_service import StateService
from alfworld_native.games import find_games
from lavis.common.paths import REPO_ROOT


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_train", household_data)


def test_full_knowledge_wins_in_as_many_steps_as_it_says(games):
    for game in games:
        service = StateService(game)
        steps = service.full_knowledge().steps
        while steps:
            truth = service.full_knowledge()
            assert truth.steps == steps
            now = service.step(truth.action)
            steps -= 1
        assert now.won and now.done and service.full_knowledge() == (None, 0)


def test_changes_tell_how_good_each_command_is(games):
    service = StateService(games[0])
    truth, changes = service.full_knowledge(), service.changes()
    assert list(changes) == service.reset().admissible_commands
    assert changes[truth.action] == -1 == min(changes.values()) and changes["look"] == 0
    start = service.snapshot()
    for command, change in changes.items():
        service.step(command)
        assert service.full_knowledge().steps == truth.steps + change
        service.restore(start)


def test_the_explorer_reads_only_what_the_agent_has_read(games):
    service, live = StateService(games[1]), Explorer()
    now = service.reset()
    live.begin(now.text, task_type=games[1].id)
    moments = []
    while not now.done:
        label = live.act()
        assert service.known_only() == label
        moments.append((service.snapshot(), label))
        now = service.step(label.action)
        live.observe(label.action, now.text)
    for moment, label in reversed(moments):
        service.restore(moment)
        assert service.known_only() == label


def test_going_back_and_clones(games):
    service = StateService(games[2], max_steps=3)
    first = service.reset().text
    start, other = service.snapshot(), service.clone()
    assert [service.step("look").done for _ in range(3)] == [False, False, True]
    back = service.restore(start)
    assert back.text == first and not back.done and not other.step("look").done
    target = next(command for command in back.admissible_commands if command.startswith("go to "))
    assert service.step(target).text.startswith("You arrive") and target in other.restore(start).admissible_commands
    with pytest.raises(EnvironmentFault, match="another game"):
        StateService(games[3]).restore(start)
    with pytest.raises(EnvironmentFault, match="a bookmark is what `snapshot` gives, not str"):
        service.restore("start")
    with pytest.raises(EnvironmentFault, match="not int"):
        service.step(3)


def test_the_example_of_the_page_runs(games):
    page = (REPO_ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "StateService(" in code]
    names = {"games": games}
    exec(re.sub(r"^games = .*$", "", example, flags=re.MULTILINE), names)
    assert names["rewards"] and names["pair"][0] != names["pair"][1]


def test_a_clone_plays_by_itself(games):
    service = StateService(games[0])
    other, before = service.clone(), service.snapshot()
    go = next(each for each in service.reset().admissible_commands if each.startswith("go to "))
    other.step(go)
    assert service.snapshot() == before and other.snapshot() != before
