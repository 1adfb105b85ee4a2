"""The settings of the root programs, as dataclasses; every field carries its help and the rule for its values.

Where the original has a setting, the field has its name. `loading` reads a file into these classes, docs/settings.md
lists them. Only the root programs and `builders` see these classes; every other part takes plain arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lavis.common.run_settings import DPO_BETA
from xrl_alignment.common.choices import (
    BACKENDS,
    EXPERT_NAMES,
    STEP_TIMEOUT_S,
)
from xrl_alignment.settings.checks import (
    ABOVE_ZERO,
    DEVICE,
    SECONDS,
    SEED,
    Rule,
    at_least,
    between,
    check,
    check_has_effect,
    list_of,
    named,
    one_of,
    one_of_or_class,
)
from xrl_alignment.settings.endpoint import EndpointConfig
from xrl_alignment.settings.environment import EnvironmentConfig
from xrl_alignment.settings.fields import Section, setting
from xrl_alignment.settings.policy import DECODE_MODES, PolicyConfig

REFLECTORS = ("auto", "rule", "llm")
ACTORS = ("policy", "expert", "random")
LEARN_FROM = ("all", "disagreements")
LEARNERS = ("inline", "decoupled")

PROBABILITIES = list_of("probabilities, one for each round", lambda value: 0.0 <= value <= 1.0, empty=False)
LEARNER_DEVICE = Rule(f"empty, or {DEVICE.text}", lambda value: not value or DEVICE.holds(value))
REPEATS = Rule("0 (off) or at least 2", lambda value: value == 0 or value >= 2)


@dataclass(frozen=True)
class RunConfig(Section, section="run"):
    """The training run: rounds, optimiser, output. The names down to `output_dir` are the original's and LAVIS's."""

    # What is played and learned. Optimiser and schedule are the original's (`dagger.learner`).
    num_rounds: int = setting(2, "rounds; in each round every game that is not solved yet is played once", at_least(1))
    num_envs: int = setting(3, "games", at_least(1))
    enable_dpo: bool = setting(
        False, "phase 2: train with DPO (needs `model.ref_pretrained`); else phase 1, behavioural cloning"
    )
    enable_tc: bool = setting(False, "expert and policy may answer with a thought (`think: …`), which costs no step")
    batch_size: int = setting(8, "transitions in a batch", at_least(1))
    accum_grad_steps: int = setting(4, "batches whose gradients make one update", at_least(1))
    train_iters_per_epoch: int = setting(5, "updates each time that the learner runs", at_least(0))
    run_training: bool = setting(True, "train; without it the policy plays alone, and no expert or learner is asked")
    save_ckpt: bool = setting(True, "write `emma_checkpoint_<round>.pth` after each round")
    init_lr: float = setting(1e-5, "learning rate after the warm-up", at_least(0))
    min_lr: float = setting(0.0, "learning rate at the end of the cosine over the rounds", at_least(0))
    warmup_lr: float = setting(1e-8, "learning rate at the first batch", at_least(0))
    warmup_steps: int = setting(300, "batches of linear warm-up, all in the first round", at_least(0))
    weight_decay: float = setting(0.05, "weight decay of AdamW", at_least(0))
    seed: int = setting(42, "seed of everything random in the run", SEED)
    output_dir: str = setting(
        "output/dagger", "folder in which each run makes its run directory", named("a folder's path"), may_change=True
    )
    # The names are ours from here on: how episodes are played, and which of their transitions are learned.
    max_steps: int = setting(50, "steps after which an episode ends", at_least(1))
    beta: list[float] = setting(
        [0.0],
        "for each round, the probability that the expert's action is executed instead of the policy's (β_i of DAgger, "
        "Ross et al. 2011); the last value repeats; 0 is the original's; not DPO's temperature, which is `dpo_beta`",
        PROBABILITIES,
    )
    dpo_beta: float = setting(
        DPO_BETA,
        "temperature of DPO's implicit reward (β of Rafailov et al. 2023, eq. 7); has no effect in phase 1; not the "
        "mixing probability, which is `beta`",
        ABOVE_ZERO,
    )
    learn_from: str = setting(
        "all",
        "which transitions the learner draws: `all`, as the original, or only `disagreements`, in which the expert's "
        "label is not the policy's own action (pairs of equal actions teach DPO nothing; the policy is then asked in "
        "every state, also in those in which the expert drives)",
        one_of(*LEARN_FROM),
    )
    repeat_limit: int = setting(0, "the same action this often in a row ends the episode as stuck; 0: never", REPEATS)
    # Where and how fast the run runs.
    device: str = setting("auto", "where the model runs; `auto` takes a GPU if there is one", DEVICE, may_change=True)
    max_batch: int = setting(
        32, "observations that the policy answers in one call, at most", at_least(1), may_change=True
    )
    window_ms: float = setting(
        20.0,
        "milliseconds that a call of the policy waits for another observation; it begins at once when every session "
        "waits for an answer",
        at_least(0),
        may_change=True,
    )
    num_threads: int = setting(0, "threads of torch; 0 leaves the number to torch", between(0, 1024), may_change=True)
    num_workers: int = setting(
        1, "games that the pipeline's client plays at once; 1 is the original's order", at_least(1), may_change=True
    )
    train_every: int = setting(
        1, "the learner runs after so many episodes, and once for what is left at the run's end", at_least(1)
    )
    # The learner: in the server's loop, or beside it.
    learner: str = setting(
        "inline",
        "where the learner runs: between two batches of the policy, so that the games wait (`inline`: the original's "
        "order, exactly reproducible), or in a process of its own beside the games (`decoupled`, docs/rollouts.md)",
        one_of(*LEARNERS),
    )
    learner_device: str = setting(
        "", "with `learner=decoupled`: the learner's device; empty: as `device`", LEARNER_DEVICE, may_change=True
    )
    learner_processes: int = setting(
        1,
        "with `learner=decoupled`: processes of the learner, one a device; each computes its share of every batch, and "
        "the updates are those of one process",
        at_least(1),
        may_change=True,
    )
    learner_fsdp: bool = setting(
        False,
        "with `learner_processes` above 1: shard weights, gradients and optimiser state over these processes (FSDP), "
        "for a language model that trains",
        may_change=True,
    )
    max_staleness: int = setting(
        1000,
        "with `learner=decoupled`: updates (steps of the optimiser) that the policy's weights may lack for the stored "
        "episodes; above it the policy waits; 0: it always waits for every update",
        at_least(0),
        may_change=True,
    )
    state_interval_s: float = setting(
        30.0,
        "seconds between two saves of the trainer's state, at least; a resume repeats the updates since the last one; "
        "0: save after every episode",
        at_least(0),
        may_change=True,
    )

    def check_combinations(self) -> None:
        """What belongs to a learner of its own is used with it alone."""
        valid = self.learner == "decoupled" or not self.learner_device
        check_has_effect("run.learner_device", self.learner_device, valid, "run.learner=decoupled")
        valid = self.learner == "decoupled" or self.learner_processes == 1
        check_has_effect("run.learner_processes", self.learner_processes, valid, "run.learner=decoupled")
        valid = self.learner_processes > 1 or not self.learner_fsdp
        condition = "run.learner=decoupled and run.learner_processes above 1"
        check_has_effect("run.learner_fsdp", self.learner_fsdp, valid, condition)
        # Each process takes every k-th row of a batch (`Learner._forward`), so there must be a row for each.
        rule = f"at most run.batch_size ({self.batch_size})"
        check("run.learner_processes", self.learner_processes, self.learner_processes <= self.batch_size, rule)
        # `cuda:1` names one GPU for all processes; `cuda` is each process's own.
        device = self.learner_device or self.device
        rule = f"1 with one device ({device}): give run.learner_device=cuda, one GPU a process"
        check("run.learner_processes", self.learner_processes, self.learner_processes == 1 or ":" not in device, rule)


@dataclass(frozen=True)
class EvaluateRunConfig(Section, section="run"):
    """An evaluation: who plays how many games, where environments run, where the figures go."""

    # Who plays what, how often.
    actor: str = setting(
        "policy", "who plays: the model, the expert alone, or nobody (`random` admissible commands)", one_of(*ACTORS)
    )
    num_envs: int = setting(140, "games; 0: all of the split", at_least(0))
    num_trials: int = setting(1, "a failed game is played again, up to so many times in all", at_least(1))
    swap_memories: bool = setting(
        False, "a control experiment: each failed game is played again with the memories of another failed game"
    )
    moving_slots: bool = setting(
        False,
        "each trial gives every slot of the list of games the next game, a solved slot is played no more, and memories "
        "belong to the slot: how EMMA's released runs count (`--protocol emma-12`)",
    )
    seed: int = setting(42, "seed of everything random in the evaluation", SEED)
    output: str = setting("output/evaluate/result.json", "JSON file for the figures", named("a file's path"))
    table: str = setting(
        "scores.jsonl",
        "table to which the result is appended, a JSON-lines file; a bare name lies beside `output`; empty: none",
    )
    max_steps: int = setting(
        50, "steps after which an episode ends; 0: those of the split (50, or a level's horizon)", at_least(0)
    )
    repeat_limit: int = setting(0, "the same action this often in a row ends the episode as stuck; 0: never", REPEATS)
    enable_tc: bool = setting(False, "the actor may answer with a thought (`think: …`), which costs no step")
    device: str = setting("auto", "where the model runs; `auto` takes a GPU if there is one", DEVICE)
    max_batch: int = setting(32, "observations that the policy answers in one call, at most", at_least(1))
    num_threads: int = setting(0, "threads of torch; 0 leaves the number to torch", between(0, 1024))
    # Where the environments are.
    executor: str = setting(
        "sequential",
        "where environments run: in this process, in processes of this machine (`local`), in Ray actors (`ray`)",
        one_of(*BACKENDS),
    )
    num_workers: int = setting(1, "those processes or actors; has no effect with `sequential`", at_least(1))
    step_timeout_s: float = setting(
        STEP_TIMEOUT_S, "a worker that makes no step for so many seconds is replaced; 0: never", at_least(0)
    )
    ray_address: str = setting("", "the Ray cluster; empty: Ray on this machine only")

    def check_combinations(self) -> None:
        """Several workers need an executor that has workers; memories come from an earlier trial."""
        valid = self.executor != "sequential" or self.num_workers == 1
        check_has_effect("run.num_workers", self.num_workers, valid, "run.executor=local or ray")
        for name in ("swap_memories", "moving_slots"):
            given = getattr(self, name)
            check_has_effect(f"run.{name}", given, not given or self.num_trials > 1, "run.num_trials above 1")


@dataclass(frozen=True)
class ExpertConfig(EndpointConfig, section="expert"):
    """The source of labels. But for `name`, `max_missing_labels` and `notes`, all is for `openai` (docs/teacher.md)."""

    name: str = setting(
        "explorer",
        "who labels; `client` takes the label that comes with the client's message, whatever expert made it; "
        "`openai` is a language model behind an endpoint with OpenAI's interface; `module:Class`: your own",
        one_of_or_class(*EXPERT_NAMES),
    )
    max_missing_labels: float = setting(
        0.5,
        "share of a round's states for which the expert may have no label; above it the run stops and can be resumed "
        "(where a label is missing, the policy's own action takes its place, as in the original); 1: never stop",
        between(0, 1),
        may_change=True,
    )
    prompts: str = setting("", "file with the worked examples; empty: the one in `prompts/`")
    reflection_examples: str = setting("", "file with the examples of memories; empty: the one in `prompts/`")
    max_answer_tokens: int = setting(256, "tokens of an answer, at most", at_least(1))
    context_tokens: int = setting(8192, "the model's context: tokens of prompt and answer together", at_least(1))
    cache: str = setting(
        "auto",
        "file in which answers are kept; `auto`: `expert_answers.sqlite` in the project's cache folder "
        "(`$XDG_CACHE_HOME/emac`, else `~/.cache/emac`), or in `output/` where an older version has left one; empty: "
        "they are not kept",
        may_change=True,
    )
    notes: bool = setting(
        False,
        "the explorer's thoughts (`run.enable_tc`) are notes of what it has seen and of what is left to do, also where "
        "the text names the objects; without `environment.tell_objects` they always are",
    )
    ground: bool = setting(
        False, "an answer that is nearly an admissible command becomes that command (docs/teacher.md)"
    )
    decode: str = setting(
        "free",
        "the model writes the command (`free`), or is shown those that the engine accepts and must choose one "
        "(`admissible`)",
        one_of(*DECODE_MODES),
    )
    tries: int = setting(6, "how often the model is asked in one state, until it answers with a command", at_least(1))


@dataclass(frozen=True)
class ServerConfig(Section, section="server"):
    """Where the DAgger server listens."""

    host: str = setting(
        "127.0.0.1",
        "address to listen on; any other than this machine's own needs `token`",
        named("a host name or address"),
        may_change=True,
    )
    port: int = setting(7860, "port to listen on; 0: any free one", between(0, 65535), may_change=True)
    token: str = setting(
        "",
        "what clients must send, at least 16 characters; better given by `token_file` or `token_variable`, which no "
        "process list shows; never written into the run directory",
        may_change=True,
    )
    token_file: str = setting("", "file that holds the token; empty: none", may_change=True)
    token_variable: str = setting(
        "EMAC_TOKEN",
        "environment variable that holds the token, where neither `token` nor `token_file` gives it",
        named("a variable's name"),
        may_change=True,
    )
    session_timeout_s: float = setting(
        300.0, "seconds after which the games of a silent client are reassigned", SECONDS, may_change=True
    )
    dashboard: bool = setting(
        True, "show the run to browsers at `http://<host>:<port>/`, by the same rules and token", may_change=True
    )


@dataclass(frozen=True)
class ReflexionConfig(Section, section="reflexion"):
    """Memories of failed games, written after each round (Reflexion, Shinn et al. 2023)."""

    enabled: bool = setting(True, "write memories")
    reflector: str = setting(
        "auto",
        "who writes them: fixed rules (`rule`), the language model of the section `expert` (`llm`), or that model if "
        "it is the expert and else the rules (`auto`)",
        one_of(*REFLECTORS),
    )


def _default_model() -> dict[str, Any]:
    return {"arch": "blip2_emac", "model_type": "tiny"}


@dataclass
class DaggerConfig:
    """Settings of `dagger_server.py` and the pipeline; `model` holds LAVIS's model keys and is passed on as it is."""

    run: RunConfig = field(default_factory=RunConfig)
    model: dict[str, Any] = field(default_factory=_default_model)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    reflexion: ReflexionConfig = field(default_factory=ReflexionConfig)

    def __post_init__(self) -> None:
        """Compare sections."""
        self.environment.check_horizon(self.run.max_steps)


@dataclass
class EvaluateConfig:
    """Settings of `evaluate.py`; `model` as in `DaggerConfig`."""

    run: EvaluateRunConfig = field(default_factory=EvaluateRunConfig)
    model: dict[str, Any] = field(default_factory=_default_model)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    reflexion: ReflexionConfig = field(default_factory=ReflexionConfig)

    def __post_init__(self) -> None:
        """Compare sections."""
        self.environment.check_horizon(self.run.max_steps)


PROGRAMS = {DaggerConfig: "dagger_server.py", EvaluateConfig: "evaluate.py"}  # which program reads which settings
