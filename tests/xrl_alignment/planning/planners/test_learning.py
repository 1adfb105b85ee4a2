"""What a planner learns from played games, and that it learns it with its adapter alone."""

from __future__ import annotations

import math
import random

import pytest
import torch

from lavis.common.errors import DivergedError
from lavis.models.losses import dpo_loss
from xrl_alignment.planning.planners import learning
from xrl_alignment.planning.planners.base import PlanQuestion
from xrl_alignment.planning.planners.learning import PlanExample, _batches, examples_of, plan_logps, train_planner
from xrl_alignment.settings.planning import PlannerTraining

GOAL = "You are in the middle of a room. you see a desk 1.\nYour task is to: put a pen in desk."
QUESTION = PlanQuestion(GOAL)
CHOSEN, REJECTED = "take pen, put pen in/on desk 1", "go to bed 1"


def record(won: bool, **call) -> dict:
    written = {"history": [["go to desk 1", "You see."]], "plan": "go to desk 1", "valid": True, "failed": False}
    calls = [{**written, "corrected": CHOSEN, **call}]
    return {"goal": GOAL, "result": {"won": won}, "calls": calls, "carried_out": [[1, "go to desk 1"]]}


def test_a_successful_plan_is_kept_and_a_failed_one_is_set_against_its_correction() -> None:
    question = PlanQuestion(GOAL, "You see.", (("go to desk 1", "You see."),))
    assert examples_of(record(True)) == [PlanExample(question, "go to desk 1")]
    corrected = [PlanExample(question, CHOSEN, "go to desk 1")]
    assert examples_of(record(False)) == corrected
    assert examples_of(record(True, failed=True)) == examples_of(record(True, valid=False)) == corrected
    assert examples_of(record(False, corrected="")) == []  # the explorer does not know what to do either
    assert examples_of(record(False, plan=CHOSEN)) == [PlanExample(question, CHOSEN)]
    # An agent that went its own way has won, and nobody has tried the plan: it is corrected, and not to be avoided.
    assert examples_of(record(True) | {"carried_out": []}) == [PlanExample(question, CHOSEN)]


@pytest.mark.parametrize(
    ("trigger", "rejected"), [("seen", ""), ("every", ""), ("not_found", "go to bed 1"), ("exhausted", "go to bed 1")]
)
def test_a_plan_that_another_one_replaced_is_corrected_even_where_the_game_was_won(trigger: str, rejected: str) -> None:
    """What was left of it was never tried; but a plan that was replaced while it went well is not one to avoid."""
    game = record(True, trigger="start", plan="go to bed 1")
    game["calls"].append({**game["calls"][0], "plan": "go to desk 1", "trigger": trigger})
    first, last = examples_of(game)
    assert (first.chosen, first.rejected) == (CHOSEN, rejected)
    assert (last.chosen, last.rejected) == ("go to desk 1", "")  # with this one the game was won


def test_a_repeated_mistake_is_corrected_once() -> None:
    game = record(False)
    call = game["calls"][0] | {"trigger": "exhausted"}
    game["calls"] += [call, call | {"corrected": "use desklamp 1"}]
    assert [one.chosen for one in examples_of(game)] == [CHOSEN, "use desklamp 1"]


def test_of_states_with_one_correction_that_is_learned_in_which_a_plan_failed() -> None:
    game = record(True, trigger="start")
    call = game["calls"][0]
    game["calls"] += [call | {"trigger": "every"}, call | {"trigger": "not_found", "plan": CHOSEN}]
    game["carried_out"] = []
    assert examples_of(game)[0].rejected == "go to desk 1"  # the second plan's: the first one was going well


def test_the_corrected_sequence_is_what_was_carried_out_from_the_plan_on() -> None:
    game = record(True, failed=True)
    game["carried_out"] = [[0, "go to desk 1"], [1, "take pen 1"], [2, "put pen 1 in/on desk 1"]]
    (example,) = examples_of(game, targets="hindsight")  # the state after the first action
    assert example.chosen == "take pen 1, put pen 1 in/on desk 1" and example.rejected == "go to desk 1"
    lost = record(False) | {"carried_out": game["carried_out"]}
    assert examples_of(lost, targets="hindsight") == []  # nobody knows a sequence that would have won


def test_the_true_answers_to_the_two_questions_are_learned_on_request() -> None:
    judged = {"history": [["go to desk 1", "You see."]], "feedback": ["take pen: executed no"], "plan": "take pen"}
    game = record(True) | {"feedbacks": [judged | {"true_executed": True, "true_solves": False}]}
    assert len(examples_of(game)) == 1
    *_, example = examples_of(game, learn_feedback=True)
    history = (("go to desk 1", "You see."),)
    question = PlanQuestion(GOAL, "You see.", history, ("take pen: executed no",), "take pen")
    assert example == PlanExample(question, "yes, no")


def test_a_batch_has_questions_of_like_length_and_all_are_read() -> None:
    examples = [PlanExample(PlanQuestion("x" * length), CHOSEN) for length in (9, 1, 8, 2, 7)]
    batches = _batches(examples, 2, random.Random(0))
    assert sorted(one for batch in batches for one in batch) == sorted(examples)
    assert {tuple(sorted(len(one.question.goal) for one in batch)) for batch in batches} == {(1, 2), (7, 8), (9,)}


def logp(planner, plan: str) -> float:
    with torch.no_grad():
        sums, _ = plan_logps(planner, [(QUESTION, plan)])
    return float(sums)


def test_supervised_learning_makes_the_plan_likelier_and_leaves_the_base_alone(local_planner) -> None:
    planner = local_planner()
    frozen = {n: v.detach().clone() for n, v in planner.model.named_parameters() if not v.requires_grad}
    before, identity = logp(planner, CHOSEN), planner.identity
    losses = train_planner(planner, [PlanExample(QUESTION, CHOSEN)], PlannerTraining(epochs=8))
    assert logp(planner, CHOSEN) > before + 0.1 and planner.identity != identity and set(losses) == {"supervised"}
    assert all(torch.equal(v, frozen[n]) for n, v in planner.model.named_parameters() if n in frozen)


def test_dpo_moves_the_failed_plan_away_from_its_correction(local_planner) -> None:
    planner = local_planner()
    before = logp(planner, CHOSEN) - logp(planner, REJECTED)
    settings = PlannerTraining(epochs=0, dpo_epochs=5, dpo_lr=2e-3)
    assert set(train_planner(planner, [PlanExample(QUESTION, CHOSEN, REJECTED)], settings, mix_ratio=0.0)) == {"dpo"}
    assert logp(planner, CHOSEN) - logp(planner, REJECTED) > before


def test_dpo_reads_the_newest_pairs_with_the_given_weights(local_planner, monkeypatch) -> None:
    pairs = [PlanExample(QUESTION, CHOSEN, REJECTED), PlanExample(QUESTION, "take pen", REJECTED)]
    used: list[dict] = []

    def noted(*given, **weights):
        used.append(weights)
        return dpo_loss(*given, **weights)

    monkeypatch.setattr(learning, "dpo_loss", noted)
    identities = set()
    for given in (pairs, pairs[1:]):
        planner = local_planner()
        settings = PlannerTraining(epochs=0, dpo_epochs=1, max_pairs=1)
        train_planner(planner, given, settings, beta=0.7, mix_ratio=0.2)
        identities.add(planner.identity)
    assert len(identities) == 1 and used == [{"beta": 0.7, "mix_ratio": 0.2}] * 2


def test_the_rate_climbs_within_the_warm_up_and_falls_to_the_end_of_its_stage(local_planner, monkeypatch) -> None:
    rates: list[float] = []

    class Noted:
        def __init__(self, optimizer, parameters, *, max_norm) -> None:
            self.optimizer = optimizer
            assert max_norm == learning.MAX_NORM

        def add(self, *given) -> None: ...

        def discard(self) -> None: ...

        def update(self, where) -> None:
            rates.append(self.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(learning, "Updater", Noted)
    settings = PlannerTraining(epochs=4, dpo_epochs=2, lr=0.8, dpo_lr=0.2, warmup_steps=1)
    train_planner(local_planner(), [PlanExample(QUESTION, CHOSEN, REJECTED)], settings)
    assert rates == pytest.approx([0.4, 0.6, 0.4, 0.2, 0.2, 0.1])


def test_the_same_examples_and_seed_give_the_same_adapter(local_planner) -> None:
    examples = [PlanExample(QUESTION, CHOSEN, REJECTED), PlanExample(QUESTION, "take pen")]
    identities = set()
    for _ in range(2):
        planner = local_planner()
        train_planner(planner, examples, PlannerTraining(epochs=2))
        identities.add(planner.identity)
    assert len(identities) == 1


def test_the_mean_loss_counts_every_pair_once_also_those_of_a_smaller_batch(local_planner) -> None:
    planner = local_planner()
    pairs = [PlanExample(QUESTION, ", ".join(["take pen"] * times), REJECTED) for times in (1, 2, 5)]
    settings = PlannerTraining(epochs=0, dpo_epochs=1, dpo_lr=0.0, batch_size=2)
    found = train_planner(planner, pairs, settings)["dpo"]
    with torch.no_grad():
        sums, counts = plan_logps(planner, [(QUESTION, one.chosen) for one in pairs])
    # The policy is its own reference: log 2 of DPO's term, and the cloning term by its default weight.
    assert found == pytest.approx(math.log(2) - 0.5 * (sums / counts).mean().item(), abs=1e-4)


def test_of_many_examples_the_newest_are_learned_each_once(local_planner) -> None:
    old, new, newest = (PlanExample(QUESTION, plan) for plan in (REJECTED, "take pen", CHOSEN))
    identities = set()
    for examples, limit in (([new, newest], 9), ([newest, old, new, newest], 2)):
        planner = local_planner()
        train_planner(planner, examples, PlannerTraining(max_examples=limit))
        identities.add(planner.identity)
    assert len(identities) == 1


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_log_probabilities_are_those_of_a_plain_forward_pass(local_planner, dtype, apart) -> None:
    """In float32, row by row, with all logits; a bfloat16 base learns with bfloat16 products and float32 adapters."""
    planner = local_planner()
    planner.model.get_base_model().to(dtype)
    trained = [value for value in planner.model.parameters() if value.requires_grad]
    for value in trained:
        value.data = value.data.float()
    frozen = {n: v.detach().clone() for n, v in planner.model.named_parameters() if not v.requires_grad}
    train_planner(planner, [PlanExample(QUESTION, CHOSEN, REJECTED)], PlannerTraining(epochs=8))
    assert all(torch.equal(v, frozen[n]) for n, v in planner.model.named_parameters() if n in frozen)
    assert frozen and all(value.dtype is dtype for value in frozen.values())
    assert all(value.dtype is torch.float32 for value in trained)

    rows = [(QUESTION, CHOSEN), (PlanQuestion("x"), REJECTED), (QUESTION, "take pen")]
    with torch.no_grad():
        sums, counts = plan_logps(planner, rows)
        planner.model.float()
        for row, (question, plan) in enumerate(rows):
            prompt, answer = planner.encode(planner.prompt(question)), planner.encode_plan(plan)
            logps = planner.model(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
            wanted = sum(float(logps[len(prompt) - 1 + place, token]) for place, token in enumerate(answer))
            assert float(sums[row]) == pytest.approx(wanted, abs=apart) and int(counts[row]) == len(answer)


def test_log_probabilities_do_not_depend_on_the_batch(local_planner) -> None:
    planner = local_planner()
    with torch.no_grad():
        sums, counts = plan_logps(planner, [(QUESTION, CHOSEN), (PlanQuestion("x"), REJECTED)])
    assert float(sums[0]) == pytest.approx(logp(planner, CHOSEN), abs=1e-4)
    assert int(counts[0]) == len(planner.tokenizer.encode(CHOSEN)) + 1


def test_nothing_to_learn_from_and_a_loss_that_is_not_finite(local_planner) -> None:
    planner = local_planner()
    identity = planner.identity
    assert train_planner(planner, [], PlannerTraining()) == {} and planner.identity == identity
    for name, value in planner.model.named_parameters():
        if "lora_B" in name:
            value.data.fill_(float("nan"))
    with pytest.raises(DivergedError, match="supervised.*lower planner.lr"):
        train_planner(planner, [PlanExample(QUESTION, CHOSEN)], PlannerTraining())


def test_a_preference_loss_that_is_not_finite_names_its_own_learning_rate(local_planner) -> None:
    examples = [PlanExample(QUESTION, CHOSEN, REJECTED)] * 2 + [PlanExample(QUESTION, REJECTED, CHOSEN)]
    settings = PlannerTraining(epochs=0, dpo_epochs=2, dpo_lr=1e30, batch_size=1)
    with pytest.raises(DivergedError, match=r"\(dpo\): lower planner.dpo_lr$"):
        train_planner(local_planner(), examples, settings)


def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(local_planner) -> None:
    planner = local_planner()
    weight = next(value for name, value in planner.model.named_parameters() if "lora_B" in name)
    weight.register_hook(lambda gradient: gradient / 0.0)  # an overflow in the backward pass
    with pytest.raises(DivergedError, match=r"gradient's norm is .* \(supervised\)"):
        train_planner(planner, [PlanExample(QUESTION, CHOSEN)], PlannerTraining(epochs=1))
    assert all(value.isfinite().all() for value in planner.adapter().values())
