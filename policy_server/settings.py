"""Settings of the policy server: a section of the yaml file each, whose fields carry help and rule.

`python -m policy_server.settings` prints the tables of docs/policy_server.md, which are made from these fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from lavis.common.errors import ConfigError
from lavis.common.named_class import is_class_name
from lavis.common.settings import (
    DEVICE,
    SECONDS,
    Rule,
    Section,
    at_least,
    between,
    check_has_effect,
    checked_keys,
    named,
    one_of,
    setting,
    settings_table,
)

STUDENT_KINDS = ("blip2_emac", "hf_vlm")  # the project's own models; `<kind>:` may begin a path
KINDS = ("auto", "transformers", *STUDENT_KINDS)
QUANTIZATIONS = ("none", "int8", "int4")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "Qwen/Qwen2-VL-2B-Instruct"


@dataclass(frozen=True)
class ServerSettings(Section, section="server"):
    """The address, the callers, and the limits for one request."""

    host: str = setting(
        "127.0.0.1", "address to listen on; any other than loopback needs an API key", named("a host name or address")
    )
    port: int = setting(8001, "0 takes any free port", Rule("a port (0 to 65535)", lambda value: 0 <= value <= 65535))
    keys_file: str = setting(
        "",
        "file with one API key a line, `key` or `name key`; `EMAC_POLICY_KEYS` (separated by commas) adds more",
    )
    rate_per_s: float = setting(0.0, "requests a second for each caller on average; 0: no limit", at_least(0))
    burst: int = setting(10, "requests at once for each caller; has no effect unless `rate_per_s` is set", at_least(1))
    connections: int = setting(
        1024, "open connections; one more closes the one that waits for a request the longest", at_least(1)
    )
    header_timeout_s: float = setting(10.0, "seconds for a request's headers to arrive", SECONDS)
    max_body_bytes: int = setting(12_000_000, "limit for a request's body", at_least(1))
    body_timeout_s: float = setting(20.0, "seconds for a request's body to arrive", SECONDS)
    max_image_bytes: int = setting(8_000_000, "limit for an encoded image", at_least(1))
    max_pixels: int = setting(4_200_000, "limit for a decoded image", at_least(1))
    websockets: int = setting(256, "open WebSockets; the next one gets 503", at_least(1))
    websocket_idle_s: float = setting(300.0, "seconds without a message until a WebSocket is closed", SECONDS)
    drain_s: float = setting(30.0, "seconds for accepted requests after SIGTERM", SECONDS)
    recent: int = setting(12, "steps that the page `/ui` shows", at_least(0))


@dataclass(frozen=True)
class QueueSettings(Section, section="queue"):
    """How many requests wait, how batches form, and the deadline."""

    limit: int = setting(64, "requests that can wait; the next one gets 503", at_least(1))
    max_batch: int = setting(16, "requests in one model call; 1: no batching", at_least(1))
    window_ms: float = setting(
        20.0, "longest wait for further requests of a batch, if as many were present just before", at_least(0)
    )
    deadline_s: float = setting(30.0, "seconds until a waiting request gets 503", SECONDS)


@dataclass(frozen=True)
class MemorySettings(Section, section="memory"):
    """What the server keeps in memory: sessions, actions, models."""

    sessions: int = setting(
        1024, "sessions in memory; one more ends the oldest of the caller with the most", at_least(1)
    )
    history: int = setting(4, "last steps of a session that the prompt shows; 0: none", at_least(0))
    session_idle_s: float = setting(3600.0, "seconds without a request until a session is forgotten", SECONDS)
    cache: int = setting(0, "observations whose actions are kept; 0: no cache", at_least(0))
    cache_distance: int = setting(
        0, "bits of the perceptual hash (of 301) that may differ; 0: identical pixels only", between(0, 64)
    )
    models_gib: float = setting(0.0, "GiB of all loaded models together; 0: no limit", at_least(0))

    def check_combinations(self) -> None:
        """A distance between observations needs some that are kept."""
        valid = not self.cache_distance or self.cache > 0
        check_has_effect("memory.cache_distance", self.cache_distance, valid, "memory.cache is set")


_NAME_LETTERS = "A-Za-z0-9_./:-"  # ASCII alone: a header carries the name
MODEL_NAME = re.compile(f"[{_NAME_LETTERS}]{{1,200}}")  # what a request may name


@dataclass(frozen=True)
class ModelSettings(Section, section="model"):
    """One model: `model`, and each entry of `models`."""

    path: str = setting(
        DEFAULT_MODEL,
        "folder or hub id of an image-text-to-text model, or a model of this project: `blip2_emac:<model type>`, "
        "`hf_vlm:<folder or hub id>`, or your own `module:Class`",
        named("a folder, a hub id, blip2_emac:<model type>, hf_vlm:<folder or hub id>, or module:Class"),
    )
    kind: str = setting("auto", "what loads it; `auto` decides by the path", one_of(*KINDS))
    device: str = setting("auto", "where it runs; `auto` takes a GPU if there is one", DEVICE)
    dtype: str = setting(
        "auto", "precision of the weights; `auto`: the checkpoint's on a GPU, `float32` on a CPU", one_of(*DTYPES)
    )
    quantization: str = setting(
        "none",
        "weights in 8 or 4 bits through bitsandbytes, on a GPU or a CPU; needs the extra `quantization`",
        one_of(*QUANTIZATIONS),
    )
    max_tokens: int = setting(1024, "largest `max_tokens` of a request", at_least(1))
    top_p: float = setting(
        0.9,
        "probability mass of nucleus sampling (Holtzman et al. 2020)",
        Rule("a probability above 0", lambda value: 0 < value <= 1),
    )
    options: dict[str, Any] = setting({}, "for a model of this project or your own: keys of its section `model:`")

    def check_combinations(self) -> None:
        """Only a model of this project, or one's own class, reads `options`."""
        reads = any(self.student) or not self.options
        condition = "the path begins with hf_vlm: or blip2_emac:, or is module:Class"
        check_has_effect("model.options", self.options, reads, condition)

    @property
    def student(self) -> tuple[str, str]:
        """What `load_student` takes, with "" for none: ("blip2_emac", type), ("hf_vlm", path), ("module:Class", "")."""
        # `blip2_emac:tiny` names its kind; a path with another colon in it (a drive, a port) does not.
        kind, colon, rest = self.path.partition(":")
        if self.kind in ("auto", kind) and colon and kind in STUDENT_KINDS:
            return kind, rest
        if self.kind == "auto" and is_class_name(self.path):
            return self.path, ""
        return (self.kind, self.path) if self.kind in STUDENT_KINDS else ("", "")

    @property
    def name(self) -> str:
        """The model's name in `/health` and in requests: the last part of its path, `my-model` for `my model`."""
        return re.sub(f"[^{_NAME_LETTERS}]+", "-", self.path.rstrip("/").rpartition("/")[2])[:200]


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
            if not MODEL_NAME.fullmatch(str(name)):
                raise ConfigError(
                    f"models.{name}: a request could not name it; use English letters, digits and . / : _ -"
                )
            if name in table:
                raise ConfigError(f"models.{name}: the default model has this name already")
            if not isinstance(entry, dict) or "path" not in entry:
                raise ConfigError(f"models.{name}: {entry!r} is not a section with `path`")
            try:
                given = {key: value for key, value in entry.items() if value is not None}
                table[name] = ModelSettings(**checked_keys(ModelSettings, given))
            except ConfigError as error:
                raise ConfigError(f"models.{name}: {error}") from error
        return table


def tables() -> str:
    """The tables of docs/policy_server.md."""
    schemas = (ServerSettings, QueueSettings, MemorySettings, ModelSettings)
    return "\n".join(f"**`{schema.section}`.** {schema.__doc__}\n\n{settings_table(schema)}" for schema in schemas)


if __name__ == "__main__":
    print(tables(), end="")
