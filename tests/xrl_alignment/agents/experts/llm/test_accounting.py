"""Tokens, money and limits."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lavis.common.errors import FileError
from xrl_alignment.agents.experts.llm.accounting import Account, Pace, Prices, Usage, read_calls
from xrl_alignment.common.errors import BudgetSpent

PRICES = Prices(prompt=2.0, cached=0.5, completion=10.0)


def test_cost():
    assert PRICES.cost(Usage(1, 1000, 400, 100)) == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 10) / 1e6)


def pay(account, usage=None):
    with account.attempt(prompt=100, completion=10) as settle:
        settle(usage or Usage(1, 100, 0, 10))


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
    assert account.line(1) == (
        "EXPERT: calls 1, prompt tokens 80 (50 cached by the endpoint), completion tokens 5, 0.0001 USD; "
        "in total 2 calls, 0.0004 USD"
    )


def test_what_was_not_paid_for_is_told_by_round():
    account = Account(prices=PRICES)
    account.count("retries")
    account.start_round(1)
    for name in ("cache_hits", "cache_hits", "no_label"):
        account.count(name)
    assert account.events(1) == {"cache_hits": 2, "no_label": 1} and account.events(2) == {}
    assert "USD; answers from expert.cache 2, states without a label 1; in total 0 calls" in account.line(1)
    assert account.status()["retries"] == 1


def test_without_prices_nobody_is_told_that_calls_are_free():
    account = Account(max_calls=1)
    pay(account)
    assert account.figures()["cost_usd"] is None and account.line(0).count("cost unknown (no prices are set)") == 2
    assert account.status()["limits"] == {"max_calls": 1}
    with pytest.raises(BudgetSpent, match="1 calls, cost unknown"):
        pay(account)


def test_the_file_names_the_prices_that_count(tmp_path):
    path = tmp_path / "calls.jsonl"
    assert read_calls(path) == ({}, None)
    for prices in (None, PRICES, PRICES, Prices(prompt=3.0)):
        account = kept(path, prices=prices)
        pay(account)
        account.close()
    with open(path, "a") as file:
        file.write('{"round": 1, "cal')
    by_round, prices = read_calls(path)
    assert by_round == {0: Usage(4, 400, 0, 40)} and prices == Prices(prompt=3.0)
    assert path.read_text().count("prices") == 2
    path.write_text("[]\n")
    with pytest.raises(FileError, match="no record of expert calls"):
        read_calls(path)


def test_an_attempt_that_fails_is_booked_at_its_worst(tmp_path):
    account = kept(tmp_path / "calls.jsonl", max_calls=2, prices=PRICES)
    with pytest.raises(RuntimeError), account.attempt(prompt=100, completion=10):
        assert account.total == kept(tmp_path / "calls.jsonl").total == Usage(1, 100, 0, 10)  # before it is sent
        raise RuntimeError
    assert account.prices.cost(account.total) == pytest.approx(0.0003)
    with account.attempt(prompt=100, completion=10) as settle:
        settle(Usage())  # it was never sent
    account.start_round(1)
    with account.attempt(prompt=100, completion=10) as settle:
        account.start_round(2)  # the correction belongs to the round of the attempt
        settle(Usage(1, 80, 20, 5))
    with pytest.raises(BudgetSpent, match="2 calls.*expert.max_calls=2"):
        pay(account)
    again = kept(tmp_path / "calls.jsonl")
    assert again.total == account.total == Usage(2, 180, 20, 15)
    assert again.figures(1) == account.figures(1) | {"cost_usd": None} and again.figures(2)["calls"] == 0


def test_a_full_disk_stops_before_the_attempt(tmp_path):
    path = tmp_path / "calls.jsonl"
    program = """
import resource, sys
from pathlib import Path
from lavis.common.errors import FileError
from xrl_alignment.agents.experts.llm.accounting import Account, Usage
account = Account()
account.keep(Path(sys.argv[1]))
with account.attempt(prompt=100, completion=10) as settle:
    size = Path(sys.argv[1]).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 7, size + 7))
    settle(Usage(1, 80, 0, 5))
assert account.total == Usage(1, 80, 0, 5)
try:
    with account.attempt(prompt=100, completion=10):
        raise SystemExit("the attempt was made")
except FileError as error:
    assert "could not be written" in str(error)
assert account.total == Usage(1, 80, 0, 5)
"""
    program = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)" + program
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)
    assert kept(path).total == Usage(1, 100, 0, 10)  # no half line stands in the file


def test_money_is_not_overspent_by_calls_on_their_way():
    account = Account(prices=PRICES, max_cost_usd=0.0010)  # a call costs 0.0003 at most: three fit
    together = threading.Barrier(3, timeout=60)

    def call(number):
        try:
            with account.attempt(prompt=100, completion=10) as settle:
                together.wait()
                settle(Usage(1, 100, 0, 10))
        except BudgetSpent:
            return "spent"
        return "paid"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(call, range(8)))
    assert sorted(outcomes) == ["paid"] * 3 + ["spent"] * 5
    assert account.prices.cost(account.total) <= 0.0010


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


@pytest.mark.parametrize(
    "line",
    ["[]", "1", '{"round": 0, "calls": "3"}', '{"calls": 1}', "{", '{"round": Infinity}', '{"round": 0, "calls": NaN}'],
)
def test_a_file_that_is_no_record_is_refused(tmp_path, line):
    (tmp_path / "calls.jsonl").write_text(line + "\n")
    with pytest.raises(FileError, match="no record of expert calls"):
        kept(tmp_path / "calls.jsonl")


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
