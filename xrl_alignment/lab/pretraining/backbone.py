"""Trains the tiny model's language model, the file `lavis/models/tiny/backbone.safetensors`, from nothing.

    python -m xrl_alignment.make_backbone --games DIR … --out lavis/models/tiny/backbone.safetensors --tokens 45

The real model's Vicuna was trained on text of all kinds before EMAC+ trains a projection in front of it. The tiny one
is trained on logs of generated household games, by skilled and by aimless players. Most are skilled (the explorer, with
some random wrong steps) and are marked with the word `solve`; the others wander about and have no goal. Without that
word the model continues like those who wander; the projection has to find, from the expert's labels alone, which
vectors in the image's positions make the model play to win.

In front of the text are `SLOTS` positions, where the projection's vectors will be: there the model learns to expect the
names of what is within reach, type and number added up in one vector, and the word. Some episodes are read whole. The
others give single moments, whose text does not say what lies where (`environment.tell_objects`), so that only those
names do; in some moments the answer has to list them. Noise on top keeps the model from relying on exact vectors.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lavis.common.program import read_first, run_program

SKILLED = 0.75  # share of the episodes
TOLD = 0.4  # share of the episodes that are read whole, their text telling what lies where
CAPTIONS = 0.4  # share of the moments with something to see that are put into words
FEEDBACK_WEIGHT = 0.3
MAX_TOKENS = 512  # of a row


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--games", required=True, nargs="+", metavar="DIR", help="generated games (environments.household)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    parser.add_argument("--tokens", type=float, default=45.0, metavar="MILLIONS", help="how much to read (45)")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--told", type=float, default=TOLD, help=f"share of episodes read whole ({TOLD})")
    parser.add_argument(
        "--captions", type=float, default=CAPTIONS, help=f"share of moments put into words ({CAPTIONS})"
    )
    parser.add_argument("--skilled", type=float, default=SKILLED, help=f"share of skilled episodes ({SKILLED})")
    weight = f"of the environment's tokens in the loss; actions count 1 ({FEEDBACK_WEIGHT})"
    parser.add_argument("--feedback", type=float, default=FEEDBACK_WEIGHT, help=weight)
    parser.add_argument("--renamed", type=float, default=0.0, help="share of whole episodes with exchanged objects (0)")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help=f"of an episode ({MAX_TOKENS})")
    parser.add_argument("--official", action="store_true", help="read ALFWorld's official training games, too")
    parser.add_argument("--start", metavar="FILE", help="continue from these weights")
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from alfworld_native.base import Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import find_games
from alfworld_native.household.alfworld_tables import tables
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import autocast
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.text import LlmTokenizer
from lavis.models.played import PlayedGames, games_of_weights
from lavis.training import Updater
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.language.prompt import build_prompt, opening
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab.pretraining.descent import descend, rate_factor
from xrl_alignment.lab.pretraining.files import read_splits, write_weights
from xrl_alignment.play.rollouts.play import Turn, ask_expert, play, without_questions

SLOTS = 32  # as many as the tiny model's queries
CALL = " solve"
MOMENTS = 3  # read of each episode that is not read whole
WITH_MEMORY = 0.15  # share of the rows that begin with a memory of a failed attempt
NOISE = (0.0, 0.0, 0.1, 0.3)  # how often a skilled player takes a wrong step
WANDER_STEPS = (8, 12, 18)
BATCH_TOKENS = 6000
POOL = 256  # episodes that are played at a time, their rows batched by length
WARMUP_STEPS = 200
DECAY_SHARE = 0.3  # of the tokens, the last ones, in which the rate falls to zero


class Step(NamedTuple):
    """`reach`: names of what was within reach before; `action` was done; `label` is what should have been done."""

    reach: list[str]
    action: str
    label: str
    feedback: str


@dataclass(frozen=True)
class Row:
    """A text as token ids; `targets[i]` is what should follow position i (-100: anything).

    `shown` are the objects in the image's positions, each a pair of token ids (type, number).
    """

    ids: list[int]
    targets: list[int]
    weights: list[float]
    shown: list[tuple[int, int]]
    skilled: bool


def names_in_reach(environment: NativeEnvironment) -> list[str]:
    """What the frame labels as within reach ("mug 1"), in no order."""
    state = environment.room_state()
    return [state.names[key] for key in state.in_reach() if key in state.names]


def wander(environment: NativeEnvironment, game: Game, rng: random.Random, limit: int) -> tuple[str, list[Step], bool]:
    """Play without a goal: look into what was not looked into, pick things up, put them anywhere."""
    reached: list[list[str]] = []
    tried: set[str] = set()

    def agent(turn: Turn) -> Generator[Any, Any, str]:
        yield from ()  # it asks nobody
        reached.append(names_in_reach(environment))
        commands, draw = turn.now.admissible_commands, rng.random()
        if draw < 0.03:
            action = rng.choice(("look", "inventory", "go to shelf 9", "take mug 1 from desk 1"))
        else:
            # Limits of the same draw: up to 0.35 it treats something if it can, up to 0.45 it takes something if it
            # can, …; below 0.1, and from 0.95 on, it does anything.
            action = ""
            for limit, verbs in (
                (0.35, ("clean ", "heat ", "cool ", "use ")),
                (0.45, ("take ",)),
                (0.50, ("put ",)),
                (0.70, ("open ",)),
                (0.95, ("go to ",)),
            ):
                some = [command for command in commands if command.startswith(verbs)]
                if verbs == ("go to ",):
                    some = [command for command in some if command not in tried]
                if some and 0.1 < draw < limit:
                    in_order = some[0].startswith("go to ") and rng.random() < 0.5
                    action = some[0] if in_order else rng.choice(some)
                    break
            action = action or rng.choice(commands)
        tried.add(action)
        return action

    episode = without_questions(play(environment, game, agent, max_steps=limit))
    steps = [Step(reach, done, done, heard) for reach, (done, heard) in zip(reached, episode.steps, strict=True)]
    return episode.text, steps, episode.won


def play_skilled(
    environment: NativeEnvironment, expert: Explorer, game: Game, rng: random.Random, noise: float
) -> tuple[str, list[Step]]:
    """Play as the explorer says, except for a share of wrong steps; after these the explorer says how to continue."""
    advised: list[tuple[list[str], str]] = []  # what was within reach, and the label

    def agent(turn: Turn) -> Generator[Any, Any, str]:
        label = (yield from ask_expert(expert, turn)).action or "look"
        advised.append((names_in_reach(environment), label))
        last = turn.episode.steps[-1][0] if turn.episode.steps else "look"
        if rng.random() >= noise:
            return label
        # A wrong step: an admissible command, or one that is rejected, most often the last one again.
        commands = turn.now.admissible_commands
        if rng.random() < 0.5:
            return rng.choice(commands)
        place = rng.choice([command.removeprefix("go to ") for command in commands if command.startswith("go to ")])
        thing = rng.choice(("mug 1", "apple 1", "book 1", "soapbar 1", "plate 1", "pen 2"))
        return rng.choice(
            (last, last, f"open {place}", f"examine {place}", f"take {thing} from {place}", f"use {thing}")
        )

    episode = without_questions(play(environment, game, agent, expert=expert))
    told = zip(advised, episode.steps, strict=True)
    return episode.text, [Step(reach, done, label, heard) for (reach, label), (done, heard) in told]


class RowWriter:
    """Plays games and writes them down as rows for `tokenizer` (Blip2Emac's)."""

    def __init__(
        self,
        tokenizer: LlmTokenizer,
        games: Sequence[Game],
        seed: int,
        *,
        told: float = TOLD,
        captions: float = CAPTIONS,
        skilled: float = SKILLED,
        renamed: float = 0.0,
        feedback: float = FEEDBACK_WEIGHT,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self.tokenizer = tokenizer
        self.games = games
        self.told = told
        self.captions = captions
        self.skilled = skilled
        self.renamed = renamed
        self.feedback = feedback
        self.max_tokens = max_tokens
        self.rng = random.Random(seed)
        self._environment = NativeEnvironment()
        self._expert = Explorer()
        self._reflector = RuleReflector()
        types = sorted({kind.lower() for kinds in tables()["may_hold"].values() for kind in kinds})
        # `rename` exchanges token by token, so it can exchange only types that are a single one.
        encoded = [tokenizer.encode(f" {kind}") for kind in types]
        self._movable = [ids[0] for ids in encoded if len(ids) == 1]

    def rows(self, number: int) -> list[Row]:
        """Play `number` episodes and write them, each as one row or as several moments."""
        return [row for _ in range(number) for row in self._rows(self.rng.choice(self.games))]

    def _rows(self, game: Game) -> list[Row]:
        memories: list[str] = []
        if self.rng.random() < WITH_MEMORY:  # of a failed attempt by a player without a goal
            text, steps, won = wander(self._environment, game, self.rng, 50)
            told = tuple((step.action, step.feedback) for step in steps)
            trace = EpisodeTrace(game.id, game.task_type, opening(text), told, won)
            memories = [] if won else [self._reflector.reflect(trace, ())]
        skilled = self.rng.random() < self.skilled
        if skilled:
            text, steps = play_skilled(self._environment, self._expert, game, self.rng, self.rng.choice(NOISE))
        else:
            text, steps, _ = wander(self._environment, game, self.rng, self.rng.choice(WANDER_STEPS))
        if self.rng.random() < self.told:
            row = self.episode(build_prompt(text, memories, ()), steps, skilled)
            return [self.rename(row) if self.rng.random() < self.renamed else row]
        # Moments in which there is something to see count three times.
        worth = [3 if step.reach else 1 for step in steps]
        rows = []
        for at in sorted(set(self.rng.choices(range(len(steps)), worth, k=MOMENTS))):
            listed = at > 0 and steps[at].reach and "you see" in steps[at - 1].feedback
            write = self.caption if listed and self.rng.random() < self.captions else self.moment
            rows.append(write(text, memories, steps[: at + 1], skilled))
        return rows

    def episode(self, prompt: str, steps: Sequence[Step], skilled: bool) -> Row:
        """All actions, and the feedback between them; the image, of one moment, adds nothing to the text."""
        encode, eos = self.tokenizer.encode, self.tokenizer.eos_id
        ids = [self.tokenizer.bos_id, *encode(prompt)]
        targets, weights = [*ids[1:], -100], [self.feedback] * len(ids)
        for step in steps:
            said, wanted = encode(step.action), [*encode(step.label), eos]
            start = len(ids) - 1  # the last position of the prompt predicts the action's first token
            # What to say is known as long as what was said agrees with it.
            agreed = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), len(said))
            known = wanted[: agreed + 1]
            targets[start:] = known + [-100] * (len(said) + 1 - len(known))
            weights[start:] = [1.0] * (len(said) + 1)
            answer = encode(f"\n{step.feedback}\n> ")
            ids += said + answer
            targets += [*answer[1:], -100]
            weights += [self.feedback] * len(answer)
        shown = self._shown(self.rng.choice(steps).reach) if self.rng.random() < 0.5 else []
        end = self.max_tokens
        return Row(ids[:end], targets[:end], weights[:end], shown, skilled)

    def rename(self, row: Row) -> Row:
        """`row`, its movable objects' types exchanged at random: every type is looked for, found and passed by.

        As some types are hardly ever a goal, the model would learn to find the usual ones, and not to compare names.
        """
        other = dict(zip(self._movable, self.rng.sample(self._movable, len(self._movable)), strict=True))
        return replace(
            row,
            ids=[other.get(id, id) for id in row.ids],
            targets=[other.get(id, id) for id in row.targets],
            shown=[(other.get(kind, kind), number) for kind, number in row.shown],
        )

    def moment(self, text: str, memories: Sequence[str], steps: Sequence[Step], skilled: bool) -> Row:
        """The last action alone, after a text that does not say what lies where; the image does."""
        encode, last = self.tokenizer.encode, steps[-1]
        told = [(step.action, step.feedback) for step in steps[:-1]]
        before = [self.tokenizer.bos_id, *encode(build_prompt(text, memories, told, tell_objects=False))]
        answer = [*encode(last.label), self.tokenizer.eos_id]
        # Cut at the beginning: the newest steps count. Only the answer is learned, and the prompt's last position
        # predicts its first token.
        before = before[-(self.max_tokens - len(answer)) :]
        ids, unread = before + answer[:-1], len(before) - 1
        return Row(
            ids, [-100] * unread + answer, [0.0] * unread + [1.0] * len(answer), self._shown(last.reach), skilled
        )

    def caption(self, text: str, memories: Sequence[str], steps: Sequence[Step], skilled: bool) -> Row:
        """What the image shows in words: the answer to the last action but one, which lists it; then the action."""
        encode, (shown, last) = self.tokenizer.encode, steps[-2:]
        told = [(step.action, step.feedback) for step in steps[:-2]]
        prompt = build_prompt(text, memories, told, tell_objects=False) + shown.action
        before = [self.tokenizer.bos_id, *encode(prompt)]
        answer = [*encode(f"\n{shown.feedback}\n> "), *encode(last.label), self.tokenizer.eos_id]
        before = before[-max(self.max_tokens - len(answer), 1) :]
        ids, unread = before + answer[:-1], len(before) - 1
        return Row(
            ids, [-100] * unread + answer, [0.0] * unread + [1.0] * len(answer), self._shown(last.reach), skilled
        )

    def _shown(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """Token ids of `names`, one object of each type (a query looks for one), in random order."""
        of_type = {name.split()[0]: name for name in self.rng.sample(names, len(names))}
        encoded = [tuple(self.tokenizer.encode(f" {name}")) for name in of_type.values()]
        return [pair for pair in encoded if len(pair) == 2][:SLOTS]


def batches(rows: Sequence[Row], rng: random.Random) -> list[list[Row]]:
    """Rows of like length together, about `BATCH_TOKENS` in a batch, batches in random order."""
    groups: list[list[Row]] = [[]]
    # Sorted, so that the newest row is the longest: a batch is as wide as that one, and so is its cost.
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups[-1] and (len(groups[-1]) + 1) * (len(row.ids) + SLOTS) > BATCH_TOKENS:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    return groups


def prefix(embedding: Tensor, call: int, rows: Sequence[Row], generator: torch.Generator) -> Tensor:
    """What stands before the text: (N, SLOTS, width), the names of what is shown, the call if skilled, noise.

    `embedding` (vocabulary, width), `call` a token id. Each name has a place of its own, anywhere; the call is added in
    some places or in all, stronger or weaker. Noise may be loud if nothing is shown, else names stay legible.
    """
    number, width = len(rows), embedding.shape[1]

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    # Noise: from a tenth of the usual size (root mean square of the word vectors) to `loudest`, evenly on a logarithmic
    # scale, in a share of the slots.
    usual = embedding.detach().pow(2).mean().sqrt().item()
    loudest = torch.tensor([0.6 * usual if row.shown else 1.0 for row in rows]).view(-1, 1, 1)
    strength = 0.1 * usual * (loudest / (0.1 * usual)) ** uniform(0, 1, number, 1, 1)
    filled = torch.rand(number, SLOTS, 1, generator=generator) < uniform(0, 1.5, number, 1, 1)
    noise = torch.randn(number, SLOTS, width, generator=generator) * strength * filled
    # Names: each in a slot of its own, as the sum of the vectors of its type and its number.
    names = torch.zeros(number, SLOTS, 2, dtype=torch.long)  # token ids
    loud = torch.zeros(number, SLOTS, 1)
    for row, (ids, loudness) in zip(rows, zip(names, loud, strict=True), strict=True):
        places = torch.randperm(SLOTS, generator=generator)[: len(row.shown)]
        ids[places] = torch.tensor(row.shown, dtype=torch.long).view(-1, 2)
        loudness[places] = uniform(0.7, 1.4, len(row.shown), 1)
    # The call: in all slots or in a share of them, in one at least, of a skilled player only.
    share = torch.where(torch.rand(number, generator=generator) < 0.5, 1.0, torch.rand(number, generator=generator))
    called = torch.rand(number, SLOTS, generator=generator) < share.view(-1, 1)
    called[:, 0] |= ~called.any(1)
    called &= torch.tensor([row.skilled for row in rows]).view(-1, 1)
    loud_call = called.unsqueeze(2) * uniform(0.5, 1.5, number, 1, 1)
    return noise + embedding[names].sum(2) * loud + embedding[call] * loud_call


def loss_of(llm: PreTrainedModel, call: int, rows: Sequence[Row], pad: int, generator: torch.Generator) -> Tensor:
    """Weighted mean cross-entropy of what follows, over all rows."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), longest), pad)  # (N, L); padded on the right, which causal attention never sees
    targets, weights = torch.full_like(ids, -100), torch.zeros(ids.shape)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        targets[i, : len(row.ids)] = torch.tensor(row.targets)
        weights[i, : len(row.ids)] = torch.tensor(row.weights)
    embed = llm.get_input_embeddings()
    assert isinstance(embed.weight, Tensor)
    with autocast(torch.device("cpu")):
        before = prefix(embed.weight, call, rows, generator)
        hidden = llm.model(inputs_embeds=torch.cat([before, embed(ids)], dim=1)).last_hidden_state[:, SLOTS:]
        scored = targets != -100
        logits = llm.lm_head(hidden[scored])  # (scored positions, vocabulary): only where something is to be said
    losses = functional.cross_entropy(logits.float(), targets[scored], reduction="none")
    return (losses * weights[scored]).sum() / weights[scored].sum()


def train(
    model: Blip2Emac, writer: RowWriter, *, tokens: int, lr: float, seed: int, out: Path, played: PlayedGames
) -> None:
    """Train `model.llm_model` on `tokens` tokens; prints a line and writes `out` after every pool of rows.

    `played` is what the file says of the games that it was trained on.
    """
    llm, tokenizer = model.llm_model.requires_grad_(True).train(), model.llm_tokenizer
    generator = torch.Generator().manual_seed(seed)
    (call,) = tokenizer.encode(CALL)
    optimizer = torch.optim.AdamW(llm.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.02)
    updater = Updater(optimizer, list(llm.parameters()), max_norm=1.0)
    started, step, read = time.monotonic(), 0, 0
    while read < tokens:
        losses = []
        for rows in batches(writer.rows(POOL), writer.rng):
            loss = loss_of(llm, call, rows, tokenizer.pad_id, generator)
            factor = rate_factor(step, 1 - read / tokens, warm_up=WARMUP_STEPS, decay=DECAY_SHARE)
            descend(updater, loss, lr * factor)
            losses.append(loss.item())
            read += sum(len(row.ids) for row in rows)
            step += 1
        # Under Transformers' names; the output layer is tied to the embedding.
        write_weights({k: v for k, v in llm.state_dict().items() if k != "lm_head.weight"}, out, played)
        minutes = (time.monotonic() - started) / 60
        print(
            f"{min(read / tokens, 1):4.0%}  step {step}, {read / 1e6:.1f} million tokens in {minutes:.1f} min, "
            f"{max(tokens - read, 0) / read * minutes:.1f} to go, loss {sum(losses) / len(losses):.3f}",
            flush=True,
        )


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    bound_kernel_cache()
    keep_freed_memory()
    options = {"llm_weights": arguments.start or "", "init_seed": arguments.seed, "freeze_llm": False}
    model, _ = load_student({"model_type": "tiny", **options}, torch.device("cpu"))
    assert isinstance(model, Blip2Emac)  # this command makes a part of it
    games = [game for folder in arguments.games for game in find_games("household_train", data=folder)]
    games += find_games("train") if arguments.official else []
    names = ("told", "captions", "skilled", "renamed", "feedback", "max_tokens")
    shares = {name: getattr(arguments, name) for name in names}
    writer = RowWriter(model.llm_tokenizer, games, arguments.seed, **shares)
    train(
        model, writer, tokens=round(arguments.tokens * 1e6), lr=arguments.lr, seed=arguments.seed, out=arguments.out,
        played=read_splits(official=arguments.official).merged(games_of_weights({"pretrained": arguments.start})),
    )  # fmt: skip


if __name__ == "__main__":
    run_program(main)
