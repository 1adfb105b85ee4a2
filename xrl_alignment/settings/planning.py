"""The settings of EMAC+'s loop (`configs/emac_plus/`), as dataclasses with help and rules beside each field."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from lavis.common.errors import ConfigError
from xrl_alignment.settings.checks import (
    ABOVE_ZERO,
    DEVICE,
    SEED,
    at_least,
    between,
    check,
    check_has_effect,
    list_of,
    named,
    one_of,
)
from xrl_alignment.settings.endpoint import EndpointConfig
from xrl_alignment.settings.environment import SEVERITY
from xrl_alignment.settings.fields import Section, setting
from xrl_alignment.settings.schema import LEARN_FROM, PROBABILITIES, REPEATS, EnvironmentConfig, PolicyConfig

ABLATIONS = (
    "no_replanning",
    "no_reports",
    "report_text",
    "report_image",
    "report_both",
    "no_planner_learning",
    "no_dpo",
    "no_feedback",
    "cross_entropy",
    "step_teacher",
)
SWITCHES = ABLATIONS[:5]  # what can be changed without training anew
PLANNERS = ("local", "endpoint", "explorer")
HANDOVERS = ("vllm", "folder", "none")
REPORTS = ("text", "image", "both", "none")
FEEDBACKS = ("rules", "questions")
TARGETS = ("corrections", "hindsight")


@dataclass(frozen=True)
class AgentTraining(Section, section="run"):
    """How the agent is trained after a round: BC for the first `bc_rounds` of `num_rounds`, then DPO."""

    num_rounds: int = setting(4, "rounds: the agent plays, then the agent learns, then the planner", at_least(1))
    bc_rounds: int = setting(
        3, "the first rounds, after which the agent learns by BC; after the others by DPO", at_least(0)
    )
    updates: int = setting(120, "updates of the agent after each round", at_least(0))
    epochs: int = setting(
        0, "passes over the stored transitions after each round, in place of `updates`; 0: `updates` count", at_least(0)
    )
    batch_size: int = setting(32, "transitions in a batch", at_least(1))
    init_lr: float = setting(2e-3, "learning rate of BC", at_least(0))
    dpo_lr: float = setting(1e-4, "learning rate of DPO", at_least(0))
    learn_from: str = setting(
        "all",
        "which transitions DPO draws: `all`, as the original, or only `disagreements`, in which the label is not the "
        "agent's own action; if there are few, each is drawn often, and the agent may forget what it does right",
        one_of(*LEARN_FROM),
    )
    warmup_steps: int = setting(10, "batches of linear warm-up", at_least(0))
    weight_decay: float = setting(0.0, "weight decay of AdamW", at_least(0))
    seed: int = setting(42, "seed of everything random in the loop", SEED)

    def check_combinations(self) -> None:
        """No more rounds of BC than there are."""
        rule = f"at most run.num_rounds ({self.num_rounds})"
        check("run.bc_rounds", self.bc_rounds, self.bc_rounds <= self.num_rounds, rule)

    def preferences(self, round: int) -> bool:
        """Whether the agent learns by DPO in this round."""
        return round >= self.bc_rounds


@dataclass(frozen=True)
class LoopRunConfig(AgentTraining):
    """Rounds, what is learned from them, and what is evaluated."""

    # What is played in a round, and in an evaluation.
    num_envs: int = setting(60, "games of a round", at_least(1))
    num_train_games: int = setting(
        0, "games from which the rounds take theirs in turn; 0: `num_envs` × `num_rounds` different ones", at_least(0)
    )
    skip_solved: bool = setting(
        False, "play no game again that the agent has won by itself; EMAC+ and EMMA do so, and add up over the trials"
    )
    num_eval: int = setting(60, "games of an evaluation", at_least(1))
    eval_split: str = setting("household_heldout", "split of the evaluation's games", named("a split's name"))
    valid_seen: bool = setting(
        False, "evaluate the result on ALFWorld's official `valid_seen` games, too", may_change=True
    )
    # What is measured besides; a resume may add to it.
    ablations: list[str] = setting(
        [],
        "loops to run besides, each with one thing switched off or changed: " + ", ".join(f"`{n}`" for n in ABLATIONS),
        list_of(f"names among {', '.join(ABLATIONS)}", lambda name: name in ABLATIONS),
        may_change=True,
    )
    switches: list[str] = setting(
        [],
        "changes under which the result is evaluated, nothing trained anew: "
        + ", ".join(f"`{name}`" for name in SWITCHES),
        list_of("switches", lambda name: name in SWITCHES),
        may_change=True,
    )
    robustness: bool = setting(
        False,
        "evaluate the result at severities 0 to 4 of `environment.image_noise`, with and without replanning, and "
        "planner and agent at rates of 0.05, 0.1, 0.2 and 0.4 of `environment.text_noise`",
        may_change=True,
    )
    report_noise: bool = setting(False, "evaluate the result at report noise of severity 1 to 4, too", may_change=True)
    # How the agent is trained, and where.
    beta: list[float] = setting(
        [1.0, 0.3, 0.0],
        "for each round, the probability that the command that the plan asks for is executed, not the agent's own "
        "(β_i of DAgger); the last value repeats",
        PROBABILITIES,
    )
    dpo_beta: float = setting(0.1, "temperature of DPO's implicit reward, of the agent and of the planner", ABOVE_ZERO)
    output_dir: str = setting(
        "output/emac_plus/loop",
        "folder of the loop; where it exists, one with a number is made instead",
        named("a folder's path"),
        may_change=True,
    )
    max_steps: int = setting(50, "steps after which an episode ends", at_least(1))
    repeat_limit: int = setting(
        5,
        "the same action of the agent this often in a row ends its game as stuck, in training and in evaluations; 0: "
        "never",
        REPEATS,
    )
    device: str = setting("auto", "where the models run; `auto` takes a GPU if there is one", DEVICE, may_change=True)
    max_batch: int = setting(32, "games that are played at once", at_least(1))
    num_threads: int = setting(0, "threads of torch; 0 leaves the number to torch", between(0, 1024), may_change=True)


@dataclass(frozen=True)
class PlannedEnvironmentConfig(EnvironmentConfig):
    """As in all programs; beside them the noise on what the planner is told."""

    report_severity: int = setting(
        0, "strength of the noise on reports: 5, 10, 20, 40 % of the words are lost; 0: none", SEVERITY
    )


@dataclass(frozen=True)
class PlanRules(Section, section="planner"):
    """What the planner is told, and when it is asked again: `replan_<trigger>` switches each trigger on."""

    # What the planner is told.
    report: str = setting(
        "text",
        "what the planner is told after an action: the engine's words, the agent's description of its image, both, or "
        "nothing",
        one_of(*REPORTS),
    )
    feedback: str = setting(
        "rules",
        "who says that a plan has failed: the triggers below (`rules`, ours), or the planner itself, which is asked "
        "after each of the plan's actions whether it was executed, and whether the plan can solve the task "
        "(`questions`: EMAC+'s retrospective feedback; the triggers `replan_exhausted` and `replan_every` stay, and "
        "`replan_rejected` for a plan that ends in words that are no action)",
        one_of(*FEEDBACKS),
    )
    memory: int = setting(
        3, "with `feedback=questions`: the planner's newest feedbacks that it reads, at most", between(0, 3)
    )
    # The triggers, each of which can be switched off: the ablations of docs/emac_plus.md.
    replan_rejected: bool = setting(True, "plan again when an action is rejected, or the plan has one that is none")
    replan_not_found: bool = setting(True, "plan again when something was not found where it was expected")
    replan_seen: bool = setting(True, "plan again when what the plan searches for has come into view elsewhere")
    replan_exhausted: bool = setting(True, "plan again when the plan is used up and the game not won")
    replan_every: int = setting(0, "plan again after so many steps; 0: never for this reason", at_least(0))
    max_replans: int = setting(
        15, "plans besides the first of an episode, at most; then the rest of the last one is followed", at_least(0)
    )


@dataclass(frozen=True)
class PlannerTraining(Section, section="planner"):
    """How the planner is trained after a round: passes over the examples, supervised and with DPO."""

    # Supervised passes, then DPO, over the plans of played games (`planners.learning`).
    epochs: int = setting(3, "supervised passes over the plans of all rounds so far", at_least(0))
    dpo_epochs: int = setting(1, "passes of DPO over the failed plans and their corrections", at_least(0))
    targets: str = setting(
        "corrections",
        "which plans are learned, and DPO's chosen ones: own ones that were carried out to a win, else the explorer's "
        "(`corrections`); "
        "or, in games that were won, what was carried out from the plan on (`hindsight`: the corrected sequence of "
        "EMAC+'s eq. 3, for which no expert is needed)",
        one_of(*TARGETS),
    )
    learn_feedback: bool = setting(
        False,
        "with `feedback=questions`: the supervised passes learn the true answers to both, too (ours)",
    )
    # The optimiser: AdamW without weight decay (`planners.learning`).
    warmup_steps: int = setting(0, "updates of linear warm-up of the supervised passes", at_least(0))
    lr: float = setting(2e-3, "learning rate of the supervised passes", at_least(0))
    dpo_lr: float = setting(2e-4, "learning rate of DPO", at_least(0))
    batch_size: int = setting(16, "plans in a batch", at_least(1))
    max_examples: int = setting(4000, "plans that are learned from, the newest", at_least(1))
    max_pairs: int = setting(4000, "failed plans that DPO reads, the newest of these", at_least(1))


@dataclass(frozen=True)
class PlannerConfig(EndpointConfig, PlannerTraining, PlanRules):
    """Who plans, when it is asked again, what it is told, how it learns; from `api` on: how an endpoint is asked."""

    name: str = setting(
        "local",
        "a causal language model in this process (`local`), one behind an endpoint with OpenAI's interface "
        "(`endpoint`), or the explorer, which is what the others can reach at best",
        one_of(*PLANNERS),
    )
    model: str = setting(
        "tiny",
        "`local`: the demo's language model (`tiny`), the same after it has read plans, bad ones (`tiny_planner`), or "
        "a folder or hub id; `endpoint`: the name that it serves",
    )
    trainer: str = setting(
        "", "`endpoint`: folder of the same language model, which is trained in this process; empty: no learning"
    )
    handover: str = setting(
        "none",
        "`endpoint`: how the server gets a tuned adapter: vLLM loads it while it runs (`vllm`), it is asked by its "
        "folder (`folder`, for `transformers serve`), or only by its name (`none`)",
        one_of(*HANDOVERS),
    )
    examples: str = setting("", "file with worked examples that stand before each question; empty: none")
    learn: bool = setting(True, "the planner learns after each round; without it only the agent does")
    lora_rank: int = setting(16, "rank of the planner's adapter", at_least(1))
    lora_alpha: int = setting(32, "its scale is `lora_alpha / lora_rank`", at_least(1))
    lora_targets: list[str] = setting(
        [],
        "linear layers of the planner that get an adapter, by the end of their names (`[q_proj, v_proj]`); empty: all",
        list_of("names of layers", lambda name: bool(name)),
    )
    context_tokens: int = setting(1024, "the model's context: tokens of prompt and plan together", at_least(2))
    max_answer_tokens: int = setting(64, "tokens of a plan, at most", at_least(1))
    grounded: bool = setting(
        False,
        "`local`: decode under a grammar, ours: known actions, places of the room, searches only where the agent has "
        "not looked yet, numbers only of things that were reported, and no plan again that has failed in this game",
    )
    kept_prompts_mib: int = setting(
        0,
        "`local`: memory for keys and values of prompts, so that a plan's call reads only what is new in its prompt (a "
        "plain Llama on a CPU; MiB; 0: none)",
        at_least(0),
        may_change=True,
    )
    base_url: str = setting("", "`endpoint`: its address; empty: OpenAI's own", may_change=True)
    cache: str = setting(
        "",
        "`endpoint`: file in which answers are kept; empty: `planner_answers.sqlite` in the run's folder",
        may_change=True,
    )

    def check_combinations(self) -> None:
        """What needs an endpoint, its trainer, this process or questions has them; the explorer reads text."""
        super().check_combinations()
        rule = f"less than planner.context_tokens ({self.context_tokens}), which the prompt shares with the answer"
        check("planner.max_answer_tokens", self.max_answer_tokens, self.max_answer_tokens < self.context_tokens, rule)
        asked = {entry.name: entry.default for entry in fields(EndpointConfig) if entry.name != "model"}
        for key, default in {**asked, "trainer": "", "handover": "none", "cache": ""}.items():
            given = getattr(self, key)
            valid = given == default or self.name == "endpoint"
            check_has_effect(f"planner.{key}", given, valid, "planner.name=endpoint")
        valid = not self.grounded or self.name == "local"
        check_has_effect("planner.grounded", self.grounded, valid, "planner.name=local")
        valid = not self.kept_prompts_mib or self.name == "local"
        check_has_effect("planner.kept_prompts_mib", self.kept_prompts_mib, valid, "planner.name=local")
        for name in ("replan_not_found", "replan_seen"):
            valid = getattr(self, name) or self.feedback == "rules"
            check_has_effect(f"planner.{name}", getattr(self, name), valid, "planner.feedback=rules")
        valid = not self.learn_feedback or self.feedback == "questions"
        check_has_effect("planner.learn_feedback", self.learn_feedback, valid, "planner.feedback=questions")
        given = self.handover
        check_has_effect("planner.handover", given, given == "none" or bool(self.trainer), "planner.trainer is set")
        if self.name == "explorer" and self.report not in ("text", "both"):
            raise ConfigError(f"planner.report={self.report}: the explorer reads the engine's words: use text or both")


@dataclass
class EmacPlusConfig:
    """Settings of the loop; `model` as in `DaggerConfig`."""

    run: LoopRunConfig = field(default_factory=LoopRunConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"arch": "blip2_emac", "model_type": "demo"})
    environment: PlannedEnvironmentConfig = field(default_factory=PlannedEnvironmentConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        """Compare sections."""
        self.environment.check_horizon(self.run.max_steps)
