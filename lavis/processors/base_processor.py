"""The base class of processors: callables made from config that prepare one image or one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lavis.common.config import plain
from lavis.common.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


class BaseProcessor:
    """Returns its item unchanged; subclasses override `__call__` and `from_config`."""

    deterministic = True  # the same item always gives the same result; not inherited (`always_same`)

    def __call__(self, item: Any) -> Any:
        """Prepare one item."""
        return item

    @classmethod
    def from_config(cls, cfg: Mapping[str, object] | None = None) -> Self:
        """Build from a config section; `name` is the registry's key, no setting.

        Raises ConfigError for a setting that the processor does not have.
        """
        settings = plain(cfg or {})
        settings.pop("name", None)
        try:
            return cls(**settings)
        except TypeError as error:
            raise ConfigError(f"processor {cls.__name__}: {error}") from error

    def always_same(self) -> bool:
        """Whether a processed item may be cached: the class itself, not a base class, sets `deterministic`."""
        # A subclass may add randomness to a base class that has none, and would inherit its promise.
        return vars(type(self)).get("deterministic", False)

    def build(self, **kwargs: object) -> Self:
        """Build another of the same kind from keyword settings (LAVIS's shortcut)."""
        return self.from_config(kwargs)
