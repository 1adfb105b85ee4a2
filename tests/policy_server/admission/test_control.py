"""What a request goes through, seen from the question that reaches the model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from policy_server.admission import control
from policy_server.admission.control import ActionQuery, ActionResult, AdmissionControl, ChatQuery
from policy_server.metrics import Metrics
from policy_server.models.pool import ModelPool
from policy_server.models.vision_model import ModelJob
from policy_server.refusals import RequestRefused
from policy_server.settings import PolicyServerSettings
from tests.policy_server.servers import CAVE, ROOM, TINY, encoded_image
from xrl_alignment.settings.loading import load_config


class Scribe:
    """A model that keeps what it is asked and walks on; the answers of a real one would not show a history."""

    device, bytes = "cpu", 0

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.lengths: list[int] = []

    def answer(self, jobs: Sequence[ModelJob]) -> list[str]:
        self.lengths += [job.max_tokens for job in jobs]
        self.questions += [job.prompt.text for job in jobs]
        return ['{"reasoning": "on", "action": {"forward": 1}}'] * len(jobs)


def acted(
    asks: Sequence[tuple[str, ActionQuery]], *options: str
) -> tuple[list[ActionResult], list[str], AdmissionControl]:
    """The outcomes of requests made one after the other, and the questions that the model heard."""
    settings = load_config(PolicyServerSettings, None, [f"model.path={TINY}", *options])
    scribe, metrics = Scribe(), Metrics()
    pool = ModelPool(settings.model_table(), 0, metrics, load=lambda settings: scribe)

    async def run() -> tuple[list[ActionResult], AdmissionControl]:
        admission = AdmissionControl(settings, pool, metrics)
        admission.start()
        try:
            return [await admission.act(caller, ask, "http") for caller, ask in asks], admission
        finally:
            await admission.stop()

    outcomes, admission = asyncio.run(run())
    return outcomes, scribe.questions, admission


def test_a_session_shows_the_model_its_own_last_steps():
    asks = [("lab", ActionQuery(encoded_image(), CAVE, step=step, session="s")) for step in (1, 2, 3)]
    asks += [
        ("lab", ActionQuery(encoded_image(), CAVE, session="t")),
        ("home", ActionQuery(encoded_image(), CAVE, session="s")),
    ]
    asks.append(("lab", ActionQuery(encoded_image(), CAVE)))
    _, questions, _ = acted(asks, "memory.history=2")
    assert "last steps" not in questions[0]
    assert "1: forward" in questions[1]
    assert questions[2].endswith("oldest first:\n1: forward\n2: forward\nWhat do you do now?")
    assert all("last steps" not in question for question in questions[3:])


def test_identical_observations_are_answered_once_where_a_cache_is_wanted():
    asks = [ActionQuery(encoded_image("PNG"), CAVE, step=1), ActionQuery(encoded_image("PNG"), CAVE, step=2)]
    asks += [
        ActionQuery(encoded_image(shade=91), CAVE),
        ActionQuery(encoded_image(), CAVE, temperature=0.1),
        ActionQuery(encoded_image(), CAVE, max_tokens=9),
    ]
    outcomes, questions, _ = acted([("lab", ask) for ask in asks], "memory.cache=100")
    assert [outcome.cached for outcome in outcomes] == [False, True, False, False, False]
    assert outcomes[0].parsed == outcomes[1].parsed and len(questions) == 4
    outcomes, questions, _ = acted([("lab", asks[0]), ("lab", asks[1])])
    assert len(questions) == 2 and not any(outcome.cached for outcome in outcomes)


def test_similar_observations_share_an_answer_where_that_is_wanted():
    asks = [ActionQuery(encoded_image(kind, shade=shade), CAVE) for kind, shade in (("PNG", 90), ("JPEG", 91))]
    asks += [ActionQuery(encoded_image(shade=200), CAVE), ActionQuery(encoded_image(), CAVE, max_tokens=9)]
    outcomes, _, _ = acted([("lab", ask) for ask in asks], "memory.cache=100", "memory.cache_distance=4")
    assert [outcome.cached for outcome in outcomes] == [False, True, False, False]


def test_another_history_is_another_situation():
    asks = [("lab", ActionQuery(encoded_image(), CAVE, session="s"))] * 2
    outcomes, _, _ = acted(asks, "memory.cache=100")
    assert [outcome.cached for outcome in outcomes] == [False, False]


def test_what_is_shown_is_small_and_holds_no_upload():
    large = ActionQuery(encoded_image(size=(1280, 720)), CAVE)
    _, _, admission = acted([("lab", large)] * 3, "server.recent=2")
    shown = admission.recent["lab"]
    assert len(shown) == 2
    assert all(seen.query.image == b"" and seen.thumbnail.size == (320, 180) for seen in shown)


def test_a_caller_keeps_its_last_steps_however_busy_another_is(monkeypatch):
    monkeypatch.setattr(control, "RECENT_CALLERS", 2)
    ask = ActionQuery(encoded_image(), CAVE)
    _, _, admission = acted([(caller, ask) for caller in ("first", "lab", "home", "home", "home")], "server.recent=2")
    assert {caller: len(steps) for caller, steps in admission.recent.items()} == {"lab": 1, "home": 2}


def test_more_answers_than_the_queue_holds_are_refused_for_good():
    """They were refused as if the server were busy, and so asked for again and again."""
    settings = load_config(PolicyServerSettings, None, [f"model.path={TINY}", "queue.limit=8"])
    metrics = Metrics()
    admission = AdmissionControl(
        settings, ModelPool(settings.model_table(), 0, metrics, load=lambda _: Scribe()), metrics
    )
    query = ChatQuery((("user", ("hello",)),), settings.model.name, number=9)
    with pytest.raises(RequestRefused, match=r"n is 9; this server's queue.limit is 8") as refused:
        asyncio.run(admission.chat("lab", query, "http"))
    assert refused.value.status == 422


def test_an_answer_that_is_refused_takes_the_others_of_its_chat_out_of_the_queue():
    settings = load_config(PolicyServerSettings, None, [f"model.path={TINY}", "queue.limit=4"])
    metrics = Metrics()

    async def run() -> list[int]:
        pool = ModelPool(settings.model_table(), 0, metrics, load=lambda _: Scribe())
        admission = AdmissionControl(settings, pool, metrics)  # it is not started, so what waits goes on waiting
        two, three = (ChatQuery((("user", ("hello",)),), settings.model.name, number=number) for number in (2, 3))
        first = asyncio.ensure_future(admission.chat("lab", two, "http"))
        while len(admission.queue) < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(RequestRefused) as refused:
            await admission.chat("home", three, "http")
        await asyncio.sleep(0.01)
        first.cancel()
        return [refused.value.status, len(admission.queue)]

    assert asyncio.run(run()) == [503, 2]


@pytest.mark.parametrize(("limit", "length"), [(256, 256), (1024, 512)])
def test_a_request_without_a_length_gets_one_that_the_model_gives(limit, length):
    settings = load_config(PolicyServerSettings, None, [f"model.path={TINY}", f"model.max_tokens={limit}"])
    scribe, metrics = Scribe(), Metrics()

    async def run() -> None:
        admission = AdmissionControl(
            settings, ModelPool(settings.model_table(), 0, metrics, load=lambda settings: scribe), metrics
        )
        admission.start()
        try:
            await admission.act("lab", ActionQuery(encoded_image(), CAVE), "http")
        finally:
            await admission.stop()

    asyncio.run(run())
    assert scribe.lengths == [length]


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (ActionQuery(b"", CAVE), 422),
        (ActionQuery(encoded_image(), "Chess"), 404),
        (ActionQuery(encoded_image(), CAVE, model="z"), 404),
    ],
)
def test_refusals_leave_nothing_behind(ask, status):
    with pytest.raises(RequestRefused) as caught:
        acted([("lab", ask)])
    assert caught.value.status == status


def test_text_tasks_reach_the_model_as_they_are():
    (outcome,), questions, _ = acted(
        [("lab", ActionQuery(encoded_image(), "ALFWorld", prompt=ROOM, commands=("look",)))]
    )
    assert questions == [ROOM] and outcome.parsed.action == {"command": "look"}
