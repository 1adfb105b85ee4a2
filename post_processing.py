"""Where the original keeps its cleaning of text: `from post_processing import action_postprocess, process_ob`."""

from xrl_alignment.language.commands import normalise as action_postprocess
from xrl_alignment.language.sentences import process_ob

__all__ = ["action_postprocess", "process_ob"]
