"""Tokens, money and limits."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from xrl_alignment.common.errors import BudgetSpent
from xrl_alignment.experts.llm.accounting import Account, Pace, Prices, Usage

PRICES = Prices(prompt=2.0, cached=0.5, completion=10.0)


def test_cost():
    assert PRICES.cost(Usage(1, 1000, 400, 100)) == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 10) / 1e6)


def pay(account, usage=None):
    with account.paying(prompt=100, completion=10) as book:
        book(usage or Usage(1, 100, 0, 10))


def test_figures_by_round_and_in_total():
    account = Account(prices=PRICES)
    pay(account)
    account.start_round(1)
    pay(account, Usage(1, 80, 50, 5))
    assert account.figures(0) == {
        "calls": 1,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "completion_tokens": 10,
        "cost_usd": 0.0003,
    }
    assert account.figures()["prompt_tokens"] == 180 and account.figures(7)["calls"] == 0
    assert account.line(1).startswith("EXPERT: calls 1, prompt tokens 80 (cached 50), completion tokens 5, 0.0001 USD")


def test_a_call_that_fails_costs_nothing():
    account = Account(max_calls=1)
    with pytest.raises(RuntimeError), account.paying(prompt=1, completion=1):
        raise RuntimeError
    pay(account)
    with pytest.raises(BudgetSpent, match="1 calls.*expert.max_calls=1"):
        pay(account)


def test_money_is_not_overspent_by_calls_on_their_way():
    account = Account(prices=PRICES, max_cost_usd=0.0010)  # a call costs 0.0003 at most: three fit
    together = threading.Barrier(3, timeout=60)

    def call(number):
        try:
            with account.paying(prompt=100, completion=10) as book:
                together.wait()
                book(Usage(1, 100, 0, 10))
        except BudgetSpent:
            return "spent"
        return "paid"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(call, range(8)))
    assert sorted(outcomes) == ["paid"] * 3 + ["spent"] * 5
    assert account.cost_usd <= 0.0010


def kept(path, **limits):
    account = Account(**limits)
    account.keep(path)
    return account


def test_the_book_survives_a_kill_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "state" / "expert_calls.jsonl"
    account = kept(path, max_calls=3)
    pay(account)
    account.start_round(1)
    pay(account)
    with open(path, "a") as file:
        file.write('{"round": 1, "cal')
    again = kept(path, max_calls=3)
    assert again.total.calls == 2 and again.figures(1)["calls"] == 1
    pay(again)
    with pytest.raises(BudgetSpent):
        pay(again)
    again.close()
    assert kept(path).total.calls == 3


def test_pace():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(120, clock=lambda: now[0], sleep=sleep)
    for _ in range(4):
        pace.wait()
    assert slept == [0.5, 0.5, 0.5]
    now[0] += 10
    pace.wait()
    assert len(slept) == 3
    Pace().wait()
