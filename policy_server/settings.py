"""Settings of the policy server: one dataclass for each section of the yaml file. Each checks its values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from lavis.common.errors import ConfigError, unknown
from xrl_alignment.config.checks import (
    between,
    check,
    check_choice,
    check_device,
    check_has_effect,
    check_numbers,
    check_rule,
    check_seconds,
)

KINDS = ("auto", "transformers", "blip2_emac")
QUANTIZATIONS = ("none", "int8", "int4")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "Qwen/Qwen2-VL-2B-Instruct"
BLIP2_PREFIX = "blip2_emac:"  # begins the path of one of the project's own models


@dataclass
class ServerSettings:
    """`server:` the address, the callers, and the limits for one request."""

    host: str = "127.0.0.1"  # address to listen on; any other than loopback needs an API key
    port: int = 8001  # 0 takes any free port
    keys_file: str = ""  # one API key a line, `key` or `name key`; EMAC_POLICY_KEYS (separated by commas) adds more
    rate_per_s: float = 0.0  # requests a second for each caller on average; 0: no limit
    burst: int = 10  # requests at once for each caller; has no effect unless rate_per_s is set
    connections: int = 1024  # open connections; one more closes the one that waits for a request the longest
    header_timeout_s: float = 10.0  # seconds for a request's headers to arrive
    max_body_bytes: int = 12_000_000  # limit for a request's body
    body_timeout_s: float = 20.0  # seconds for a request's body to arrive
    max_image_bytes: int = 8_000_000  # limit for an encoded image
    max_pixels: int = 4_200_000  # limit for a decoded image
    websockets: int = 256  # open WebSockets; the next one gets 503
    websocket_idle_s: float = 300.0  # seconds without a message until a WebSocket is closed
    drain_s: float = 30.0  # seconds for accepted requests after SIGTERM
    recent: int = 12  # steps that the page /ui shows

    def __post_init__(self) -> None:
        """Check the range of each value."""
        check("server.host", self.host, bool(self.host), "a host name or address")
        check("server.port", self.port, 0 <= self.port <= 65535, "a port (0 to 65535)")
        check_numbers("server", self, ("rate_per_s", "recent"), 0)
        counts = ("burst", "connections", "websockets", "max_body_bytes", "max_image_bytes", "max_pixels")
        check_numbers("server", self, counts, 1)
        check_seconds("server", self, "header_timeout_s", "body_timeout_s", "websocket_idle_s", "drain_s")


@dataclass
class QueueSettings:
    """`queue:` how many requests wait, how batches form, and the deadline."""

    limit: int = 64  # requests that can wait; the server refuses the next one with 503
    max_batch: int = 16  # requests in one model call; 1: no batching
    window_ms: float = 20.0  # longest wait for further requests of a batch, if as many were present just before
    deadline_s: float = 30.0  # seconds until a waiting request gets 503

    def __post_init__(self) -> None:
        """Check the range of each value."""
        check_numbers("queue", self, ("limit", "max_batch"), 1)
        check_numbers("queue", self, ("window_ms",), 0)
        check_seconds("queue", self, "deadline_s")


@dataclass
class MemorySettings:
    """`memory:` what the server keeps in memory: sessions, actions, models."""

    sessions: int = 1024  # sessions; the one without a step for the longest time is forgotten first
    history: int = 4  # last steps of a session that the prompt shows; 0: none
    session_idle_s: float = 3600.0  # seconds without a request until a session is forgotten
    cache: int = 0  # observations whose actions are kept; 0: no cache
    cache_distance: int = 0  # bits of the perceptual hash (of 301) that may differ; 0: identical pixels only
    models_gib: float = 0.0  # GiB of all loaded models together; 0: no limit

    def __post_init__(self) -> None:
        """Check the range of each value."""
        check_numbers("memory", self, ("sessions",), 1)
        check_numbers("memory", self, ("history", "cache", "models_gib"), 0)
        check_rule("memory.cache_distance", self.cache_distance, between(0, 64))
        check_has_effect(
            "memory.cache_distance",
            self.cache_distance,
            not self.cache_distance or self.cache > 0,
            "memory.cache is set",
        )
        check_seconds("memory", self, "session_idle_s")


@dataclass
class ModelSettings:
    """`model:` (and each entry of `models:`) one model."""

    path: str = DEFAULT_MODEL  # folder or hub id of an image-text-to-text model, or blip2_emac:<model type>
    kind: str = "auto"  # blip2_emac or transformers; auto decides by the path
    device: str = "auto"  # auto, cpu, cuda or cuda:<index>
    dtype: str = "auto"  # precision of the weights; auto: the checkpoint's on a GPU, float32 on a CPU
    quantization: str = "none"  # int8 or int4 through bitsandbytes; needs the extra `quantization`
    max_tokens: int = 1024  # largest max_tokens of a request
    top_p: float = 0.9  # probability mass of nucleus sampling (Holtzman et al. 2020)
    options: dict[str, Any] = field(default_factory=dict)  # for blip2_emac: keys of the project's `model:` section

    def __post_init__(self) -> None:
        """Check the range of each value."""
        check("model.path", self.path, bool(self.path), "a folder, a hub id, or blip2_emac:<model type>")
        for name, choices in (("kind", KINDS), ("quantization", QUANTIZATIONS), ("dtype", DTYPES)):
            check_choice(f"model.{name}", getattr(self, name), choices)
        check_device("model.device", self.device)
        check_numbers("model", self, ("max_tokens",), 1)
        check("model.top_p", self.top_p, 0 < self.top_p <= 1, "a probability above 0")

    @property
    def name(self) -> str:
        """The model's name in `/health` and in requests: the last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]


@dataclass
class PolicyServerSettings:
    """All settings. `models` adds further models: name -> section with the keys of `model:`."""

    server: ServerSettings = field(default_factory=ServerSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    models: dict[str, Any] = field(default_factory=dict)

    def model_table(self) -> dict[str, ModelSettings]:
        """Every model by name, the default one first; ConfigError for an entry of `models` that cannot be used."""
        table = {self.model.name: self.model}
        for name, entry in self.models.items():
            if name in table:
                raise ConfigError(f"models.{name}: the default model has this name already")
            table[name] = _read_entry(name, entry)
        return table


def _read_entry(name: str, entry: object) -> ModelSettings:
    known = [field.name for field in dataclasses.fields(ModelSettings)]
    if not isinstance(entry, dict) or "path" not in entry:
        raise ConfigError(f"models.{name}: {entry!r} is not a section with `path`")
    for key in entry:
        if key not in known:
            raise ConfigError(f"models.{name}: {unknown('key', key, known)}")
    try:
        return ModelSettings(**entry)
    except (ConfigError, TypeError) as error:  # TypeError: a value of another type, compared with a number
        raise ConfigError(f"models.{name}: {error}") from error
