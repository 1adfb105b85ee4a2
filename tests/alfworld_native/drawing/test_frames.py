"""Rendered frames: what a person standing there would see, the same every time, and never a crash on odd ids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from alfworld_native.drawing import frames
from alfworld_native.drawing.geometry import RoomGeometry
from alfworld_native.drawing.state import RoomState

FRIDGE = "Fridge_bar__minus_01_dot_00_bar__plus_00_dot_00_bar__plus_02_dot_00"
COUNTER = "CounterTop_bar__plus_01_dot_00_bar__plus_00_dot_95_bar__plus_02_dot_00"
TABLE = "DiningTable_bar__plus_00_dot_50_bar__plus_00_dot_00_bar__minus_02_dot_00"
DRAWER = "Drawer_bar__plus_01_dot_00_bar__plus_00_dot_75_bar__plus_01_dot_95"
APPLE = "Apple_bar__minus_01_dot_00_bar__plus_00_dot_80_bar__plus_01_dot_90"
MUG = "Mug_bar__plus_01_dot_00_bar__plus_00_dot_95_bar__plus_01_dot_90"
LAMP = "DeskLamp_bar__plus_00_dot_50_bar__plus_00_dot_80_bar__minus_02_dot_00"
FORK = "Fork_bar__plus_01_dot_00_bar__plus_00_dot_74_bar__plus_01_dot_80"
WINDOW = "Window_bar__plus_00_dot_00_bar__plus_01_dot_50_bar__plus_02_dot_30"
AT_FRIDGE, AT_COUNTER, AT_TABLE = (
    "loc_bar__minus_4_bar_4_bar_0_bar_45",
    "loc_bar_4_bar_4_bar_0_bar_45",
    "loc_bar_2_bar__minus_4_bar_2_bar_45",
)


def kitchen(**changes) -> RoomState:
    """A fridge with an apple, a counter with a mug and a drawer with a fork in it, a table with a lamp; all shut."""
    state = RoomState(
        names={
            FRIDGE: "fridge 1",
            COUNTER: "countertop 1",
            TABLE: "diningtable 1",
            DRAWER: "drawer 1",
            APPLE: "apple 1",
            MUG: "mug 1",
            LAMP: "desklamp 1",
            FORK: "fork 1",
            WINDOW: "window 1",
        },
        location=AT_FRIDGE,
        receptacle_locations={FRIDGE: AT_FRIDGE, COUNTER: AT_COUNTER, DRAWER: AT_COUNTER, TABLE: AT_TABLE},
        contents={FRIDGE: (APPLE,), COUNTER: (MUG,), DRAWER: (FORK,), TABLE: (LAMP,)},
        openable=frozenset({FRIDGE, DRAWER}),
        opened=frozenset(),
        held=None,
        clean=frozenset(),
        hot=frozenset(),
        cool=frozenset(),
        sliced=frozenset(),
        toggled=frozenset(),
    )
    return replace(state, **changes)


def changed(before: np.ndarray, after: np.ndarray) -> int:
    """Number of pixels that differ clearly."""
    return int((np.abs(before.astype(int) - after.astype(int)).max(2) > 24).sum())


def bare(state: RoomState, **options) -> np.ndarray:
    return frames.render(state, show_ids=False, **options)


def reds(frame: np.ndarray) -> int:
    """Number of apple-red pixels."""
    red, green, blue = (frame[..., k].astype(int) for k in range(3))
    return int(((red > 130) & (green < 58) & (blue < 58)).sum())


def test_frame_has_the_asked_size_and_is_never_blank():
    for size in (64, 224, 300):
        frame = frames.render(kitchen(), size=size)
        assert frame.shape == (size, size, 3) and frame.dtype == np.uint8
        assert frame.std() > 10


def test_too_small_a_frame_is_an_error():
    with pytest.raises(ValueError, match="size is 8"):
        frames.render(kitchen(), size=8)


def test_same_state_gives_the_same_frame_whatever_was_drawn_before():
    first = frames.render(kitchen())
    frames.render(kitchen(location=AT_TABLE, opened=frozenset({FRIDGE})))
    frames.forget_rooms()
    assert np.array_equal(first, frames.render(kitchen()))


def test_seed_changes_the_walls():
    assert len({bare(kitchen(), seed=seed).tobytes() for seed in range(6)}) > 1


def test_moving_and_turning_changes_the_view():
    views = [bare(kitchen(location=location)) for location in (AT_FRIDGE, AT_COUNTER, AT_TABLE)]
    turned = bare(kitchen(location="loc_bar__minus_4_bar_4_bar_1_bar_45"))
    tilted = bare(kitchen(location="loc_bar__minus_4_bar_4_bar_0_bar_0"))
    for other in (views[1], views[2], turned, tilted):
        assert changed(views[0], other) > 2000


def test_closed_containers_hide_and_open_ones_show():
    opened = frozenset({FRIDGE})
    empty = {FRIDGE: (), DRAWER: (APPLE, FORK)}
    shut, wide, wide_empty = bare(kitchen()), bare(kitchen(opened=opened)), bare(kitchen(contents=empty, opened=opened))
    assert reds(shut) == 0 and reds(wide) > 20 and reds(wide_empty) == 0
    assert changed(shut, wide_empty) > 1000


def test_closed_container_gives_nothing_away():
    """The frame of a closed fridge is the same whatever is in it; labels, too."""
    inside = kitchen()
    elsewhere = kitchen(contents={**inside.contents, FRIDGE: (), DRAWER: (FORK, APPLE)})
    assert np.array_equal(frames.render(inside), frames.render(elsewhere))


def test_open_drawer_shows_what_is_in_it():
    at = {"location": AT_COUNTER, "opened": frozenset({DRAWER})}
    full, empty = bare(kitchen(**at)), bare(kitchen(contents={COUNTER: (MUG,)}, **at, held=FORK))
    assert changed(full[:150, :150], empty[:150, :150]) > 10
    assert changed(full, bare(kitchen(location=AT_COUNTER))) > 300


def test_surface_shows_what_lies_on_it():
    with_mug = bare(kitchen(location=AT_COUNTER))
    with_apple = bare(kitchen(location=AT_COUNTER, contents={COUNTER: (MUG, APPLE)}))
    assert reds(with_mug) == 0 and reds(with_apple) > 20


def test_moved_object_lies_still_when_another_is_taken():
    """A slot belongs to its object: what else is moved does not push it around."""
    both = bare(kitchen(location=AT_COUNTER, contents={COUNTER: (MUG, APPLE)}))
    alone = bare(kitchen(location=AT_COUNTER, contents={COUNTER: (APPLE,)}))
    assert abs(reds(alone) - reds(both)) < 20 < reds(both)
    rows, columns = np.nonzero((both[..., 0] > 150) & (both[..., 1] < 70))
    again = alone[rows, columns]
    assert ((again[:, 0] > 140) & (again[:, 1] < 80)).mean() > 0.9


def test_hand_shows_what_it_holds_in_the_lower_right_corner():
    empty = bare(kitchen(contents={}))
    apple, mug = (bare(kitchen(contents={}, held=held)) for held in (APPLE, MUG))
    for full in (apple, mug):
        assert changed(empty[112:, 112:], full[112:, 112:]) > 800
        assert changed(empty[:, :100], full[:, :100]) == 0
    assert changed(apple, mug) > 500


@pytest.mark.parametrize("mark", ["clean", "hot", "cool", "sliced"])
def test_states_of_an_object_are_visible(mark):
    on_counter = {"location": AT_COUNTER, "contents": {COUNTER: (APPLE,)}}
    plain, marked = bare(kitchen(**on_counter)), bare(kitchen(**on_counter, **{mark: frozenset({APPLE})}))
    assert changed(plain, marked) > 15
    held_plain, held_marked = bare(kitchen(held=APPLE)), bare(kitchen(held=APPLE, **{mark: frozenset({APPLE})}))
    assert changed(held_plain, held_marked) > 100


def test_lamp_that_is_on_glows():
    off, on = (bare(kitchen(location=AT_TABLE, toggled=toggled)) for toggled in (frozenset(), frozenset({LAMP})))
    assert changed(off, on) > 100


def test_labels_can_be_left_out():
    assert changed(frames.render(kitchen()), bare(kitchen())) > 100


def test_labels_do_not_overlap(monkeypatch):
    spots = []
    paste = frames.Image.Image.paste
    monkeypatch.setattr(
        frames.Image.Image, "paste", lambda self, tag, at: (spots.append((*at, *tag.size)), paste(self, tag, at))
    )
    frames.render(kitchen(location=AT_COUNTER, opened=frozenset({DRAWER})))
    assert len(spots) >= 3
    for i, (left, top, width, height) in enumerate(spots):
        for other_left, other_top, other_width, other_height in spots[:i]:
            apart_u = left + width <= other_left or other_left + other_width <= left
            assert apart_u or top + height <= other_top or other_top + other_height <= top


@pytest.mark.parametrize(
    "broken", ["", "x", "Apple", "Apple_bar_", "Apple_bar_nan_bar_1_bar_2", "A_bar_9e9_bar_1_bar_2"]
)
def test_malformed_ids_get_a_stable_place(broken):
    names = {broken: "apple 1", broken + "?": "fridge 1", "odd": "wotsit", MUG: "mug 1"}
    state = kitchen(
        names=names,
        location=broken,
        receptacle_locations={broken + "?": broken},
        contents={broken + "?": (broken, "unheard-of"), "odd": (MUG,)},
        openable=frozenset(),
    )
    assert np.array_equal(frames.render(state), frames.render(state))
    assert frames.render(replace(state, held=broken, contents={})).std() > 5
    assert frames.render(replace(state, held="unheard-of", contents={})).std() > 5


def test_empty_room_can_be_drawn():
    empty = kitchen(names={}, receptacle_locations={}, contents={}, openable=frozenset(), location="nowhere")
    assert frames.render(empty).std() > 5


def test_agent_never_stands_in_furniture():
    """Counters grow over what lies on them, but not over the places where the agent stands."""
    far = "Cup_bar__plus_01_dot_00_bar__plus_00_dot_97_bar__plus_00_dot_30"
    state = kitchen()
    room = RoomGeometry(
        {**state.names, far: "cup 1"}, state.receptacle_locations, frozenset(state.receptacle_locations)
    )
    for place in room.places.values():
        for pose in room.standing:
            inside = place.box[0] < pose.x < place.box[3] and place.box[2] < pose.z < place.box[5]
            assert not inside, place.id


def test_a_room_is_built_once_though_hundreds_of_games_take_turns():
    frames.forget_rooms()
    rooms = [{**kitchen().names, f"Cup{number}": f"cup {number}"} for number in range(300)]
    for _ in range(2):
        for names in rooms:
            frames.render(replace(kitchen(), names=names), size=32)
    assert frames._room.cache_info().misses == len(rooms)


def test_caches_stay_bounded():
    for number in range(frames._ROOMS + 8):
        state = kitchen()
        frames.render(replace(state, names={**state.names, f"Cup{number}": f"cup {number}"}), size=32)
    assert frames._room.cache_info().currsize <= frames._ROOMS
    assert frames._view.cache_info().currsize <= frames._VIEWS
