"""The planner's learning: from the plans of played games, supervised and by preferences.

- Supervised: the planner's own plans that are just what was carried out to the end of a game that was won, and in place
  of every other plan the explorer's for the same state; or, as in EMAC+'s eq. 3 (arXiv:2505.19905), what was carried
  out from the plan on in a game that was won (`targets=hindsight`).
- DPO (Rafailov et al. 2023, arXiv:2305.18290): if the planner's own plan failed (it was not valid, was given up or did
  not suffice, or the game was lost), its own is rejected, and what is learned in its place is chosen (with `hindsight`
  a lost game has nothing in its place); the reference is the adapter as it was before.

Both change the adapter alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lavis.models.losses import dpo_loss
from lavis.training import Updater
from xrl_alignment.planning.planners.base import PlanQuestion
from xrl_alignment.planning.planners.local import LocalPlanner
from xrl_alignment.planning.plans import MAX_ACTIONS
from xrl_alignment.settings.planning import PlannerTraining

MAX_NORM = 1.0  # of the gradient
UNDECIDED = ("seen", "every")  # triggers of the next plan that say neither for nor against this one


class PlanExample(NamedTuple):
    """A state of a game, the plan to learn for it, and one to avoid (empty: none)."""

    question: PlanQuestion
    chosen: str
    rejected: str = ""


def examples_of(
    record: Mapping[str, Any], *, targets: str = "corrections", learn_feedback: bool = False
) -> list[PlanExample]:
    """The examples of one played game (`PlannedGame.record`, read back); `targets` and `learn_feedback` as in settings.

    The same plan is learned once in a game, for the first state that it belongs to, or the first one in which another
    plan failed. So a planner that makes the same mistake in ten states of a game is corrected once.
    """
    goal, won, calls = record["goal"], record["result"]["won"], record["calls"]
    found: dict[str, PlanExample] = {}  # by the plan to learn
    for call, after in zip(calls, [*calls[1:], None], strict=True):
        history = tuple((action, report) for action, report in call["history"])
        feedback = tuple(call.get("feedback", ()))  # records of older versions have none
        question = PlanQuestion(goal, history[-1][1] if history else "", history, feedback)
        failed = not (won and call["valid"]) or call["failed"]
        failed = failed or (after is not None and after["trigger"] not in UNDECIDED)
        # A plan that was replaced while it went well, or that the agent did not follow, was not tried to its end.
        carried_out = record.get("carried_out", ())  # records of older versions have none
        done = ", ".join([action for place, action in carried_out if place >= len(history)][:MAX_ACTIONS])
        chosen = call["plan"] if not failed and call["plan"] == done else call["corrected"]
        if targets == "hindsight":
            # EMAC+, eq. 3: the sequence that was corrected while it was carried out. A lost game has none.
            chosen = done if won else ""
        rejected = call["plan"] if failed and call["plan"] != chosen else ""
        # Once in a game, with a plan to avoid if any of the states has one.
        if chosen and (chosen not in found or (rejected and not found[chosen].rejected)):
            found[chosen] = PlanExample(question, chosen, rejected)
    examples = list(found.values())
    for judged in record.get("feedbacks", ()) if learn_feedback else ():
        history = tuple((action, report) for action, report in judged["history"])
        question = PlanQuestion(goal, history[-1][1], history, tuple(judged["feedback"]), judged["plan"])
        true = ("yes" if judged[name] else "no" for name in ("true_executed", "true_solves"))
        examples.append(PlanExample(question, ", ".join(true)))
    return examples


def train_planner(
    planner: LocalPlanner,
    examples: Sequence[PlanExample],
    settings: PlannerTraining,
    *,
    beta: float = 0.1,
    mix_ratio: float = 0.5,
    seed: int = 0,
    report: Callable[[str, int, int, float], None] = lambda stage, done, total, loss: None,
) -> dict[str, float]:
    """Train the adapter; returns the last epoch's mean loss of each stage that had examples (`supervised`, `dpo`).

    `beta` and `mix_ratio` are those of `dpo_loss`. `report` is called after each update with stage, updates done and in
    all, and loss. Of more than `max_examples` the newest count, of the failed plans among them the newest `max_pairs`.
    Raises DivergedError before a loss or gradient that is not finite reaches the weights.
    """
    planner.forget()
    # The newest, each once: one that came again is as new as its last time.
    examples = list(dict.fromkeys(reversed(examples)))[: settings.max_examples][::-1]
    pairs = [one for one in examples if one.rejected][-settings.max_pairs :]
    losses: dict[str, float] = {}
    draw = random.Random(seed)

    def supervised(planner: LocalPlanner, batch: Sequence[PlanExample]) -> Tensor:
        # -sum log pi(plan | question) / tokens, over all tokens of the batch's plans.
        sums, counts = plan_logps(planner, [(one.question, one.chosen) for one in batch])
        return -sums.sum() / counts.sum()

    if examples and settings.epochs:
        stage = _Stage("supervised", settings.epochs, settings.lr, settings.warmup_steps)
        losses["supervised"] = _train(planner, examples, stage, settings, draw, supervised, report)
    if pairs and settings.dpo_epochs:
        # The reference policy is the adapter as it is now: its log-probabilities are computed once, before any update.
        known: dict[PlanExample, tuple[float, float]] = {}
        with torch.no_grad():
            for start in range(0, len(pairs), settings.batch_size):
                part = pairs[start : start + settings.batch_size]
                chosen, rejected = _pair_logps(planner, part)
                known.update(zip(part, zip(chosen.tolist(), rejected.tolist(), strict=True), strict=True))

        def preference(planner: LocalPlanner, batch: Sequence[PlanExample]) -> Tensor:
            reference = torch.tensor([known[one] for one in batch], device=planner.model.device)
            # Log-probabilities are means over a plan's tokens: plans of many lengths are compared.
            pair = _pair_logps(planner, batch)
            return dpo_loss(*pair, *reference.unbind(1), beta=beta, mix_ratio=mix_ratio).loss

        stage = _Stage("dpo", settings.dpo_epochs, settings.dpo_lr)
        losses["dpo"] = _train(planner, pairs, stage, settings, draw, preference, report)
    planner.changed()
    return losses


class _Stage(NamedTuple):
    name: str
    epochs: int
    lr: float
    warmup_steps: int = 0


def _train(
    planner: LocalPlanner,
    examples: Sequence[PlanExample],
    stage: _Stage,
    settings: PlannerTraining,
    draw: random.Random,
    loss_of: Callable[[LocalPlanner, Sequence[PlanExample]], Tensor],
    report: Callable[[str, int, int, float], None],
) -> float:
    """Epochs over `examples` with AdamW, the rate linear up and down to zero; returns the last epoch's mean loss."""
    parameters = [parameter for parameter in planner.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=stage.lr, weight_decay=0.0)
    updater = Updater(optimizer, parameters, max_norm=MAX_NORM)
    updater.discard()  # what a training that failed may have left

    def where() -> str:
        rate_key = "planner.dpo_lr" if stage.name == "dpo" else "planner.lr"
        return f"in the planner's training ({stage.name}): lower {rate_key}"

    batches = -(-len(examples) // settings.batch_size)
    total, done, mean = stage.epochs * batches, 0, 0.0
    for _ in range(stage.epochs):
        mean = 0.0
        for batch in _batches(examples, settings.batch_size, draw):
            for group in optimizer.param_groups:
                # The warm-up's factor climbs to 1 within `warmup_steps`, the other falls to 0 at the end of the stage.
                group["lr"] = stage.lr * min(1.0, (done + 1) / (stage.warmup_steps + 1)) * (1 - done / total)
            loss = loss_of(planner, batch)
            updater.add(loss, loss.item(), where)
            updater.update(where)
            done += 1
            mean += loss.item() * len(batch) / len(examples)  # the last batch may be smaller
            report(stage.name, done, total, loss.item())
    return mean


def _batches(examples: Sequence[PlanExample], size: int, draw: random.Random) -> list[list[PlanExample]]:
    """Batches in random order; questions of like length are together, so that little of a batch is padding."""
    order = list(examples)
    draw.shuffle(order)  # sorting is stable: this decides which of equal length come together
    order.sort(key=lambda one: len(f"{one.question.goal} {one.question.history}"))
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    draw.shuffle(batches)
    return batches


def _pair_logps(planner: LocalPlanner, batch: Sequence[PlanExample]) -> tuple[Tensor, Tensor]:
    both = [(one.question, one.chosen) for one in batch] + [(one.question, one.rejected) for one in batch]
    sums, counts = plan_logps(planner, both)
    chosen, rejected = (sums / counts).split(len(batch))
    return chosen, rejected


def plan_logps(planner: LocalPlanner, rows: Iterable[tuple[PlanQuestion, str]]) -> tuple[Tensor, Tensor]:
    """Sum of the log-probabilities of each plan's tokens, its EOS included, and their number: two tensors (N,)."""
    # By the model's own forward pass, not by `fast_llm.row_logps`: a planner's head may scale or cap its logits.
    encoded = []
    for question, plan in rows:
        prompt = planner.encode(planner.prompt(question))
        encoded.append((prompt, planner.encode_plan(plan)))
    longest = max(len(prompt) + len(answer) for prompt, answer in encoded)
    # (N, L), padded on the right, where no real token of a causal model sees the pads: attention needs no mask.
    ids = torch.full((len(encoded), longest), planner.tokenizer.pad_id)
    wanted = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(encoded):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        wanted[row, len(prompt) : len(prompt) + len(answer)] = True
    ids, wanted = ids.to(planner.model.device), wanted.to(planner.model.device)
    told = wanted[:, 1:]  # (N, L - 1): position i predicts token i + 1
    columns = told.any(0).nonzero()[:, 0]  # (C,) of some row's plan: the logits of all others are never computed
    half = planner.model.get_base_model().dtype is torch.bfloat16  # then the adapter's products are, too
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=half):
        read = planner.model(input_ids=ids, use_cache=False, logits_to_keep=columns)
    # In float32 and only where a plan stands: (tokens of all plans, vocabulary) instead of (N, C, vocabulary).
    logits = read.logits[told[:, columns]].float()
    losses = functional.cross_entropy(logits, ids[:, 1:][told], reduction="none")
    sums = torch.zeros(told.shape, device=losses.device).masked_scatter(told, -losses).sum(1)
    return sums, told.sum(1)
