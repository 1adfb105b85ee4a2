"""Exercises: the explorer finishes them, and where nobody knows the way no way is learned."""

from __future__ import annotations

import random
from collections import Counter

from alfworld_native.household.new_names import NEW_NAMES
from alfworld_native.language.sentences import parse_opening, parse_tasks, type_of
from xrl_alignment.lab.pretraining.drills import drill
from xrl_alignment.lab.pretraining.labelled import SEARCHING


def test_a_drill_is_a_small_game_that_the_explorer_finishes():
    drills = [drill(random.Random(seed)) for seed in range(200)]
    known = {name.lower() for name in NEW_NAMES}
    kinds, searches, missed, ways = Counter(), 0, 0, 0
    for record in drills:
        tasks = parse_tasks(parse_opening(record.text)[1])
        taken = [
            type_of(step.action.split(" from ")[0][5:]) for step in record.steps if step.action.startswith("take ")
        ]
        assert Counter(taken) == {task.object_type: task.count for task in tasks}, record.text
        verbs = [step.action.split()[0] for step in record.steps]
        assert all(task.treatment in verbs for task in tasks if task.treatment)
        # All but a wrong way is done as it is labelled; where to search is labelled only if the listing says it.
        listed = len(tasks) > 1 or tasks[0].count > 2
        for step in record.steps:
            if step.label == SEARCHING:
                assert step.action.startswith("go to ") and not listed
                searches += 1
            elif step.label != step.action:
                assert step.label.startswith("go to ") and step.action.startswith("go to ")
                missed += 1
            ways += step.action.startswith("go to ")
        kinds[len(tasks), taken[0] in known] += 1
    assert {goals for goals, _ in kinds} == {1, 2, 3} and {old for _, old in kinds} == {True, False}
    assert searches > 100 and 0.05 < missed / ways < 0.25
    # A list that was read for nothing is what tells that names have to be compared.
    ends = [step for record in drills for step in record.steps if "you see" in step.feedback]
    noted = sum("think: i see" in step.action for record in drills for step in record.steps)
    assert 0.1 < noted / len(ends) < 0.5
