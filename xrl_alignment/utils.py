"""The names that the original's users import from here; each lives, and is documented, in its own module."""

from xrl_alignment.experts.llm.legacy import get_chat, get_completion, llm_forward
from xrl_alignment.language.history import EnvironmentHistory
from xrl_alignment.runs.checkpoint import save_checkpoint
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer

__all__ = [
    "DPOReplayBuffer",
    "EnvironmentHistory",
    "ReplayBuffer",
    "get_chat",
    "get_completion",
    "llm_forward",
    "save_checkpoint",
]
