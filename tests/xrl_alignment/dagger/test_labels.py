"""Missing labels: refused at the first step, counted, and above a limit the end of the run."""

import contextlib
import json

import pytest

from alfworld_native import make_environment
from alfworld_native.base import information_of
from alfworld_native.experts.base import Label
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.dagger.rounds import ENOUGH, LabelGuard, MissingLabelsError
from xrl_alignment.play.client.connection import ClientError
from xrl_alignment.play.client.play import play
from xrl_alignment.runs.directory import EpisodeRecord


class Sparse:
    """An expert that has a label for every `n`-th state only, from the first one on; keeps what it is told."""

    name = "sparse"

    def __init__(self, n: int = 1) -> None:
        self.n, self.told = n, []

    def begin(self, intro: str, **context) -> None:
        self.asked = -1

    def observe(self, action: str, feedback: str) -> None:
        pass

    def act(self, information=None) -> Label:
        self.asked += 1
        self.told.append(information)
        return Label("look" if self.n and self.asked % self.n == 0 else None)


class Advising:
    """The native engine with advice beside it and no attribute `expert`."""

    def __init__(self) -> None:
        self._environment = make_environment("native")

    def expert_action(self) -> str:
        return "inventory"

    def __getattr__(self, name):
        if name == "expert":
            raise AttributeError(name)
        return getattr(self._environment, name)


def record(states: int, unlabelled: int, round: int = 0) -> EpisodeRecord:
    return EpisodeRecord(round, 0, "g/1", False, False, states, "", [], "x", 1.0, states, unlabelled)


@pytest.fixture
def client_run(make_run, scripted):
    def make(**options):
        run = make_run(policy=scripted("look"), expert="client", client_expert="client", num_rounds=1, **options)
        run.loop.front.labels_required = True
        return run

    return make


def refused(run, games, expert=None) -> str:
    """What a client is told that plays against `run`, which goes on waiting."""
    with pytest.raises(ClientError) as error:
        play(run.url, lambda: make_environment("native"), games, expert=expert, patience_s=5)
    assert run.error is None
    return str(error.value)


def test_refused_clients_hear_the_reason_and_the_corrected_one_plays_to_the_end(client_run, games):
    run = client_run().start()
    said = refused(run, games[2:])
    assert "expert.name=client takes the labels from here: start the client with --expert explorer" in said
    said = refused(run, games[2:], lambda environment: Sparse(0))
    assert f"no label for the first step of {games[2].id}" in said and "expert.name=client" in said
    assert run.journal == []
    summary = run.play(expert=lambda environment: make_expert("explorer"))
    assert summary["episodes"] == 2 and run.directory.done
    assert run.rounds.status()["missing_labels"] == 0.0


def test_an_environment_with_advice_needs_no_attribute_expert(client_run):
    run = client_run()
    run.play(factory=Advising)
    assert run.directory.done and run.rounds.status()["missing_labels"] == 0.0


def test_missing_labels_are_counted_everywhere(client_run):
    run = client_run(max_steps=6)
    run.play(expert=lambda environment: Sparse(3))
    assert [(r.states, r.unlabelled) for r in run.journal] == [(6, 4)] * 2
    assert run.loop.status()["missing_labels"] == pytest.approx(2 / 3)
    world = (run.directory.results / "world.log").read_text()
    assert "MISSING LABELS: 0.6667 (8 of 12 states)\n" in world
    lines = map(json.loads, (run.directory.state / "metrics.jsonl").read_text().splitlines())
    assert [line["value"] for line in lines if line["tag"] == "round/missing_labels"] == [pytest.approx(2 / 3)]


def test_too_many_missing_labels_stop_the_run_and_a_resume_ends_it(client_run, make_run):
    run = client_run(max_steps=6, label_guard=LabelGuard(0.5))
    with contextlib.suppress(ClientError):  # the client may hear of the end, or not
        run.play(expert=lambda environment: Sparse(3))
    assert isinstance(run.error, MissingLabelsError) and "8 of 12 states of round 1" in str(run.error)
    assert f"--resume {run.directory.path}" in str(run.error) and not run.directory.done
    assert "expert.max_missing_labels=0.5" in run.log
    again = client_run(max_steps=6, label_guard=LabelGuard(1.0)).start().wait()
    assert again.error is None and again.directory.done and len(again.journal) == 2


def test_a_share_is_judged_with_enough_states_or_at_the_rounds_end():
    guard = LabelGuard(0.5)
    guard.judge(record(ENOUGH - 1, ENOUGH - 1), round_over=False)
    with pytest.raises(MissingLabelsError):
        guard.judge(record(1, 1), round_over=False)
    guard = LabelGuard(0.5)
    guard.judge(record(4, 2), round_over=True)
    with pytest.raises(MissingLabelsError):
        guard.judge(record(4, 3, round=1), round_over=True)
    LabelGuard().judge(record(4, 4), round_over=True)


def test_an_expert_that_fails_at_every_state_stops_the_run(make_run, scripted):
    """Before, the run "was done": each game was given up, and the checkpoint held the weights that it began with."""

    class Failing:
        name = "failing"

        def begin(self, intro, *, task_type="", memories=()):
            """Nothing."""

        def act(self, information=None):
            return Label(7)

    run = make_run(policy=scripted("look"), num_rounds=1, label_guard=LabelGuard(0.5))
    run.loop.front.make_expert = Failing
    with contextlib.suppress(ClientError):  # the client may hear of the end, or not
        run.play()
    assert isinstance(run.error, MissingLabelsError) and "every game of round 1 was given up" in str(run.error)
    assert "expert Failing: a Label's action is a text or None" in run.log and not run.directory.done


def test_a_journal_of_an_older_version_is_read(make_run, scripted):
    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2)
    run.play()
    path = run.directory.state / "episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["states"], line["unlabelled"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(r.states, r.unlabelled) for r in run.directory.episodes()] == [(0, 0)] * 2


def test_the_server_tells_its_expert_what_the_others_are_told(make_run, scripted, games):
    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2, games=games[:1])
    expert = Sparse()
    run.loop.front.make_expert = lambda: expert
    run.play()
    environment = make_environment("native")
    first = information_of(environment, environment.reset(games[0]))
    assert expert.told[0] == first and first["admissible_commands"]
