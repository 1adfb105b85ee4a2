"""Exercises: the explorer finishes them, and where nobody knows the way no way is learned."""

from __future__ import annotations

import random
import re
from collections import Counter

from alfworld_native.experts.explorer import in_words, task_list
from alfworld_native.household.new_names import NEW_NAMES
from alfworld_native.language.sentences import NOTHING_HAPPENS, parse_opening, parse_tasks, type_of
from xrl_alignment.lab.pretraining.drills import SURFACES, any_exercise, drill, lookout
from xrl_alignment.lab.pretraining.labelled import SEARCHING


def test_a_drill_is_a_small_game_that_the_explorer_finishes():
    drills = [drill(random.Random(seed)) for seed in range(200)]
    known = {name.lower() for name in NEW_NAMES}
    kinds, searches, mistakes, refused, took, steps = Counter(), 0, 0, 0, 0, 0
    for record in drills:
        tasks = parse_tasks(parse_opening(record.text)[1])
        taken = [type_of(step.action.split(" from ")[0][5:]) for step in record.steps if "pick up" in step.feedback]
        # A mistake may take more.
        assert not Counter({task.object_type: task.count for task in tasks}) - Counter(taken), record.text
        verbs = [step.action.split()[0] for step in record.steps]
        assert all(task.treatment in verbs for task in tasks if task.treatment)
        # Where to search is labelled only if the listing says it.
        listed = len(tasks) > 1 or tasks[0].count > 2
        before = ""
        for step in record.steps:
            if step.label == SEARCHING:
                assert not listed
                searches += 1
            elif step.label != step.action:
                # A mistake is a way, the last action again, or something that is taken.
                took += "pick up" in step.feedback and step.action != before
                assert step.action.startswith(("go to ", "take ")) or step.action in (before, "look")
                mistakes += 1
                refused += step.feedback == NOTHING_HAPPENS
            if step.feedback == NOTHING_HAPPENS:
                assert step.label != step.action
            if not step.action.startswith("think: "):
                before = step.action
            steps += 1
        kinds[len(tasks), taken[0] in known] += 1
    assert {goals for goals, _ in kinds} == {1, 2, 3} and {old for _, old in kinds} == {True, False}
    assert searches > 100 and 0.05 < mistakes / steps < 0.2 and 0.3 < refused / mistakes < 0.8
    spared = sum("think: i do not need " in step.label for record in drills for step in record.steps)
    assert took > 40 and spared > 20
    # A list that was read for nothing is what tells that names have to be compared.
    ends = [step for record in drills for step in record.steps if "you see" in step.feedback]
    noted = sum("think: i see" in step.action for record in drills for step in record.steps)
    assert 0.1 < noted / len(ends) < 0.5


def test_a_lookout_notes_what_is_wanted_wherever_it_is_seen_and_finds_it_again():
    noted = lists = again = tasks = 0
    known, all_wanted, all_told = {name.lower() for name in NEW_NAMES}, set[str](), set[str]()
    for seed in range(200):
        record = lookout(random.Random(seed))
        asked = record.text.split("Your task is to: ")[1]
        assert not parse_tasks(parse_opening(record.text)[1]), "no task of a game: its labels would differ"
        wanted = asked.split("say where each ")[-1].removesuffix(" is.").split(" and ")
        if asked.startswith("only look around. "):
            tasks += 1
            sentence = asked.removeprefix("only look around. ").removesuffix(".")
            everything = {name for step in record.steps for name in re.findall(r"\ba (\w+) \d", step.feedback)}
            found = parse_tasks(sentence, everything | set(re.findall(r"\w+", sentence)), SURFACES)
            missing = {task.object_type: task.count for task in found}
            wanted = list(missing)
            notes = [step.action for step in record.steps if "task: " in step.action]
            assert notes.pop(0) == f"think: {task_list(found, list(missing.values()))}"
        now = [step.action for step in record.steps if "now:" in step.action]
        walk = [step for step in record.steps if step.label == SEARCHING or "i see" in step.label]
        first = {}  # where each wanted thing was seen first
        for step, after in zip(walk, [*walk[1:], None], strict=True):
            if "you see" not in step.feedback:
                assert step.action == step.label and step.feedback == "OK."
                continue
            place, told = step.action.removeprefix("go to "), step.feedback.split("you see ")[1]
            told = told.replace(" and ", " ").removesuffix(".").split(", ")
            seen = [thing.split("a ", 1)[1] for thing in told if thing.strip() != "nothing"]
            all_told |= known & {type_of(thing) for thing in seen}
            in_game = "only look" in asked  # there what has been done is not told again
            seen = [thing for thing in seen if type_of(thing) in wanted and (not in_game or missing[type_of(thing)])]
            said = f"think: i see {', '.join(seen)} in/on {place}"
            assert (after is not None and after.label == said) == bool(seen), record
            noted, lists = noted + bool(seen), lists + 1
            if seen and in_game:
                done = next(task for task in found if task.object_type == type_of(seen[0]))
                words = in_words(done, missing[done.object_type])
                assert now.pop(0) == f"think: now: {words}; searched to {place}"
                missing[done.object_type] -= 1
                rest = task_list(found, list(missing.values()))
                assert not rest or notes.pop(0) == f"think: {rest}; searched to {place}"
            for thing in seen:
                first.setdefault(type_of(thing), f"{thing} in/on {place}")
        all_wanted |= known & set(wanted)
        assert not now and not ("only look" in asked and notes)
        rest = [(step.action, step.label) for step in record.steps if step.label != SEARCHING]
        rest = [pair for pair in rest if not re.match("think: (i see|now:|task:)", pair[0])]
        found = [first[name] for name in wanted if name in first]
        ways = [(f"think: next: {what}", f"go to {what.split(' in/on ')[1]}") for what in found]
        assert rest == [(said, said) for pair in ways for said in pair]
        again += len(ways)
    assert 0.25 < noted / lists < 0.4 and again > 200 and 60 < tasks < 140
    assert len(all_wanted) > 30 and len(all_told) > 45, "any of the known names may be wanted, and any told"
    kinds = {"say where" in any_exercise(random.Random(seed)).text for seed in range(20)}
    assert kinds == {True, False}
