"""Rows: labelled games as token sequences, every action of which is learned, and the loss of a batch of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from alfworld_native.drawing.frames import BLANK_FRAME, render
from lavis.common.devices import autocast
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.text import IGNORE
from xrl_alignment.agents.language.prompt import build_prompt, token_counter
from xrl_alignment.builders.student import ImageProcessor
from xrl_alignment.lab.pretraining.labelled import DRILL, SEARCHING, Record

MOMENTS = 3  # that a game gives whose text names no objects
OWN_MOMENTS = 12  # that a game gives which the student played so
LONGEST_UNTOLD = 60  # steps; longer games give none
SHORT = 0.12  # share of the games that are read from the middle on, with a short prompt
BUDGETS = (450, 1000)  # tokens of a prompt with which a row begins in the middle of a game
ROWS = 5  # of a game, at most
# Weights of the environment's tokens in the loss; actions count 1. An answer without a list repeats names of the
# action, so predicting it is to copy; what lies on a table nobody can predict.
LISTED_WEIGHT, REPEATED_WEIGHT = 0.02, 0.3


@dataclass(frozen=True)
class Row:
    """A text as token ids; `targets[i]` is what should follow position i (IGNORE: anything). `frame` stands before.

    `kind` names the row in the figures of progress: its level, and what is special about it.
    """

    kind: str
    ids: list[int]
    targets: list[int]
    weights: list[float]
    frame: np.ndarray


class RowWriter:
    """Writes records down as rows for `model`.

    `untold` is the share of the games with old names that give moments whose text names no objects.
    """

    def __init__(self, model: Blip2Emac, *, actions_only: bool = False, untold: float = 0.0) -> None:
        self.tokenizer = model.llm_tokenizer
        # Whether the environment's tokens are read and not learned: most of the loss's cost is the output layer.
        self.actions_only = actions_only
        self.untold = untold
        # Where the blank of the cue "> " stands: in the answer's first token, or in the prompt (`encode_output`).
        joins = self.tokenizer.joins_blank
        self.before_action, self.cue = (" ", ">") if joins else ("", "> ")
        self.limit = model.max_txt_len  # tokens of a prompt, BOS included
        self.count = token_counter(self.tokenizer.encode)

    def rows(self, record: Record, draw: random.Random) -> list[Row]:
        """Rows of the whole game, and of moments in which the image alone shows what lies where.

        Of a game that the student played without being told, moments alone.
        """
        if record.untold:
            chosen = draw.sample(range(len(record.steps)), min(OWN_MOMENTS, len(record.steps)))
            return [self.moment(record, at) for at in chosen]
        rows, at = [], 0
        if draw.random() < SHORT and len(record.steps) > 2:
            at = draw.randrange(1, len(record.steps))
        while at < len(record.steps):
            row, at = self.stretch(record, at, draw)
            rows.append(row)
        rows = draw.sample(rows, min(ROWS, len(rows)))
        if not record.renamed and len(record.steps) <= LONGEST_UNTOLD and draw.random() < self.untold:
            rows += [self.moment(record, at) for at in draw.choices(range(len(record.steps)), k=MOMENTS)]
        return rows

    def stretch(self, record: Record, start: int, draw: random.Random) -> tuple[Row, int]:
        """The steps from `start` on, as far as a prompt reaches, and the number of the step behind them."""
        encode, eos = self.tokenizer.encode, self.tokenizer.eos_id
        told = [(step.action, step.feedback) for step in record.steps]
        budget = draw.randint(*BUDGETS) if start else self.limit - 1
        prompt = build_prompt(record.text, record.memories, told[:start], budget=budget, count=self.count)
        ids = [self.tokenizer.bos_id, *encode(prompt.removesuffix(self.before_action))][-self.limit :]
        listed = 0.0 if self.actions_only else LISTED_WEIGHT
        targets, weights = [*ids[1:], IGNORE], [listed] * len(ids)
        at = start
        while at < len(record.steps) and (at == start or len(ids) <= self.limit):
            step = record.steps[at]
            said = encode(self.before_action + step.action)
            wanted = encode(self.before_action + step.label.rstrip())
            if step.label != SEARCHING:
                wanted.append(eos)
            begin = len(ids) - 1  # the last position of the prompt predicts the action's first token
            # What to say is known as long as what was said agrees with it.
            agreed = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), len(said))
            known = wanted[: agreed + 1]
            targets[begin:] = known + [IGNORE] * (len(said) + 1 - len(known))
            weights[begin:] = [1.0] * (len(said) + 1)
            answer = encode(f"\n{step.feedback}\n{self.cue}")
            ids += said + answer
            targets += [*answer[1:], IGNORE]
            repeated = REPEATED_WEIGHT if record.source != DRILL else 1.0
            if self.actions_only:
                repeated = 0.0
            weights += [listed if "you see" in step.feedback else repeated] * len(answer)
            at += 1
        shown, which = draw.choice(record.steps[start:at]).state, draw.random()
        frame = BLANK_FRAME if shown is None or which < 0.4 else render(shown, show_ids=which < 0.7)
        kind = record.source + (", new names" if record.renamed else "")
        return Row(kind, ids, targets, weights, frame), at

    def moment(self, record: Record, at: int) -> Row:
        """One action, after a text that does not say what lies where; the image does."""
        encode, step = self.tokenizer.encode, record.steps[at]
        told = [(each.action, each.feedback) for each in record.steps[:at]]
        prompt = build_prompt(
            record.text, record.memories, told, budget=self.limit - 1, count=self.count, tell_objects=False
        )
        before = [self.tokenizer.bos_id, *encode(prompt.removesuffix(self.before_action))][-self.limit :]
        answer = [*encode(self.before_action + step.label), self.tokenizer.eos_id]
        unread = len(before) - 1
        targets = [IGNORE] * unread + answer
        weights = [0.0] * unread + [1.0] * len(answer)
        assert step.state is not None  # of a game
        return Row("untold", before + answer[:-1], targets, weights, render(step.state))


def batches(rows: Sequence[Row], draw: random.Random, tokens: int) -> list[list[Row]]:
    """Rows of like length together, about `tokens` in a batch, batches in random order."""
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > tokens:
            groups.append([])
        groups[-1].append(row)
    draw.shuffle(groups)
    return [group for group in groups if group]


def loss_of(model: Blip2Emac, vis_processor: ImageProcessor, rows: Sequence[Row]) -> tuple[Tensor, list[float]]:
    """Weighted mean cross-entropy of what follows, over all rows; and each row's, of its actions' tokens alone."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.full(
        (len(rows), longest), model.llm_tokenizer.pad_id
    )  # (N, L); pads right, causal attention ends before
    targets, weights = torch.full_like(ids, IGNORE), torch.zeros(ids.shape)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        targets[i, : len(row.ids)] = torch.tensor(row.targets)
        weights[i, : len(row.ids)] = torch.tensor(row.weights)
    llm = model.llm_model
    with autocast(torch.device("cpu")):
        with torch.no_grad():
            images = torch.stack([vis_processor(row.frame) for row in rows])
            queries = model.vision.encode_queries(images, [""] * len(rows))  # (N, Q, width of the Q-Former)
        before = model.llm_proj(queries)  # (N, Q, H)
        embeds = torch.cat([before, llm.get_input_embeddings()(ids)], dim=1)
        hidden = llm.model(inputs_embeds=embeds).last_hidden_state[:, before.shape[1] :]
        scored = (targets != IGNORE) & (weights > 0)
        logits = llm.lm_head(hidden[scored])  # (scored positions, vocabulary)
    losses = functional.cross_entropy(logits.float(), targets[scored], reduction="none")
    of_rows = torch.zeros(2, len(rows))  # sum of the losses of actions' tokens, and their number
    action, number = weights[scored] == 1, scored.nonzero()[:, 0]
    of_rows[0].index_add_(0, number[action], losses.detach()[action])
    of_rows[1].index_add_(0, number[action], torch.ones(int(action.sum())))
    return (losses * weights[scored]).sum() / weights[scored].sum(), (of_rows[0] / of_rows[1]).tolist()
