"""Teaches the language model of `student` to play by looks (setting (d)), with told instead of seen objects.

    python -m xrl_alignment.lab.pretraining.by_looks --games DIR … --official --out DIR --rounds 3 --batches 150

The language model and the vision encoder meet in the image tokens: query q of the Q-Former says which of its types
(`vision.LOOKS_FOR`) is in view, with the word vectors of these types, or with that of "nothing". So the language model
can learn before, and apart from, the encoder: here the engine says what is within reach, with errors like an encoder's
(types missed, types that are not there). No frame is rendered, and an episode takes milliseconds.

Each round is DAgger (Ross et al. 2011): games are played, by the explorer in the first round, four of five by the
student later; the explorer labels every state; the student learns from the states of all rounds. No rule of ours helps
it to play (`policy.skip_rejected`): so it meets the states that follow a rejected command. The texts are those of
`environment.name_by=type environment.tell_objects=false`, with the explorer's notes ("think: i see mug in/on desk 1"),
because an image shows the present only.

Tree of `--out`: `llm.safetensors` (the language model, Transformers' names), `states.jsonl` (prompt, types, label of
all rounds), `log.jsonl`. A second call continues with another round.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lavis.common.program import read_first, run_program


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="*", default=[], metavar="DIR", help="generated games")
    parser.add_argument("--official", action="store_true", help="ALFWorld's official training games, too")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-round", type=int, default=400, metavar="GAMES")
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--judge", type=int, default=0, metavar="GAMES", help="play these many of valid_seen at the end"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import torch
from torch import Tensor

from alfworld_native import make_environment
from alfworld_native.base import Game
from alfworld_native.drawing.ids import kind_of
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import find_games
from alfworld_native.language.commands import normalise
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.errors import ConfigError
from lavis.common.files import locked, make_folder, write_text
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.student import Question
from lavis.training import Updater
from xrl_alignment.agents.language.prompt import build_prompt, token_counter
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab.pretraining.descent import descend, rate_factor
from xrl_alignment.lab.pretraining.files import read_splits, write_weights
from xrl_alignment.lab.pretraining.vision import LOOKS_FOR, QUERY_OF, TYPES
from xrl_alignment.play.rollouts.play import Turn, ask_expert, play
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.runs.directory import cut_half_line

MISSED, IMAGINED = 0.1, 0.005  # how often a type in view is not named, one that is not there is
NOISE = 0.1  # share of the executed actions that are drawn at random if the explorer plays (DART, Laskey et al. 2017)
BATCH = 32
LEAK = 0.08  # the encoder's value of a type that it does not name lies within this of 0
TAKES = 2.0  # weight of states in which something is to be taken: a wrong `take` costs a step, a missed one the game


class State(NamedTuple):
    """What the student is asked, the types within reach, and what the explorer would do."""

    prompt: str
    types: tuple[int, ...]
    label: str


class ToldStudent(Blip2Emac):
    """A student that is told which types are in view: `Question.encoded` holds a value for each type, float (types,).

    `words` (types, H) and `nothing` (H,) are word vectors as they were before training: the projection of the encoder
    gives these, so they must not move.
    """

    words: Tensor
    nothing: Tensor

    def remember_words(self) -> None:
        """Take the word vectors as they are now."""
        embedding = self.llm_model.get_input_embeddings().weight
        assert isinstance(embedding, Tensor)
        ids = [self.llm_tokenizer.encode(f" {word}") for word in (*TYPES, "nothing")]
        assert all(len(found) == 1 for found in ids), "a type is not a single token"
        *words, self.nothing = embedding.detach()[torch.tensor(ids)[:, 0]].clone()
        self.words = torch.stack(words)

    def image_tokens(self, questions: Sequence[Question]) -> Tensor:
        """(N, Q, H): at query q the word "nothing", whose place its types' words w take by their values v.

        token q = nothing + sum over the types k of q of v_k (w_k - nothing). Without "nothing" a query that finds
        nothing would give a vector of nearly no length; the language model's first RMS norm makes every vector as long
        as any other, so it would read what is left of the types that are not there.
        """
        values = torch.stack([question.encoded for question in questions])  # (N, types)
        tokens = self.nothing.repeat(len(questions), len(LOOKS_FOR), 1)
        queries = torch.tensor([QUERY_OF[kind] for kind in TYPES])
        return tokens.index_add(1, queries, values[:, :, None] * (self.words - self.nothing))


def values_of(types: Sequence[int], rng: random.Random, *, exact: bool = False, sure: Sequence[int] = ()) -> Tensor:
    """What an encoder would say of `types` in view: a value for each type, near 1 if it names the type, else near 0.

    It makes errors unless it is `exact`, but does not miss what it is `sure` of.
    """
    values = [0.0] * len(TYPES)
    for kind in types:
        values[kind] = 1.0
    if not exact:
        for kind in range(len(TYPES)):
            if kind not in sure and rng.random() < (MISSED if values[kind] else IMAGINED):
                values[kind] = 1.0 - values[kind]
            values[kind] = rng.uniform(0.75, 1.15) if values[kind] else rng.uniform(-LEAK, LEAK)
    return torch.tensor(values)


def needs(label: str) -> tuple[int, ...]:
    """The types that have to be seen for `label` to be known: what is taken, used as a lamp, or noted as seen."""
    if not label.startswith(("take ", "use ", "think: i see")):
        return ()
    words = set(label.replace(",", " ").split())
    return tuple(number for number, kind in enumerate(TYPES) if kind in words)


def in_reach(environment: Any) -> tuple[int, ...]:
    """Types of what lies within the agent's reach, as indices into `TYPES`."""
    state = environment.room_state()
    kinds = {kind_of(state.names[key]) for key in state.in_reach() if key in state.names}
    return tuple(sorted(TYPES.index(kind) for kind in kinds if kind in QUERY_OF))


class Asked(NamedTuple):
    """A question to the student."""

    prompt: str
    values: Tensor


class Player:
    """Plays games with the student or the explorer, and has the explorer label every state."""

    def __init__(self, model: ToldStudent, seed: int, *, student: float, exact: bool = False):
        """`student`: share of the episodes that the student drives. `exact`: it is told what is in view, no error."""
        self.model, self.student, self.exact, self.seed = model, student, exact, seed
        self.count = token_counter(model.encode)
        self.states: list[State] = []
        self._environments: list[Any] = []

    def __call__(self, game: Game) -> Generator[Any, Any, Any]:
        """A rollout; its value is the episode."""
        rng = random.Random(f"{self.seed} {game.id}")
        environment = self._environments.pop() if self._environments else make_environment("native", name_by="type")
        expert, drives = Explorer(notes=True), rng.random() < self.student

        def agent(turn: Turn) -> Generator[Any, Any, str]:
            advice = yield from ask_expert(expert, turn)
            label = turn.episode.answer(advice.action, advice.thought)
            types = in_reach(environment)
            prompt = build_prompt(
                turn.episode.text, (), turn.episode.steps,
                budget=self.model.max_txt_len - 1, count=self.count, tell_objects=False,
            )  # fmt: skip
            if label is not None:
                self.states.append(State(prompt, types, label))
            if drives:
                return (yield Asked(prompt, values_of(types, rng, exact=self.exact)))
            return rng.choice(turn.now.admissible_commands) if rng.random() < NOISE else label or "look"

        episode = yield from play(environment, game, agent, expert=expert, thoughts=True)
        self._environments.append(environment)
        return episode

    def run(self, games: Sequence[Game], together: int = 64) -> list[Any]:
        """The episodes of `games`."""
        executor = SequentialExecutor(interleave=together)
        return [outcome.value for outcome in executor.run(self, games, answer=self.answer)]

    @torch.no_grad()
    def answer(self, asked: Sequence[Asked]) -> list[str]:
        """The student's actions."""
        return self.model.eval().act(
            [Question(one.prompt, (), encoded=one.values) for one in asked],
            normalise=normalise, num_beams=1, max_length=64, min_length=1, length_penalty=0,
            repetition_penalty=1.0,
        )  # fmt: skip


def learn(model: ToldStudent, states: Sequence[State], *, batches: int, lr: float, seed: int, newest: int = 0) -> float:
    """`batches` updates of cloning on `states`, of which the last `newest` count twice; the mean of the last losses."""
    rng = random.Random(seed)
    weights = [TAKES if state.label.startswith("take") else 1.0 for state in states]
    for i in range(len(states) - newest, len(states)):
        weights[i] *= 2
    trained = [parameter for parameter in model.llm_model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
    updater = Updater(optimizer, trained, max_norm=1.0)
    model.train()
    losses: list[float] = []
    for step in range(batches):
        # Warm-up over 20 batches, then linear to zero.
        batch = rng.choices(states, weights, k=BATCH)
        samples = {
            # The explorer knows what lies where. A label that names what the student does not see would teach to guess.
            "encoded": [values_of(state.types, rng, sure=needs(state.label)) for state in batch],
            "text_input": [state.prompt for state in batch],
            "text_output": [state.label for state in batch],
        }
        loss = model.losses(samples, "bc").loss
        descend(updater, loss, lr * rate_factor(step, 1 - step / batches, warm_up=20, decay=1.0))
        losses.append(loss.item())
        if step % 25 == 24:
            print(f"  batch {step + 1}, loss {sum(losses[-25:]) / 25:.3f}", flush=True)
    return sum(losses[-25:]) / len(losses[-25:])


def told_student(weights: str | Path | None = None) -> ToldStudent:
    """`student`, told what it would see; its language model from `weights` if given."""
    shipped, _ = load_student({"model_type": "student"}, torch.device("cpu"))
    assert isinstance(shipped, Blip2Emac)
    shipped.__class__ = ToldStudent  # the same weights with another `image_tokens`: nothing is built or copied twice
    assert isinstance(shipped, ToldStudent)
    shipped.remember_words()
    if weights is not None:
        from lavis.models.blip2_models.emac_weights import load_llm

        load_llm(shipped, str(weights))
    return shipped


def kept_states(path: Path, count: int) -> list[State]:
    """The first `count` states of the file, which is cut to them: a round that was killed is played again."""
    rows = path.read_text().splitlines(keepends=True) if path.exists() else []
    if len(rows) > count:
        rows = rows[:count]
        write_text(path, "".join(rows))
    states = [State(*json.loads(row)) for row in rows]
    return [state._replace(types=tuple(state.types)) for state in states]  # JSON gives lists


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    bound_kernel_cache()
    keep_freed_memory()
    out: Path = arguments.out
    make_folder(out.absolute())
    with locked(out / ".lock", out):
        train(arguments, out)


def train(arguments: argparse.Namespace, out: Path) -> None:
    """Play, learn and judge as asked; ConfigError if there are fewer games than a round needs."""
    log = out / "log.jsonl"
    cut_half_line(log)
    notes = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    rounds = [one for one in notes if "round" in one]
    done = len(rounds)
    model = told_student(out / "llm.safetensors" if done else None)
    states = kept_states(out / "states.jsonl", rounds[-1]["states"] if done else 0)
    games = [game for folder in arguments.games for game in find_games("household_train", data=folder)]
    games += find_games("train") if arguments.official else []
    needed = arguments.per_round * (2 if not done else 1) if arguments.rounds else 0
    if len(games) < needed:
        raise ConfigError(
            f"--games and --official give {len(games)} games, but the next round plays {needed} (the first one twice "
            "as many as --per-round): give more games, or a smaller --per-round"
        )

    def note(line: dict[str, Any]) -> None:
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    for number in range(done, done + arguments.rounds):
        began, seed = time.monotonic(), 1000 * arguments.seed + number
        player = Player(model, seed, student=0.0 if number == 0 else 0.8)
        episodes = player.run(random.Random(seed).sample(games, arguments.per_round * (2 if number == 0 else 1)))
        played = time.monotonic() - began
        states += player.states
        with (out / "states.jsonl").open("a") as file:
            file.writelines(json.dumps(state) + "\n" for state in player.states)
        loss = learn(
            model, states, batches=arguments.batches * (2 if number == 0 else 1),
            lr=arguments.lr * (1 if number == 0 else 0.6), seed=seed, newest=len(player.states) if number else 0,
        )  # fmt: skip
        write_weights(
            {key: value for key, value in model.llm_model.state_dict().items() if key != "lm_head.weight"},
            out / "llm.safetensors",
            read_splits(official=True),  # those of `student`, with which it began
        )
        won = sum(episode.won for episode in episodes) / len(episodes)
        note({"round": number, "won": round(won, 3), "states": len(states), "loss": round(loss, 3),
              "played_s": round(played), "seconds": round(time.monotonic() - began)})  # fmt: skip
    if arguments.judge:
        for exact in (True, False):
            judge = Player(model, 1, student=1.0, exact=exact)
            episodes = judge.run(find_games("valid_seen", num=arguments.judge, seed=0))
            note({"judged": len(episodes), "exact": exact, "won": sum(one.won for one in episodes) / len(episodes),
                  "steps": sum(one.actions for one in episodes) / len(episodes)})  # fmt: skip


if __name__ == "__main__":
    run_program(main)
