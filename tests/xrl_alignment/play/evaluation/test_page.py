"""The page of a table and the card of a result: nothing is mixed, nothing is left out."""

from __future__ import annotations

from tests.xrl_alignment.play.evaluation.test_scores import result
from xrl_alignment.play.evaluation.page import card, page
from xrl_alignment.play.evaluation.scores import append, read_table, row_of


def rows(*changes):
    return [row_of(result(**change)) for change in changes]


def test_other_games_engines_and_limits_have_tables_of_their_own():
    text = page(
        rows({}, {"games_hash": "f" * 12}, {"engine": "thor"}, {"max_steps": 200}, {"decode": "admissible"}, {})
    )
    assert text.count("\n## ") == 4 and text.count("A single trial:") == 5
    assert text.startswith("# Scores\n\n6 results") and "The best of several" not in text


def test_texts_of_a_strangers_table_stay_in_their_cells():
    text = page(rows({"split": "a | <b>"}))
    assert "a \\| &lt;b>" in text and "<b>" not in text


def test_the_best_of_several_trials_stands_apart_with_its_memories():
    text = page(rows({"trials": 3, "reflexion": "rule"}, {"trials": 2, "swap_memories": True, "reflexion": "rule"}))
    single, several = text.split("The best of several trials")
    assert "| 1.000 |" in several and "| 1.000 |" not in single
    assert "| 3 | rule |" in several and "| 2 | another game's |" in several
    own, swapped, none = rows(
        {"trials": 3, "reflexion": "rule"},
        {"trials": 3, "reflexion": "rule", "swap_memories": True},
        {"trials": 3, "swap_memories": True},
    )
    told = [card(row).split("Best of 3 trials, memories: ")[1].partition(":")[0] for row in (own, swapped, none)]
    assert told == ["rule", "another game's", "none"]


def test_costs_are_those_of_what_they_stand_beside():
    cost = {"calls": 3, "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 2, "cost_usd": 0.25}
    (row,) = rows(
        {"trials": 2, "kind": "endpoint", "expert": {"first_trial": cost, "total": {**cost, "cost_usd": 1.5}}}
    )
    single, several = page([row]).split("The best of several trials")
    assert "0.2500 USD" in single and "1.5000 USD" in several and "| unknown |" in single
    assert "no prices set" in page(rows({"expert": {"first_trial": {"cost_usd": None}, "total": {"cost_usd": None}}}))
    text = card(row)
    assert "0.2500 USD, 1.5000 USD" in text and "Best of 2 trials, memories: none: 1.000" in text


def test_a_card_says_what_was_trained_on_and_lost():
    (row,) = rows({"trained_on": {"games": 2, "environments": []}, "who": "a|b\nc"})
    text = card(row)
    assert "NO: trained on 2" in text and "counted as not solved | 1 |" in text and "a\\|b c" in text
    assert "**0.500** (0.090 to 0.910, 95 %): 1 of 2 games solved in a single trial, free text." in text
    assert "held out | unknown" in card(rows({"trained_on": {"games": None, "environments": []}})[0])


def test_a_card_says_steps_as_the_table_does():
    (row,) = rows({})
    for mean_steps, shown in ((19 / 3, "6.3"), (None, "-")):
        row["first_trial"]["mean_steps"] = mean_steps
        assert f"| mean steps of solved games | {shown} |" in card(row) and f"| {shown} |" in page([row])


def test_rows_of_different_protocols_never_stand_in_one_table():
    share = {"games": 2, "solved": 2, "success": 1.0, "interval": [0.34, 1.0]}
    emma = {"protocol": "emma-12", "protocol_games": False, "trials": 12, "max_steps": 50, "by_slot": share}
    text = page(rows({}, {"protocol": "react"}, {"protocol": "own settings"}, emma))
    assert text.count("\n## ") == 4 and text.count("A single trial:") == 4
    assert text.count("**Not the games of the protocol**, which are 134 of valid_unseen.") == 1
    assert "counted there: by slot, over all trials." in text
    told = card(rows(emma)[0])
    assert "Counted by slot, as EMMA's logs are: 2 of 2, 1.000." in told
    assert (
        "| protocol | emma-12: EMMA's code and released logs; counted there: by slot, over all trials; NOT its" in told
    )


def test_rows_of_a_table_without_protocols_say_so(tmp_path):
    (row,) = rows({})
    for key in ("protocol", "protocol_games", "by_slot"):
        del row[key]
    path = tmp_path / "scores.jsonl"
    append(path, row)
    assert "## not named, valid_seen" in page(read_table([path]))
