"""Where the original keeps Reflexion's step after a round: `from generate_reflections import update_memory`."""

from xrl_alignment.reflexion import update_memory

__all__ = ["update_memory"]
