"""Rounds over games keyed by id."""

import pytest

from xrl_alignment.dagger.schedule import Schedule, ScheduleError

GAMES = ["pick/a", "pick/b", "pick/c"]


def schedule(num_rounds: int = 2, num_envs: int = 3) -> Schedule:
    made = Schedule(num_rounds=num_rounds, num_envs=num_envs)
    made.offer(GAMES)
    return made


def test_each_game_is_handed_out_once_a_round_in_order():
    rounds = schedule()
    assert [rounds.next_game(session) for session in "wxyz"] == [*GAMES, None]
    for game in GAMES:
        rounds.finish(game, solved=False)
    assert rounds.round_over and not rounds.finished
    rounds.advance()
    assert rounds.next_game("w") == "pick/a" and not rounds.round_over


def test_a_solved_game_is_not_played_in_later_rounds_and_counts_once():
    rounds = schedule()
    rounds.finish("pick/b", solved=True)
    rounds.finish("pick/b", solved=True)
    assert (rounds.newly_solved, rounds.played_in_round) == (1, 1)
    rounds.advance()
    assert rounds.newly_solved == 0 and rounds.played_in_round == 1 and not rounds.open("pick/b")
    assert [rounds.next_game("w"), rounds.next_game("w")] == ["pick/a", "pick/c"]


def test_a_released_game_goes_to_the_next_who_asks():
    rounds = schedule()
    assert rounds.next_game("silent") == "pick/a" and rounds.next_game("other") == "pick/b"
    rounds.release("silent")
    assert rounds.next_game("other") == "pick/a"


def test_a_game_is_in_one_sessions_hands():
    rounds = schedule()
    assert rounds.hold("pick/c", "one") and rounds.hold("pick/c", "one") and not rounds.hold("pick/c", "two")
    rounds.finish("pick/c", solved=False)
    assert rounds.hold("pick/c", "two")


def test_games_become_known_one_by_one_until_all_places_are_taken():
    rounds = Schedule(num_rounds=1, num_envs=2)
    assert [rounds.env_of(game) for game in ("pick/x", "pick/y", "pick/x", "pick/z")] == [0, 1, 0, -1]
    rounds.finish("pick/x", solved=True)
    assert not rounds.round_over
    rounds.finish("pick/y", solved=False)
    assert rounds.round_over


def test_a_round_is_not_over_while_games_are_unknown():
    rounds = Schedule(num_rounds=1, num_envs=2)
    rounds.env_of("pick/x")
    rounds.finish("pick/x", solved=False)
    assert not rounds.round_over


def test_nothing_is_open_after_the_last_round():
    rounds = schedule(num_rounds=1)
    rounds.advance()
    assert rounds.finished and not rounds.open("pick/a") and rounds.next_game("w") is None and not rounds.round_over


@pytest.mark.parametrize(
    ("games", "reason"),
    [
        (["pick/a", "pick/b"], "offers 2 different games, the run has 3 .run.num_envs."),
        (["pick/a"] * 5, "offers 1 different games"),
        (["pick/a", "pick/c", "pick/b"], "other games than this run"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_and_changes_nothing(games, reason):
    rounds = schedule()
    with pytest.raises(ScheduleError, match=reason):
        rounds.offer(games)
    assert rounds.games == GAMES


def test_a_longer_list_with_the_same_beginning_fits():
    rounds = schedule()
    rounds.offer([*GAMES, "pick/d"])
    assert rounds.games == GAMES
