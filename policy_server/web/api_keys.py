"""Who may ask, and how often: API keys and a token bucket for each of them."""

from __future__ import annotations

import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from policy_server.refusals import Refusal
from xrl_alignment.config import ConfigError

KEYS_VARIABLE = "EMAC_POLICY_KEYS"
SHORTEST = 16  # characters of a key
ANONYMOUS = "anonymous"
BUCKETS = 10_000  # callers remembered


def read_keys(file: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Name -> key, from the lines of `file` (`key` or `name key`, `#` begins a comment) and from the environment.

    ConfigError for a file that cannot be read, a short key, a name or key that stands there twice. The text of a key is
    never part of an error.
    """
    entries = [
        (f"env{i}", key) for i, key in enumerate(environment.get(KEYS_VARIABLE, "").split(","), 1) if key.strip()
    ]
    entries += _from_file(Path(file)) if file else []
    keys: dict[str, str] = {}
    for name, key in entries:
        key = key.strip()
        if len(key) < SHORTEST or not key.isascii():
            raise ConfigError(f"API key {name!r}: at least {SHORTEST} ASCII characters are needed")
        if name in keys or key in keys.values():
            raise ConfigError(f"API key {name!r} is given twice")
        keys[name] = key
    return keys


def _from_file(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"server.keys_file={path} cannot be read: {error}") from error
    entries = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if len(words) > 2:
            raise ConfigError(f"{path}, line {number}: write `key` or `name key`")
        if words:
            entries.append((words[0] if len(words) == 2 else f"line{number}", words[-1]))
    return entries


class KeyRing:
    """Finds whose key a request brings. Without keys everybody is let in, each address as a caller of its own."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = {name: key.encode() for name, key in keys.items()}

    def __len__(self) -> int:
        return len(self._keys)

    def caller(self, headers: Mapping[str, str], address: str) -> str:
        """The caller's name; Refusal (401) without a valid key in `Authorization: Bearer …` or `X-API-Key`.

        Every key is compared, each in constant time: how long it takes says nothing about them.
        """
        if not self._keys:
            return f"{ANONYMOUS} {address}"
        given = headers.get("x-api-key", "")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = (given or (token if scheme.lower() == "bearer" else "")).strip().encode("utf-8", "replace")
        found = [name for name, key in self._keys.items() if hmac.compare_digest(key, given)]
        if not found:
            what = "this API key is not known" if given else "an API key is needed"
            raise Refusal(401, "key_needed", f"{what}: send `Authorization: Bearer <key>`")
        return found[0]


class RateLimiter:
    """A token bucket for each caller: `burst` requests at once, `rate_per_s` on average (0: no limit)."""

    def __init__(self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, when

    def take(self, caller: str) -> None:
        """Count one request; Refusal (429) with the time until the next one where there are too many."""
        if not self.rate_per_s:
            return
        now = self._clock()
        tokens, then = self._buckets.pop(caller, (float(self.burst), now))
        tokens = min(float(self.burst), tokens + (now - then) * self.rate_per_s)
        allowed = tokens >= 1
        self._buckets[caller] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > BUCKETS:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = math.ceil((1 - tokens) / self.rate_per_s)
            limit = f"{self.rate_per_s:g} requests a second, {self.burst} at once"
            raise Refusal(429, "too_many_requests", f"more than {limit}", retry_after_s=wait)
