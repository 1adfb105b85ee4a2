"""Sessions, retries and the queue, without a socket."""

import threading
import time

import numpy as np
import pytest

from xrl_alignment.wire import admission as module
from xrl_alignment.wire.admission import ByteBudget, PendingRequest, RequestQueue, RequestRefused, SessionAdmission
from xrl_alignment.wire.messages import Bye, Hello, Next, Observation


def test_only_an_answered_session_can_be_silent():
    now = [0.0]
    admission = SessionAdmission(RequestQueue(8), session_timeout_s=60, clock=lambda: now[0])
    pending = admission.admit_v2(Hello("s", 0, ()), "digest")
    now[0] = 1000.0  # training takes its time: the session waits for us
    assert admission.forget_silent() == []
    pending.reply({"kind": "welcome"})
    now[0] = 1059.0
    assert admission.forget_silent() == [] and not admission.all_waiting()
    admission.admit_v2(Hello("s", 0, ()), "digest")  # a retry is a sign of life
    now[0] = 1118.0
    assert admission.forget_silent() == []
    now[0] = 1120.0
    assert [item.message for item in admission.forget_silent()] == [Bye("s", 0, "silent for 60 s")]
    assert len(admission) == 0


def test_a_session_sends_one_request_at_a_time():
    admission = SessionAdmission(RequestQueue(8), session_timeout_s=60)
    admission.admit_v2(Hello("s", 0, ()), "a")
    with pytest.raises(RequestRefused, match="seq 0 of this session is still being answered"):
        admission.admit_v2(Next("s", 1), "b")
    admission.admit_v2(Bye("s", 1), "b")  # but it may leave at any time


def test_a_request_is_answered_once():
    pending = PendingRequest(Next("s", 1), "v2")
    pending.reply({"kind": "finished"})
    with pytest.raises(RuntimeError, match="twice"):
        pending.reply({"kind": "finished"})
    refused = PendingRequest(Next("", 0), "v1")
    refused.reply({"kind": "error", "reason": "no"})
    with pytest.raises(RuntimeError, match="twice"):
        refused.reply(["look"])


def test_what_a_stop_has_released_may_still_be_answered():
    pending = PendingRequest(Next("s", 1), "v2")
    pending.release("the server stops")
    pending.reply({"kind": "finished"})
    assert pending.wait().status == 503


def test_so_many_requests_wait_and_no_more():
    queue = RequestQueue(2)
    for _ in range(2):
        queue.put(PendingRequest(Next("s", 1), "v2"))
    with pytest.raises(RequestRefused, match="2 requests are waiting already") as refused:
        queue.put(PendingRequest(Next("s", 1), "v2"))
    assert refused.value.response.status == 503 and len(queue) == 2


def test_so_many_sessions_are_open_and_no_more(monkeypatch):
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    admission = SessionAdmission(RequestQueue(8), session_timeout_s=60)
    for name in ("a", "b"):
        admission.admit_v2(Hello(name, 0, ()), "digest")
    with pytest.raises(RequestRefused, match="2 sessions are open already"):
        admission.admit_v2(Hello("c", 0, ()), "digest")
    admission.admit_v2(Bye("a", 1), "digest")
    admission.admit_v2(Hello("c", 0, ()), "digest")


def test_take_keeps_order_and_respects_its_limit():
    queue = RequestQueue(8)
    sent = [PendingRequest(Next("s", seq), "v2") for seq in range(5)]
    for pending in sent:
        queue.put(pending)
    assert queue.take(3, 0, 0) == sent[:3] and queue.take(3, 0, 0.01) == sent[3:] and queue.take(3, 0.01, 1) == []


def test_gathering_goes_on_while_others_come():
    queue = RequestQueue(8)
    sent = [PendingRequest(Next("s", seq), "v2") for seq in range(8)]
    queue.put(sent[0])

    def send():
        for pending in sent[1:]:
            time.sleep(0.4)
            queue.put(pending)

    thread = threading.Thread(target=send)
    thread.start()
    assert queue.take(8, 0, window_s=2.5, longest_s=60) == sent  # the last one comes after 2.8 s
    thread.join()


def test_gathering_ends_though_others_come():
    queue = RequestQueue(2000)
    stop = threading.Event()

    def send():
        for seq in range(1000):
            queue.put(PendingRequest(Next("s", seq), "v2"))
            if stop.wait(0.01):
                break

    thread = threading.Thread(target=send)
    thread.start()
    assert 0 < len(queue.take(1000, 60, window_s=5, longest_s=0.3)) < 1000
    stop.set()
    thread.join()


def test_an_answered_request_keeps_nothing_of_what_was_sent():
    admission = SessionAdmission(RequestQueue(8), session_timeout_s=60)
    admission.admit_v2(Hello("s", 0, ("g",) * 1000), "a").reply({"kind": "welcome"})
    image = np.zeros((1000, 1000, 3), np.uint8)
    seen = Observation("text", "history", {"a": 1}, "g", False, image, "s", 1)
    pending = admission.admit_v2(seen, "b")
    assert pending.message is seen
    pending.reply(["look"])
    kept = pending.message
    assert isinstance(kept, Observation) and kept.image.nbytes == 3 and not (kept.text or kept.history)
    assert admission.admit_v2(seen, "b") is pending and b"look" in pending.wait().body  # a retry


def test_the_budget_is_shared_and_a_large_request_waits_for_all_of_it():
    budget = ByteBudget(100, patience_s=0.05)
    budget.take(60)
    with pytest.raises(RequestRefused, match="other requests hold 60 bytes") as refused:
        budget.take(60)
    assert refused.value.response.status == 503 and refused.value.headers == {"Retry-After": "1"}
    budget.give_back(60)
    budget.take(1000)
    assert budget.held == 1000
    budget.give_back(1000)
    assert budget.held == 0
