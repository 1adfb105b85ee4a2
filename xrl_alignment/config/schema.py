"""Typed settings for the root programs: yaml, then `--options key=value …`, checked before anything starts.

The schemas are the dataclasses below; their field names are the original's configuration keys, so one file can be read
beside the other. A key that is not in the schema, a value of the wrong type or a missing file is a `ConfigError` that
names the key's path and the nearest valid name. Only the root programs see these classes: every other part takes plain
arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from xrl_alignment.common.choices import BACKENDS, ENVIRONMENT_NAMES, EXPERT_NAMES, STEP_TIMEOUT_S
from xrl_alignment.config.checks import check, check_choice, check_device, check_numbers, check_seconds

APIS = ("chat", "completion")
REFLECTORS = ("auto", "rule", "llm")
POLICY_NAMES = ("in_process", "vllm", "http")
ACTORS = ("policy", "expert")
DECODE_MODES = ("free", "admissible")

SchemaT = TypeVar("SchemaT")


@dataclass
class RunConfig:
    """`run:` of a training run; the names down to `output_dir` are the original's.

    `beta` is the expert-mixing probability of each round (Ross et al. 2011, DAgger's beta_i; its last value repeats):
    0 lets the policy drive always, as the original does. `repeat_limit` is how often in a row the same action may be
    taken before an episode counts as stuck (0: never stuck). The policy answers up to `max_batch` waiting observations
    in one call, which begins when every session waits or no other has come for `window_ms`. `num_threads` 0 leaves the
    choice to torch. `num_workers` games are played at once by the pipeline's client (1: the original's order). The
    learner runs after every `train_every` episodes. The trainer's state is saved at most every `state_interval_s`
    seconds (0: after every episode); a resume repeats the updates since then.
    """

    num_rounds: int = 2
    num_envs: int = 3
    enable_dpo: bool = False
    enable_tc: bool = False
    batch_size: int = 8
    accum_grad_steps: int = 4
    train_iters_per_epoch: int = 5
    run_training: bool = True
    save_ckpt: bool = True
    init_lr: float = 1e-5
    min_lr: float = 0.0
    warmup_lr: float = 1e-8
    warmup_steps: int = 300
    weight_decay: float = 0.05
    seed: int = 42
    output_dir: str = "output/dagger"
    max_steps: int = 50
    beta: list[float] = field(default_factory=lambda: [0.0])
    repeat_limit: int = 0
    device: str = "auto"
    max_batch: int = 32
    window_ms: float = 20.0
    num_threads: int = 0
    num_workers: int = 1
    train_every: int = 1
    state_interval_s: float = 30.0

    def __post_init__(self) -> None:
        """Check every value's range."""
        counts = ("num_rounds", "num_envs", "batch_size", "accum_grad_steps", "max_steps", "max_batch")
        counts += ("num_workers", "train_every")
        check_numbers("run", self, counts, 1)
        rest = ("train_iters_per_epoch", "init_lr", "min_lr", "warmup_lr", "warmup_steps", "weight_decay", "seed")
        check_numbers("run", self, (*rest, "repeat_limit", "window_ms", "num_threads", "state_interval_s"), 0)
        in_range = bool(self.beta) and all(0.0 <= beta <= 1.0 for beta in self.beta)
        check("run.beta", self.beta, in_range, "a list of probabilities, one for each round")
        check("run.repeat_limit", self.repeat_limit, self.repeat_limit != 1, "0 (off) or at least 2")
        check("run.output_dir", self.output_dir, bool(self.output_dir), "a folder's path")
        check_device("run.device", self.device)


@dataclass
class EvaluateRunConfig:
    """`run:` of `evaluate.py`: who plays (`actor`) how many games (`num_envs`), each up to `num_trials` times.

    The figures go to the JSON file `output`. Environments run where `executor` says: in this process (`sequential`),
    or in `num_workers` processes (`local`) or Ray actors (`ray`, on the cluster at `ray_address`); one that makes no
    step for `step_timeout_s` seconds is replaced (0: never).
    """

    actor: str = "policy"
    num_envs: int = 140
    num_trials: int = 1
    seed: int = 42
    output: str = "output/evaluate/result.json"
    max_steps: int = 50
    repeat_limit: int = 0
    enable_tc: bool = False
    device: str = "auto"
    max_batch: int = 32
    num_threads: int = 0
    executor: str = "sequential"
    num_workers: int = 1
    step_timeout_s: float = STEP_TIMEOUT_S
    ray_address: str = ""

    def __post_init__(self) -> None:
        """Check every value's range."""
        check_choice("run.actor", self.actor, ACTORS)
        check_choice("run.executor", self.executor, BACKENDS)
        check_numbers("run", self, ("num_envs", "num_trials", "max_steps", "max_batch", "num_workers"), 1)
        check_numbers("run", self, ("seed", "repeat_limit", "num_threads", "step_timeout_s"), 0)
        alone = self.executor != "sequential" or self.num_workers == 1
        check("run.num_workers", self.num_workers, alone, "of use without run.executor=local or ray")
        check("run.repeat_limit", self.repeat_limit, self.repeat_limit != 1, "0 (off) or at least 2")
        check("run.output", self.output, bool(self.output), "a file's path")
        check_device("run.device", self.device)


@dataclass
class EnvironmentConfig:
    """`environment:` which games, on which engine.

    `data` is the folder that holds `json_2.1.1` (empty: `$ALFWORLD_DATA`, else ALFWorld's own download folder).
    `num_train`, `num_heldout` and `seed` describe generated games (`name: household`). `blank_frames` hands the model
    black pictures: the ablation that shows whether vision is used. Without `tell_objects` the model's text says what
    happened, not what lies where: only the picture shows it (the expert still reads all).
    """

    name: str = "native"
    split: str = "valid_seen"
    data: str = ""
    num_train: int = 2000
    num_heldout: int = 100
    seed: int = 0
    show_ids: bool = True
    blank_frames: bool = False
    tell_objects: bool = True

    def __post_init__(self) -> None:
        """Check every value's range."""
        check_choice("environment.name", self.name, ENVIRONMENT_NAMES)
        check_numbers("environment", self, ("num_train", "num_heldout"), 1)
        check_numbers("environment", self, ("seed",), 0)
        check("environment.split", self.split, bool(self.split), "a split's name")


@dataclass
class ExpertConfig:
    """`expert:` who labels; `client` takes whatever expert's word the client sends along.

    What follows `name` is for `openai`, a language model behind an endpoint with OpenAI's interface (docs/teacher.md).
    `base_url` empty is OpenAI's own; `api` is chat or completion (legacy); `api_version` is for Azure's older
    deployments. The key is read from the environment variable `key_variable` and from nowhere else. `prompts` and
    `reflection_examples` are files (empty: those in `prompts/`). `context_tokens` is the model's context, prompt and
    answer together; `tokenizer` a folder to count them with (empty: found by the model's name, else estimated). A
    failing call is tried `max_attempts` times, each for `timeout_s` seconds. At most `concurrency` calls run at once
    and `calls_per_minute` begin in a minute (0: no limit). Answers are kept in the file `cache` (empty: not kept).
    `max_calls` and `max_cost_usd` pause the run (0: no limit); prices are US dollars for a million tokens
    (`price_cached_prompt` 0: as `price_prompt`). `ground` maps an answer that just misses an admissible command to that
    command.
    """

    name: str = "explorer"
    base_url: str = ""
    model: str = ""
    api: str = "chat"
    api_version: str = ""
    key_variable: str = "OPENAI_API_KEY"
    prompts: str = ""
    reflection_examples: str = ""
    temperature: float = 0.0
    max_answer_tokens: int = 256
    context_tokens: int = 8192
    tokenizer: str = ""
    timeout_s: float = 60.0
    max_attempts: int = 20
    concurrency: int = 32
    calls_per_minute: float = 0.0
    cache: str = "output/expert_answers.sqlite"
    max_calls: int = 0
    max_cost_usd: float = 0.0
    price_prompt: float = 0.0
    price_cached_prompt: float = 0.0
    price_completion: float = 0.0
    ground: bool = False

    def __post_init__(self) -> None:
        """Check every value's range, and that a limit in dollars has prices to go by."""
        check_choice("expert.name", self.name, EXPERT_NAMES)
        check_choice("expert.api", self.api, APIS)
        check_numbers("expert", self, ("max_answer_tokens", "context_tokens", "max_attempts", "concurrency"), 1)
        prices = ("price_prompt", "price_cached_prompt", "price_completion")
        limits = ("temperature", "calls_per_minute", "max_calls", "max_cost_usd")
        check_numbers("expert", self, (*limits, *prices), 0)
        check_seconds("expert", self, "timeout_s")
        priced = self.price_prompt > 0 or self.price_completion > 0
        rule = "of use without expert.price_prompt and expert.price_completion"
        check("expert.max_cost_usd", self.max_cost_usd, priced or not self.max_cost_usd, rule)


@dataclass
class PolicyConfig:
    """`policy:` how the model answers: free text, or the best of the engine's admissible commands; beam search.

    `name` says where the language model runs: in this process, or in vLLM (greedy, so `num_beams: 1`). vLLM's servers
    are `base_urls` (ending in `/v1`; a request that takes more than `timeout_s` goes to another one); without any, its
    engine is started here by `vllm_python` (empty: this interpreter, else `.venv-vllm`'s) with `vllm_args` on its
    command line (docs/vllm.md). `http` asks a policy server at `base_urls` (docs/policy_server.md) instead of the
    model.
    """

    decode: str = "free"
    num_beams: int = 5
    max_length: int = 128
    min_length: int = 1
    name: str = "in_process"
    base_urls: list[str] = field(default_factory=list)
    timeout_s: float = 300.0
    vllm_python: str = ""
    vllm_args: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check every value's range, and that the two lengths agree."""
        check_choice("policy.decode", self.decode, DECODE_MODES)
        check_choice("policy.name", self.name, POLICY_NAMES)
        check_numbers("policy", self, ("num_beams", "max_length"), 1)
        check_numbers("policy", self, ("min_length",), 0)
        rule = f"at most policy.max_length ({self.max_length})"
        check("policy.min_length", self.min_length, self.min_length <= self.max_length, rule)
        check_seconds("policy", self, "timeout_s")
        for url in self.base_urls:
            check("policy.base_urls", url, url.startswith(("http://", "https://")), "a list of http(s)://host:port/v1")
        if self.name == "vllm":
            greedy = self.num_beams == 1 or self.decode == "admissible"
            check("policy.num_beams", self.num_beams, greedy, "1, and policy.name=vllm decodes greedily")
        else:
            for key in ("vllm_python", "vllm_args"):
                check(f"policy.{key}", getattr(self, key), not getattr(self, key), "of use without policy.name=vllm")
            rule = "one address with policy.name=http, and none with in_process"
            check("policy.base_urls", self.base_urls, len(self.base_urls) == (self.name == "http"), rule)


@dataclass
class ServerConfig:
    """`server:` where the DAgger server listens; another host than loopback needs a token. Port 0: any free one."""

    host: str = "127.0.0.1"
    port: int = 7860
    token: str = ""
    session_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Check every value's range."""
        check("server.host", self.host, bool(self.host), "a host name or address")
        check("server.port", self.port, 0 <= self.port <= 65535, "a port (0 to 65535)")
        check_seconds("server", self, "session_timeout_s")


@dataclass
class ReflexionConfig:
    """`reflexion:` whether failed games get a memory after each round (Shinn et al. 2023), and who writes it.

    `reflector`: `rule`; `llm`, the model of the `expert:` section; `auto`, the model if it is the expert, else `rule`.
    """

    enabled: bool = True
    reflector: str = "auto"

    def __post_init__(self) -> None:
        """Check the reflector's name."""
        check_choice("reflexion.reflector", self.reflector, REFLECTORS)


def _default_model() -> dict[str, Any]:
    return {"arch": "blip2_emac", "model_type": "tiny"}


@dataclass
class DaggerConfig:
    """Settings of `dagger_server.py` and the pipeline; `model` holds the LAVIS model keys and is passed on as it is."""

    run: RunConfig = field(default_factory=RunConfig)
    model: dict[str, Any] = field(default_factory=_default_model)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    reflexion: ReflexionConfig = field(default_factory=ReflexionConfig)


@dataclass
class EvaluateConfig:
    """Settings of `evaluate.py`; `model` as in `DaggerConfig`."""

    run: EvaluateRunConfig = field(default_factory=EvaluateRunConfig)
    model: dict[str, Any] = field(default_factory=_default_model)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    reflexion: ReflexionConfig = field(default_factory=ReflexionConfig)
