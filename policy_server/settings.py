"""Settings of the policy server: dataclasses for `xrl_alignment.config.load_config`, checked when they are built."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from lavis.common.errors import ConfigError
from xrl_alignment.config.checks import check, check_choice, check_device, check_numbers, check_seconds

KINDS = ("auto", "transformers", "blip2_emac")
QUANTIZATIONS = ("none", "int8", "int4")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "Qwen/Qwen2-VL-2B-Instruct"


@dataclass
class ServerSettings:
    """`server:` where it listens, who may ask, what a request may weigh.

    `keys_file` has one API key a line, `key` or `name key`; more keys may stand in the environment variable
    `EMAC_POLICY_KEYS`, separated by commas. Another host than loopback needs at least one. A key may ask
    `rate_per_s` times a second on average and `burst` times at once (0: no limit). A body has at most
    `max_body_bytes` and `body_timeout_s` seconds to arrive; an encoded image at most `max_image_bytes`, a decoded one
    `max_pixels`. After SIGTERM waiting requests have `drain_s` seconds. The page `/ui` shows the last `recent` steps.
    """

    host: str = "127.0.0.1"
    port: int = 8001
    keys_file: str = ""
    rate_per_s: float = 0.0
    burst: int = 10
    max_body_bytes: int = 12_000_000
    body_timeout_s: float = 20.0
    max_image_bytes: int = 8_000_000
    max_pixels: int = 4_200_000
    drain_s: float = 30.0
    recent: int = 12

    def __post_init__(self) -> None:
        """Check every value's range."""
        check("server.host", self.host, bool(self.host), "a host name or address")
        check("server.port", self.port, 0 <= self.port <= 65535, "a port (0 to 65535)")
        check_numbers("server", self, ("rate_per_s", "recent"), 0)
        check_numbers("server", self, ("burst", "max_body_bytes", "max_image_bytes", "max_pixels"), 1)
        check_seconds("server", self, "body_timeout_s", "drain_s")


@dataclass
class QueueSettings:
    """`queue:` how many requests wait, how they are put together, how long one may take.

    At most `limit` requests wait; the next one gets 503. The model answers up to `max_batch` at once (1: no batching);
    for the missing ones it waits `window_ms`, and only where as many have asked just before. A request is answered
    within `deadline_s`, or gets 503.
    """

    limit: int = 64
    max_batch: int = 16
    window_ms: float = 20.0
    deadline_s: float = 30.0

    def __post_init__(self) -> None:
        """Check every value's range."""
        check_numbers("queue", self, ("limit", "max_batch"), 1)
        check_numbers("queue", self, ("window_ms",), 0)
        check_seconds("queue", self, "deadline_s")


@dataclass
class MemorySettings:
    """`memory:` what the server remembers.

    `sessions` clients at most, each with its last `history` steps, forgotten after `session_idle_s` without a request;
    the actions of the last `cache` different observations (0: none); models of together `models_gib` (0: no limit).
    """

    sessions: int = 1024
    history: int = 4
    session_idle_s: float = 3600.0
    cache: int = 0
    models_gib: float = 0.0

    def __post_init__(self) -> None:
        """Check every value's range."""
        check_numbers("memory", self, ("sessions",), 1)
        check_numbers("memory", self, ("history", "cache", "models_gib"), 0)
        check_seconds("memory", self, "session_idle_s")


@dataclass
class ModelSettings:
    """`model:` (and each entry of `models:`): one model.

    `path` is a folder or a hub id of any image-text-to-text model of Transformers, or `blip2_emac:<model type>`, the
    project's own; `options` are then keys of its `model:` section. `device` is auto, cpu, cuda or cuda:<index>; `dtype`
    auto takes the checkpoint's on a GPU and float32 on a CPU. `quantization` int8 or int4 needs the extra
    `quantization`.
    `max_tokens` bounds what a request may ask for. `top_p` is nucleus sampling's (Holtzman et al. 2020).
    """

    path: str = DEFAULT_MODEL
    kind: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    max_tokens: int = 1024
    top_p: float = 0.9
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every value's range."""
        check("model.path", self.path, bool(self.path), "a folder, a hub id, or blip2_emac:<model type>")
        for name, choices in (("kind", KINDS), ("quantization", QUANTIZATIONS), ("dtype", DTYPES)):
            check_choice(f"model.{name}", getattr(self, name), choices)
        check_device("model.device", self.device)
        check_numbers("model", self, ("max_tokens",), 1)
        check("model.top_p", self.top_p, 0 < self.top_p <= 1, "a probability above 0")

    @property
    def name(self) -> str:
        """What `/health` calls the model: the last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]


@dataclass
class PolicyServerSettings:
    """All settings; `models` holds further models by the name that a request's `model` gives."""

    server: ServerSettings = field(default_factory=ServerSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    models: dict[str, Any] = field(default_factory=dict)

    def model_table(self) -> dict[str, ModelSettings]:
        """Every model by name, the default one first; ConfigError where an entry of `models` cannot be used."""
        table = {self.model.name: self.model}
        for name, entry in self.models.items():
            if name in table:
                raise ConfigError(f"models.{name}: the default model has this name already")
            table[name] = _model_of(name, entry)
        return table


def _model_of(name: str, entry: object) -> ModelSettings:
    known = [field.name for field in dataclasses.fields(ModelSettings)]
    if not isinstance(entry, dict) or "path" not in entry or not set(entry) <= set(known):
        raise ConfigError(f"models.{name}: {entry!r} is not a section with `path` and keys of {', '.join(known)}")
    try:
        return ModelSettings(**entry)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"models.{name}: {error}") from error
