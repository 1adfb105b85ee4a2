"""ALFRED's ids as geometry, and rooms laid out from them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.environments.drawing import geometry
from xrl_alignment.environments.drawing.geometry import Pose, Room, parse_pose, parse_position

COUNTER = "CounterTop_bar__plus_01_dot_00_bar__plus_00_dot_95_bar__plus_02_dot_00"
NEAR, FAR = "loc_bar_4_bar_4_bar_0_bar_45", "loc_bar__minus_8_bar_4_bar_3_bar_30"


def test_position_of_an_id():
    desk = "Desk_bar__plus_02_dot_32_bar__minus_00_dot_01_bar__minus_03_dot_22"
    assert parse_position(desk) == (2.32, -0.01, -3.22)
    assert parse_position(desk.lower()) == (2.32, -0.01, -3.22)
    sink = "Sink_bar__minus_01_dot_11_bar__plus_00_dot_93_bar__plus_00_dot_34_bar_SinkBasin"
    assert parse_position(sink) == (-1.11, 0.93, 0.34)


def test_pose_of_a_location():
    assert parse_pose("loc_bar_8_bar__minus_10_bar_2_bar_60") == Pose(2.0, -2.5, 2, 60.0)
    assert parse_pose("loc_bar_0_bar_0_bar_1_bar__minus_30").horizon == -30
    # AI2-THOR: rotation 0 faces +z, each quarter turn is clockwise from above.
    assert [Pose(0, 0, turns, 0).forward for turns in range(4)] == [(0, 1), (1, 0), (0, -1), (-1, 0)]


@pytest.mark.parametrize(
    "text", ["", "loc", "loc_bar_1_bar_2", "loc_bar_1_bar_2_bar_3_bar_x", "loc_bar_1e9_bar_0_bar_0_bar_0"]
)
def test_no_pose_in_other_ids(text):
    assert parse_pose(text) is None


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_parses_or_does_not(text):
    for parsed in (parse_position(text), parse_position("A_bar_" + text), parse_pose("loc_bar_" + text)):
        assert parsed is None or all(abs(number) < 1000 for number in parsed)


def test_kind_is_the_name_without_its_number():
    assert geometry.kind_of("sinkbasin 12") == "sinkbasin"
    assert geometry.kind_of("odd") == "odd"
    assert geometry.kind_of("") == ""


def test_fronts_look_to_where_the_agent_stands():
    room = Room({COUNTER: "countertop 1"}, {COUNTER: NEAR}, frozenset({COUNTER}))
    assert room.places[COUNTER].front == (0, -1)  # the agent faces +z, so the front looks to -z
    turned = Room({COUNTER: "countertop 1"}, {COUNTER: FAR}, frozenset({COUNTER}))
    assert turned.places[COUNTER].front == (1, 0)


def test_counter_grows_over_what_lies_on_it_but_not_over_the_agent():
    cup = "Cup_bar__plus_02_dot_00_bar__plus_00_dot_97_bar__plus_02_dot_00"
    near = "Cup_bar__plus_01_dot_00_bar__plus_00_dot_97_bar__plus_01_dot_05"
    names = {COUNTER: "countertop 1", cup: "cup 1", near: "cup 2"}
    place = Room(names, {COUNTER: NEAR}, frozenset({COUNTER})).places[COUNTER]
    assert place.box[3] > 2.0  # over the first cup
    assert place.box[2] > 1.0  # not over the second, where the agent stands
    assert place.surface == pytest.approx(0.95)


def test_homes_are_found_from_positions():
    cup = "Cup_bar__plus_01_dot_20_bar__plus_00_dot_96_bar__plus_02_dot_10"
    lost = "Mug_bar__minus_03_dot_00_bar__plus_00_dot_00_bar__minus_03_dot_00"
    names = {COUNTER: "countertop 1", cup: "cup 1", lost: "mug 1"}
    assert Room(names, {COUNTER: NEAR}, frozenset({COUNTER})).homes == {cup: COUNTER}


def test_doors_of_a_pair_hang_on_their_outer_sides():
    """Hinges 1 m apart: the two cabinets meet between them. Hinges back to back: they part."""
    outer = [f"Cabinet_bar__plus_0{x}_dot_00_bar__plus_00_dot_40_bar__plus_02_dot_00" for x in (0, 1)]
    room = Room(dict.fromkeys(outer, "cabinet 1"), dict.fromkeys(outer, NEAR), frozenset(outer))
    left, right = (room.places[key].box for key in outer)
    assert left[0] >= -0.01 and right[3] <= 1.01 and left[3] <= right[0] + 0.01
    inner = [f"Cabinet_bar__plus_01_dot_{x}_bar__plus_00_dot_40_bar__plus_02_dot_00" for x in ("00", "04")]
    room = Room(dict.fromkeys(inner, "cabinet 1"), dict.fromkeys(inner, NEAR), frozenset(inner))
    left, right = (room.places[key].box for key in inner)
    assert left[3] <= 1.01 and right[0] >= 1.03


def test_drawer_is_set_into_its_counter():
    drawer = "Drawer_bar__plus_01_dot_00_bar__plus_00_dot_75_bar__plus_02_dot_00"
    names = {COUNTER: "countertop 1", drawer: "drawer 1"}
    room = Room(names, dict.fromkeys(names, NEAR), frozenset(names))
    place, counter = room.places[drawer], room.places[COUNTER]
    assert place.face is not None and place.box[4] <= counter.box[4]
    assert place.box[2] == pytest.approx(counter.box[2] - 0.015)  # its front just before the counter's


def test_stable_numbers_do_not_change():
    assert geometry.stable("apple", 1000) == 488  # CRC-32, in every process and on every machine


def test_what_no_counter_carries_gets_a_stand():
    burner = "StoveBurner_bar__plus_01_dot_00_bar__plus_00_dot_95_bar__plus_02_dot_00"
    alone = Room({burner: "stoveburner 1"}, {burner: NEAR}, frozenset({burner})).places[burner]
    assert alone.stand is not None and alone.stand[1] == 0.0 and alone.stand[4] == alone.box[1]
    names = {COUNTER: "countertop 1", burner: "stoveburner 1"}
    assert Room(names, dict.fromkeys(names, NEAR), frozenset(names)).places[burner].stand is None
