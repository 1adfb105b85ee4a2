"""The loop: rounds in which the agent plays by the planner's plans, then learns from them, then the planner does.

    <folder>/
        config.yaml                      the settings
        evaluations/planner_before.json  one file for each evaluation
        round_000/game_0000.json         one file for each game: result, plans with triggers, reports and corrections
        buffer/round000_env0000_….h5     the agent's training data: one shard for each game, `planner` says whose plans
        agent_000.pth                    the agent's weights after the round
        adapters/round_000/              the planner's adapter after the round
        summary.json                     all evaluations

Each of these appears when it is whole. A loop that was killed goes through the same steps again and does only those
whose files are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from alfworld_native import engine_name
from alfworld_native.base import Environment, Game
from lavis.common.files import make_folder, read_json, remove_temporaries, write_json
from lavis.common.progress import Bar
from lavis.datasets.shards import ShardFolder
from lavis.models.played import PlayedGames
from xrl_alignment.agents.language.plain import plain_texts
from xrl_alignment.common.progress import GameProgress
from xrl_alignment.dagger.learner import TrainingMetrics
from xrl_alignment.planning.agent import LearningAgent
from xrl_alignment.planning.figures import figures
from xrl_alignment.planning.planners.base import Planner
from xrl_alignment.planning.planners.endpoint import EndpointPlanner
from xrl_alignment.planning.planners.learning import PlanExample, examples_of, train_planner
from xrl_alignment.planning.planners.local import LocalPlanner
from xrl_alignment.planning.player import Answerer, PlannedGame, PlanningPlayer, PlanSettings
from xrl_alignment.play.rollouts.base import JobOutcome
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.runs.transitions import write_episode
from xrl_alignment.settings.planning import EmacPlusConfig

START = "agent_start.pth"  # the agent's checkpoint before its first round, if none is of cloning


class TrainingCost(NamedTuple):
    """Tokens that the planner read and wrote while games were played for training, and how often it was asked.

    `calls_each_step` is how often it would have been asked in the same games for a plan before every action.
    """

    tokens: int
    calls: int
    calls_each_step: int


class Loop:
    """Plays, learns and evaluates in `folder`, as `config` says.

    `trainer` is the language model whose adapter is trained. If the planner itself runs in this process, the two are
    the same; a planner behind an endpoint gets each adapter from the `trainer`, which has the same base. Without a
    `trainer`, or with `planner.learn=false`, the planner does not learn.
    """

    def __init__(
        self,
        folder: Path,
        config: EmacPlusConfig,
        *,
        planner: Planner,
        trainer: LocalPlanner | None,
        agent: LearningAgent,
        make_environment: Callable[[], Environment],
    ) -> None:
        self.folder = folder
        self.config = config
        self.plans = PlanSettings(
            rules=config.planner,
            report_severity=config.environment.report_severity,
            max_steps=config.run.max_steps,
            blank_frames=config.environment.blank_frames,
            tell_objects=config.environment.tell_objects,
            by_type=config.environment.name_by == "type",
            repeat_limit=config.run.repeat_limit,
            seed=config.run.seed,
        )
        self.planner = planner
        self.trainer = trainer if config.planner.learn else None
        self.agent = agent
        self.make_environment = make_environment
        make_folder(folder / "buffer")
        for written in (folder, folder / "buffer", folder / "evaluations", *folder.glob("round_*")):
            remove_temporaries(written)  # of a killed loop

    def close(self) -> None:
        """Close planner and policy."""
        self.planner.close()
        self.agent.policy.close()

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def run(self, games: Sequence[Game]) -> None:
        """All rounds, each with the next `run.num_envs` of `games` (from the first again after the last)."""
        # Each of the three steps finds in the folder whether it is done already. With `skip_solved` a game keeps its
        # place in the order, and is not played again; a round in which nothing is left to play teaches nothing new.
        number = self.config.run.num_envs
        if not self.config.run.bc_rounds and not (start := self.folder / START).exists():
            self.agent.save(start, 0, PlayedGames())  # DPO's reference
        for round in range(self.config.run.num_rounds):
            chosen = [games[i % len(games)] for i in range(round * number, (round + 1) * number)]
            if self.config.run.skip_solved:
                # Won by the agent itself in an earlier round: a game in which the plan's commands were executed in its
                # place says nothing of what it can do.
                won = [record for record in self._records(round) if record["result"]["won"]]
                solved = {record["result"]["game"] for record in won if not record["assisted"]}
                chosen = [game for game in chosen if game.id not in solved]
            self._collect(round, chosen)  # -> round_<n>/ and buffer/
            self._train_agent(round)  # -> agent_<n>.pth
            if self.trainer is not None:
                self._train_planner(round, self.trainer)  # -> adapters/round_<n>/

    def _collect(self, round: int, games: Sequence[Game]) -> None:
        """Play the games of a round that have no record yet."""
        missing = [i for i in range(len(games)) if not self._record(round, i).exists()]
        if not missing:
            return
        run = self.config.run
        player = PlanningPlayer(
            self.make_environment,
            replace(self.plans, seed=self.plans.seed + round),  # a game that comes again has other draws
            agent=True,
            write_prompt=self.agent.write_prompt,
            beta=run.beta[min(round, len(run.beta) - 1)],  # the last one holds for all later rounds
            store=True,
            preferences=run.preferences(round),
            count=self.planner.count,
        )
        answer = self._answerer(draw=round)
        with GameProgress(len(missing)) as bar, SequentialExecutor(run.max_batch) as own:
            bar.say(f"round {round + 1} of {run.num_rounds}: the agent plays {len(missing)} games")

            def keep(outcome: JobOutcome) -> None:
                played: PlannedGame = outcome.value
                i = missing[outcome.number]
                if played.transitions:
                    facts = {"game": played.result.game, "won": played.result.won, "planner": self.planner.identity}
                    write_episode(self.folder / "buffer", round, i, played.transitions, facts)
                # The record comes after the shard: a game counts as played once its record is there.
                write_json(self._record(round, i), played.record())
                bar.advance(played.result.won)

            # Kept as soon as it has ended, not in its turn: a long game would hold back all that end before it.
            for _ in own.run(player, [games[i] for i in missing], answer=answer, on_end=keep):
                pass

    def _train_agent(self, round: int) -> None:
        """Train the agent on all rounds so far, unless its checkpoint is there, and take that checkpoint's weights."""
        checkpoint = self.folder / f"agent_{round:03d}.pth"
        if not checkpoint.exists():
            run = self.config.run
            # DPO's reference: the policy after the last round of cloning, or that with which the loop began.
            reference = self.folder / (f"agent_{run.bc_rounds - 1:03d}.pth" if run.bc_rounds else START)
            games = tuple(sorted(ShardFolder(self.folder / "buffer").games()))
            with Bar("batches") as bar:
                if not games:
                    bar.say("the agent has nothing to learn from: no game so far had a plan that it could follow")

                def show(metrics: TrainingMetrics, batches: int) -> None:
                    bar.show(metrics.step + 1, batches, f"the agent learns, loss {metrics.loss:.3f}")

                self.agent.learn(run, round, self.folder / "buffer", reference, show)
            where = f"{engine_name(self.config.environment.name)} {self.config.environment.split}"
            self.agent.save(checkpoint, round, PlayedGames(games, (where,)))
        self.agent.restore(checkpoint)  # whether it was just made or before: the same weights

    def _train_planner(self, round: int, trainer: LocalPlanner) -> None:
        """Train the adapter on all rounds so far, unless it is there, load it, and hand it to an endpoint."""
        folder = self.folder / "adapters" / f"round_{round:03d}"
        if not folder.exists():
            examples = self.examples(round)
            with Bar("updates") as bar:

                def show(stage: str, done: int, total: int, loss: float) -> None:
                    bar.show(done, total, f"the planner learns ({stage}), loss {loss:.3f}")

                run = self.config.run
                # Another seed each round: with one seed for all, every round would draw its batches in the same order.
                losses = train_planner(
                    trainer, examples, self.config.planner, beta=run.dpo_beta, seed=run.seed + round, report=show
                )
            facts = {"round": round, "examples": len(examples), "losses": losses}
            trainer.save_adapter(folder, facts)
        trainer.load_adapter(folder)
        if isinstance(self.planner, EndpointPlanner):
            name = f"planner-{round:03d}-{trainer.identity}"
            self.planner.use_adapter(name, folder, self.config.planner.handover)

    def examples(self, round: int) -> list[PlanExample]:
        """What the planner learns from after `round`: the plans of all rounds so far."""
        found: list[PlanExample] = []
        rules = self.config.planner
        for record in self._records(round + 1):
            found += examples_of(plain_texts(record), targets=rules.targets, learn_feedback=rules.learn_feedback)
        return found

    def training_cost(self) -> TrainingCost:
        """What the planner cost in all rounds so far."""
        tokens = calls = each_step = 0
        for record in self._records(self.config.run.num_rounds):
            plans, judgements = record["calls"], record.get("feedbacks", ())
            tokens += sum(call["tokens"] for call in [*plans, *judgements])
            calls += len(plans) + len(judgements)
            # A plan that is made anew before every action is not judged any more.
            each_step += record["result"]["actions"]
        return TrainingCost(tokens, calls, each_step)

    def _answerer(self, draw: int) -> Answerer:
        """Answers by the planner and the agent; an endpoint with a temperature has other plans for each `draw`."""
        if isinstance(self.planner, EndpointPlanner):
            self.planner.endpoint.draw = draw
        return Answerer(self.planner, self.agent.policy, self.agent.describe)

    def _record(self, round: int, number: int) -> Path:
        return self.folder / f"round_{round:03d}" / f"game_{number:04d}.json"

    def _records(self, rounds: int) -> Iterator[dict[str, Any]]:
        """The records of all games that were played in the first `rounds` rounds."""
        # Sorted: a folder lists its files in any order, and training draws examples by their places.
        for path in sorted(self.folder.glob("round_*/game_*.json")):
            if int(path.parent.name.removeprefix("round_")) < rounds:
                yield read_json(path)

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        name: str,
        games: Sequence[Game],
        *,
        agent: bool,
        make_environment: Callable[[], Environment] | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """The figures of `name`: the agent plays by the plans, or the planner alone (the controller carries them out).

        `changes` replace fields of `plans`. Figures that are on disk are read from there. The file also holds every
        game's result, as `evaluate.py` writes them (`episodes`): loops are compared game by game (`lab/loops.py`).
        """
        path = self.folder / "evaluations" / f"{name}.json"
        if not path.exists():
            plans = replace(self.plans, **changes)
            player = PlanningPlayer(
                make_environment or self.make_environment,
                plans,
                agent=agent,
                write_prompt=self.agent.write_prompt,
                count=self.planner.count,
            )
            answer = self._answerer(draw=0)
            played = []
            with GameProgress(len(games)) as bar, SequentialExecutor(self.config.run.max_batch) as own:
                bar.say(f"{name}: {len(games)} games")
                for outcome in own.run(player, list(games), answer=answer):
                    played.append(outcome.value)
                    bar.advance(outcome.value.result.won)
            write_json(path, figures(played) | {"episodes": [[asdict(one.result) for one in played]]})
        # From the file also if it was just written: a loop that goes on returns the same containers (lists, no tuples).
        return {key: value for key, value in read_json(path).items() if key != "episodes"}
