"""The explorer on real games: it solves them, from text alone, whatever else is executed in between."""

from __future__ import annotations

import random
import time
from collections import defaultdict

import pytest

from alfworld_native.base import MAX_STEPS
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.base import Label
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import find_games
from alfworld_native.household.generator import make_game
from alfworld_native.household.levels import LEVELS
from alfworld_native.language.sentences import TASK_TYPES

GARBAGE = (
    "",
    "look",
    "inventory",
    "fly",
    "go to moon 1",
    "take sun 1 from moon 1",
    "put in/on",
    "move to",
    "open",
    "help",
)


def play(environment, expert, game, saboteur=None):
    """Play one episode; returns whether it was won, and the (action, thought, feedback) of every step.

    `saboteur(step, advised)` may name another action to execute instead of the expert's.
    """
    step = environment.reset(game)
    expert.begin(step.text)
    trace = []
    while not step.done:
        label = expert.act()
        assert label is expert.act()
        action = label.action or "look"
        if saboteur is not None:
            action = saboteur(step, action)
        step = environment.step(action)
        expert.observe(action, step.text)
        trace.append((action, label.thought, step.text))
    return step.won, trace


def test_a_memory_says_where_to_go_and_may_be_wrong() -> None:
    opening = (
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, a bed 1, and a shelf 1.\n\n"
        "Your task is to: put some cd in shelf."
    )
    memory = "(by rule) I saw cd 1 at bed 1 but did not take it. Next time I will go to bed 1, take cd 1 from bed 1."
    expert = Explorer()
    expert.begin(opening, memories=["(by rule) I searched desk 1 and saw no cd.", memory])
    assert expert.act().action == "go to bed 1"
    expert.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see nothing.")
    assert expert.act().action == "go to desk 1"
    expert.begin(opening, memories=["take cd 1 from moon 1"])
    assert expert.act().action == "go to desk 1"


def test_notes_say_which_objects_of_the_task_came_into_view() -> None:
    expert = Explorer(notes=True)
    expert.begin(
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, a bed 1, and a shelf 1.\n\n"
        "Your task is to: put two cd in shelf."
    )
    assert expert.act().thought == ""
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see a cd 4, a cd 3, a cd 1, and a pen 1.")
    assert expert.act().thought == "I see cd 4, cd 3 in/on desk 1", "the first two of a type, as they are listed"
    expert.observe("take cd 1 from desk 1", "You pick up the cd 1 from the desk 1.")
    assert expert.act().thought == "now: cd 2 more in shelf; searched to desk 1"
    expert.observe("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a cd 2.")
    assert expert.act().thought == "I see cd 2 in/on shelf 1; task: cd 1 more in shelf"
    expert.observe("put cd 1 in/on shelf 1", "You put the cd 1 in/on the shelf 1.")
    assert expert.act().thought == ""


def test_notes_say_what_is_left_once_a_part_of_the_task_is_done() -> None:
    expert = Explorer(notes=True)
    expert.begin(
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, a fridge 1, and a shelf 1.\n\n"
        "Your task is to: find three cd and put them in shelf, and put a cool mug in desk."
    )
    assert expert.act().thought == "task: cd 3 more in shelf; mug cool in desk"
    expert.observe("take cd 1 from desk 1", "You pick up the cd 1 from the desk 1.")
    assert expert.act().thought == "now: cd 3 more in shelf"
    expert.observe("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see nothing.")
    assert expert.act().thought == ""
    expert.observe("put cd 1 in/on shelf 1", "You put the cd 1 in/on the shelf 1.")
    assert expert.act().thought == "task: cd 2 more in shelf; mug cool in desk"
    assert expert.act().thought != "", "asked twice in one state, it says the same"
    expert.observe("take cd 1 from shelf 1", "You pick up the cd 1 from the shelf 1.")
    assert expert.act().thought == "task: cd 3 more in shelf; mug cool in desk; now: cd 3 more in shelf"


def test_of_several_tasks_that_of_a_known_object_comes_first_and_then_the_search() -> None:
    expert = Explorer(notes=True, order="listing")
    expert.begin(
        "Looking quickly around you, you see a desk 1, a bed 1, a sofa 1, and a cart 1.\n\n"
        "Your task is to: put a cd in bed, and put a pen in sofa."
    )
    for told, advised, thought in (
        ("a mug 1", "go to bed 1", ""),
        ("a pen 2, and a pen 1", "take pen 2 from bed 1", "I see pen 2, pen 1 in/on bed 1"),
    ):
        place = expert.act().action.removeprefix("go to ")
        expert.observe(f"go to {place}", f"You arrive at {place}. On the {place}, you see {told}.")
        assert expert.act() == Label(advised, thought)
    expert.observe("take pen 2 from bed 1", "You pick up the pen 2 from the bed 1.")
    assert expert.act() == Label("go to sofa 1", "now: pen in sofa; searched to bed 1")
    # What is in the hand is brought, whatever comes into view on the way; then what is known is fetched.
    expert.observe("go to sofa 1", "You arrive at sofa 1. On the sofa 1, you see a cd 3.")
    assert expert.act() == Label("put pen 2 in/on sofa 1", "I see cd 3 in/on sofa 1")
    expert.observe("put pen 2 in/on sofa 1", "You move the pen 2 to the sofa 1.")
    note = "task: cd in bed; pen done; next: cd 3 in/on sofa 1"
    assert expert.act() == Label("take cd 3 from sofa 1", note)
    # An object of the task that is done is no news, and not needed if somebody takes it.
    expert.observe("go to cart 1", "You arrive at cart 1. On the cart 1, you see a pen 5, and a pen 4.")
    assert expert.act() == Label("go to sofa 1", "")
    expert.observe("take pen 5 from cart 1", "You pick up the pen 5 from the cart 1.")
    assert expert.act() == Label("go to desk 1", "I do not need pen 5"), "no cart takes pens"
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
    assert expert.act() == Label("put pen 5 in/on desk 1", "")


def test_notes_list_all_tasks_in_the_order_of_the_sentence():
    expert = Explorer(notes=True)
    expert.begin(
        "Looking quickly around you, you see a desk 1, a bed 1, and a sofa 1.\n\n"
        "Your task is to: put a cd in bed, and put two pen in sofa, and put a mug in desk."
    )

    def bring(thing: str, place: str) -> str:
        expert.observe(f"take {thing} from desk 1", f"You pick up the {thing} from the desk 1.")
        expert.observe(f"go to {place}", f"You arrive at {place}. On the {place}, you see nothing.")
        expert.observe(f"put {thing} in/on {place}", f"You move the {thing} to the {place}.")
        return expert.act().thought

    assert bring("pen 1", "sofa 1") == "task: cd in bed; pen 1 more in sofa; mug in desk"
    expert.observe("take pen 2 from desk 1", "You pick up the pen 2 from the desk 1.")
    expert.observe("go to sofa 1", "You arrive at sofa 1. On the sofa 1, you see a pen 1.")
    expert.observe("put pen 2 in/on sofa 1", "You move the pen 2 to the sofa 1.")
    assert expert.act().thought == "task: cd in bed; pen done; mug in desk"
    assert bring("cd 1", "bed 1") == "task: cd done; pen done; mug in desk"
    # What is taken away again is no longer done.
    expert.observe("go to sofa 1", "You arrive at sofa 1. On the sofa 1, you see a pen 2, and a pen 1.")
    expert.observe("take pen 1 from sofa 1", "You pick up the pen 1 from the sofa 1.")
    assert expert.act().thought == "task: cd done; pen 1 more in sofa; mug in desk; now: pen 1 more in sofa"


def test_notes_say_how_it_goes_on_after_a_part_of_the_task() -> None:
    for there, note, action in (
        ("a cd 4, and a cd 3", "next: cd 3 in/on desk 1", "go to desk 1"),
        ("a cd 4, and a pen 1", "searched to desk 1", "go to shelf 1"),
    ):
        expert = Explorer(notes=True, order="listing")
        expert.begin(
            "You are in the middle of a room. Looking quickly around you, you see a desk 1, a bed 1, and a shelf 1.\n\n"
            "Your task is to: put two cd in bed."
        )
        expert.observe("go to desk 1", f"You arrive at desk 1. On the desk 1, you see {there}.")
        expert.observe("take cd 4 from desk 1", "You pick up the cd 4 from the desk 1.")
        assert expert.act().thought == "now: cd 2 more in bed; searched to desk 1"
        # What comes into view on the way is not searched.
        expert.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see nothing.")
        expert.observe("put cd 4 in/on bed 1", "You put the cd 4 in/on the bed 1.")
        assert expert.act() == Label(action, f"task: cd 1 more in bed; {note}") and not expert.done
    expert.observe("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a cd 1.")
    expert.observe("take cd 1 from shelf 1", "You pick up the cd 1 from the shelf 1.")
    expert.observe("put cd 1 in/on bed 1", "You put the cd 1 in/on the bed 1.")
    assert expert.done


@pytest.fixture(scope="module")
def environment():
    environment = NativeEnvironment(max_steps=MAX_STEPS)
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def sample(alfworld_data):
    """Twelve training games and five `valid_seen` games of each task type."""
    by_type = defaultdict(list)
    for split, number in (("train", 12), ("valid_seen", 5)):
        taken = defaultdict(int)
        for game in find_games(split, data=alfworld_data, num=0, seed=3):
            if taken[game.task_type] < number:
                taken[game.task_type] += 1
                by_type[game.task_type].append(game)
    return by_type


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_solves_every_game_of_the_sample(environment, sample, task_type):
    games = sample[task_type]
    assert len(games) == 17
    lengths = []
    for game in games:
        won, trace = play(environment, Explorer(), game)
        assert won, (game.id, trace)
        lengths.append(len(trace))
    assert sum(lengths) / len(lengths) <= 14


def test_generated_games(environment, household_data):
    for split in ("household_train", "household_heldout"):
        for game in find_games(split, data=household_data):
            won, trace = play(environment, Explorer(), game)
            assert won, (game.id, trace)


def test_survives_random_interference(environment, sample):
    """A third of all actions come from someone else: admissible ones at random, or nonsense."""
    draw = random.Random(5)

    def saboteur(step, advised):
        if draw.random() < 0.7:
            return advised
        return draw.choice(GARBAGE) if draw.random() < 0.2 else draw.choice(step.admissible_commands)

    games = [game for games in sample.values() for game in games]
    won = [play(environment, Explorer(), game, saboteur)[0] for game in games]
    assert sum(won) >= 0.9 * len(games)


def test_belief_stays_true_under_interference(environment, sample):
    """Whatever is executed, what the explorer believes to know is so."""
    draw = random.Random(6)
    for game in [games[0] for games in sample.values()] * 2:
        expert, step = Explorer(), environment.reset(game)
        expert.begin(step.text)
        while not step.done:
            action = draw.choice([expert.act().action or "look", draw.choice(step.admissible_commands)])
            step = environment.step(action)
            expert.observe(action, step.text)
            assert_true(expert._belief, environment.room_state())


def assert_true(belief, state):
    names, ids = state.names, {name: thing for thing, name in state.names.items()}
    assert belief.held == (names[state.held] if state.held else None)
    for thing, place in belief.place.items():
        assert ids[thing] in state.contents[ids[place]]
    for place in belief.here:
        assert state.receptacle_locations[ids[place]] == state.location
    for place in belief.closed:
        assert ids[place] in state.openable - state.opened
    for known, truth in (("clean", state.clean), ("hot", state.hot), ("cool", state.cool)):
        assert {ids[thing] for thing in belief.states[known]} <= truth


def test_wrong_object_is_put_down_where_it_fits():
    expert = Explorer()
    expert.begin(opening("a bed 1, a desk 1, and a garbagecan 1", "put a mug in desk"))
    expert.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a pillow 1, and a mug 1.")
    expert.observe("take pillow 1 from bed 1", "You pick up the pillow 1 from the bed 1.")
    assert expert.act().action == "put pillow 1 in/on bed 1"
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
    assert expert.act().action == "go to bed 1"  # no desk takes a pillow


def test_of_several_places_in_reach_the_wrong_object_goes_to_the_first_of_the_listing():
    """Not to the first of a set of names, whose order differs from process to process."""
    shelves = [f"shelf {number}" for number in range(8, 0, -1)]
    listing = ", ".join(f"a {name}" for name in shelves[:-1]) + f", and a {shelves[-1]}"
    expert = Explorer()
    expert.begin(opening(listing, "put some cd in shelf"))
    facing = f"{', '.join(shelves[:-1])}, and {shelves[-1]}"
    expert.observe("look", f"You are facing the {facing}. Next to it, you see nothing.")
    expert.observe("take pen 1 from shelf 3", "You pick up the pen 1 from the shelf 3.")
    assert expert.act().action == "put pen 1 in/on shelf 8"


def test_wrong_object_does_not_stop_the_search():
    expert = Explorer()
    expert.begin(opening("a fridge 1, a countertop 1, and a garbagecan 1", "put a mug in countertop"))
    expert.observe("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see an egg 1.")
    expert.observe("take egg 1 from fridge 1", "You pick up the egg 1 from the fridge 1.")
    expert.observe("close fridge 1", "You close the fridge 1.")
    assert expert.act().action == "go to garbagecan 1"


def test_every_advised_action_is_admissible(environment, sample):
    for game in [game for games in sample.values() for game in games[:6]]:
        expert, step = Explorer(), environment.reset(game)
        expert.begin(step.text)
        while not step.done:
            action = expert.act().action
            # Only a shared location may surprise: nothing in the text tells that one stands there already.
            assert action in step.admissible_commands or action.startswith("go to "), (game.id, action)
            step = environment.step(action)
            expert.observe(action, step.text)


def test_thoughts_are_single_lines_and_not_repeated(environment, sample):
    for game in [game for games in sample.values() for game in games[:6]]:
        _, trace = play(environment, Explorer(), game)
        thoughts = [thought for _, thought, _ in trace]
        assert thoughts[0]
        spoken = [thought for thought in thoughts if thought]
        assert len(spoken) == len(set(spoken))
        assert all("\n" not in thought and "think:" not in thought and len(thought) < 160 for thought in spoken)


def test_deterministic_and_seeded(environment, sample):
    games = [games[0] for games in sample.values()]
    runs = [[play(environment, Explorer(seed=seed), game)[1] for game in games] for seed in (0, 0, 1, 1)]
    assert runs[0] == runs[1] and runs[2] == runs[3]
    assert runs[0] != runs[2]


def test_one_explorer_plays_many_games(environment, sample):
    games = [games[1] for games in sample.values()]
    expert = Explorer()
    assert [play(environment, expert, game) for game in games] == [
        play(environment, Explorer(), game) for game in games
    ]


def test_listing_order_is_surfaces_then_containers():
    expert = Explorer(order="listing")
    expert.begin(opening("a fridge 1, a cabinet 2, a cabinet 1, a shelf 1, and a desk 1", "put a mug in desk"))
    visited = []
    for _ in range(8):
        action = expert.act().action
        visited.append(action)
        name = action.split(" ", 2)[2] if action.startswith("go to") else action.split(" ", 1)[1]
        container = name.startswith(("fridge", "cabinet"))
        if action.startswith("open"):
            expert.observe(action, f"You open the {name}. The {name} is open. In it, you see nothing.")
        elif container:
            expert.observe(action, f"You arrive at {name}. The {name} is closed.")
        else:
            expert.observe(action, f"You arrive at {name}. On the {name}, you see nothing.")
    order = ["go to shelf 1", "go to desk 1", "go to cabinet 2", "open cabinet 2", "go to cabinet 1", "open cabinet 1"]
    assert visited == [*order, "go to fridge 1", "open fridge 1"]


def opening(room, task):
    return f"You are in the middle of a room. Looking quickly around you, you see {room}.\n\nYour task is to: {task}."


def test_two_objects_in_two_receptacles_are_brought_together():
    """Pick-two wants one receptacle for both: no to and fro when each lies in another one of the right type."""
    expert = Explorer()
    expert.begin(opening("a desk 2, a desk 1, and a bed 1", "put two mug in desk"))
    expert.observe("go to desk 2", "You arrive at desk 2. On the desk 2, you see a mug 2.")
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 1.")
    assert expert.act().action == "take mug 1 from desk 1"
    expert.observe("take mug 1 from desk 1", "You pick up the mug 1 from the desk 1.")
    assert expert.act().action == "go to desk 2"
    expert.observe("go to desk 2", "You arrive at desk 2. On the desk 2, you see a mug 2.")
    assert expert.act().action == "put mug 1 in/on desk 2"


def test_searches_again_when_all_was_seen():
    expert = Explorer()
    expert.begin(opening("a desk 1, and a bed 1", "put a mug in desk"))
    for place in ("bed 1", "desk 1"):
        expert.observe(f"go to {place}", f"You arrive at {place}. On the {place}, you see nothing.")
    assert expert.act().action == "go to bed 1"


def test_what_is_brought_stays_so_when_all_is_searched_again():
    expert = Explorer(notes=True)
    expert.begin(opening("a desk 1, and a bed 1", "put two mug in desk"))
    expert.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a mug 1.")
    expert.observe("take mug 1 from bed 1", "You pick up the mug 1 from the bed 1.")
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
    expert.observe("put mug 1 in/on desk 1", "You move the mug 1 to the desk 1.")
    assert expert.act() == Label("go to bed 1", "task: mug 1 more in desk"), "nothing is searched yet"
    expert.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a mug 2.")
    assert expert.act() == Label("take mug 2 from bed 1", "I see mug 2 in/on bed 1")


def test_what_the_agent_sees_and_does_not_note_is_forgotten_when_it_has_left():
    expert = Explorer(notes=True, order="listing")
    expert.begin(opening("a desk 1, a bed 1, and a sofa 1", "put two mug in sofa"))
    expert.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a mug 3, and a mug 2.")
    assert expert.act().thought == "I see mug 3, mug 2 in/on bed 1"
    expert.overlook("think: i see mug 3 in/on bed 1")
    # While it stands there, it sees what it did not write down.
    expert.observe("take mug 3 from bed 1", "You pick up the mug 3 from the bed 1.")
    expert.observe("put mug 3 in/on bed 1", "You move the mug 3 to the bed 1.")
    expert.observe("take mug 3 from bed 1", "You pick up the mug 3 from the bed 1.")
    expert.observe("go to sofa 1", "You arrive at sofa 1. On the sofa 1, you see nothing.")
    expert.observe("put mug 3 in/on sofa 1", "You move the mug 3 to the sofa 1.")
    assert expert.act().action == "go to desk 1", "not back to bed 1"
    # All was seen: it searches anew, and what comes into view again is news again.
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
    assert expert.act().action == "go to bed 1"
    expert.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a mug 2.")
    assert expert.act() == Label("take mug 2 from bed 1", "I see mug 2 in/on bed 1")


def test_nothing_takes_the_object_in_hand():
    """A paper towel roll fits nowhere in ALFWorld: whoever takes one has lost, and the explorer says so."""
    expert = Explorer()
    expert.begin(opening("a countertop 1, and a desk 1", "put a mug in desk"))
    expert.observe("go to countertop 1", "On the countertop 1, you see a mug 1, and a papertowelroll 1.")
    expert.observe("take papertowelroll 1 from countertop 1", "You pick up the papertowelroll 1 from the countertop 1.")
    assert expert.act().action is None
    assert "papertowelroll 1" in expert.act().thought


@pytest.mark.parametrize(
    ("intro", "words"),
    [
        ("", "there is none"),
        ("hello", "there is none"),
        (opening("a desk 1", "sing a song"), "sing a song"),
        (opening("a desk 1", "put a hot mug in desk"), "no microwave"),
        (opening("a bed 1", "put a mug in desk"), "no desk"),
        ("Your task is to: look at mug under the desklamp.", "lists no receptacle"),
    ],
)
def test_what_cannot_be_played_gets_no_advice(intro, words):
    expert = Explorer()
    expert.begin(intro)
    expert.observe("look", "Nothing happens.")
    assert expert.act().action is None
    assert words in expert.act().thought


def test_half_a_surrogate_pair_is_a_text_like_any_other():
    expert = Explorer()
    expert.begin("Around you, you see a bed 1, and a \ud800 1.\n\nYour task is to: put some mug on bed.")
    assert expert.act().action


def test_unknown_order_is_refused():
    with pytest.raises(ValueError, match="unknown explorer order 'alphabetical': choose one of likely, listing"):
        Explorer(order="alphabetical")


def test_speed(environment, sample):
    """Collecting every training game must not wait for the expert: 50 µs a step; ten times that fails here."""
    expert, spent, steps = Explorer(), 0.0, 0
    for game in [game for games in sample.values() for game in games[:6]]:
        step = environment.reset(game)
        expert.begin(step.text)
        while not step.done:
            start = time.thread_time()  # the processor's time, whatever else it does
            action = expert.act().action
            spent -= start - time.thread_time()
            step = environment.step(action)
            start = time.thread_time()
            expert.observe(action, step.text)
            spent -= start - time.thread_time()
            steps += 1
    assert spent / steps < 500e-6


def test_same_decisions_from_textworld(environment, sample):
    from alfworld_native.textworld import TextWorldEnvironment

    original = TextWorldEnvironment(max_steps=MAX_STEPS)
    try:
        game = sample["pick_heat_then_place_in_recep"][0]
        assert play(original, Explorer(), game) == play(environment, Explorer(), game)
    finally:
        original.close()


@pytest.mark.parametrize("level", ["compound", "many", "renamed", "hardest"])
def test_harder_levels(level, tmp_path):
    """Several goals at once, more objects, unknown names: solved within the level's horizon, every one."""
    split = tmp_path / "household_train"
    split.mkdir()
    environment = NativeEnvironment(LEVELS[level].max_steps)
    for index in range(5):
        won, trace = play(environment, Explorer(), make_game(split, index, 11, LEVELS[level]))
        assert won, trace


def test_several_goals_are_done_whatever_else_is_executed(tmp_path):
    split = tmp_path / "household_train"
    split.mkdir()
    rng = random.Random(4)
    for index in range(5):
        game = make_game(split, index, 12, LEVELS["compound"])
        won, trace = play(
            NativeEnvironment(LEVELS["compound"].max_steps),
            Explorer(),
            game,
            saboteur=lambda step, advised: rng.choice(step.admissible_commands) if rng.random() < 0.3 else advised,
        )
        assert won, trace
