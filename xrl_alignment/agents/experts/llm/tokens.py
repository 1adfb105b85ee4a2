"""Counts a text's tokens for a model that runs elsewhere: with its tokenizer if there is one, else by an estimate."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lavis.common.errors import ConfigError
from xrl_alignment.agents.language.prompt import token_counter

# Prose has about 4 bytes per token; ALFWorld's compounds (`sinkbasin 1`) need more tokens. 3 rather counts too many.
BYTES_PER_TOKEN = 3
DOWNLOAD_S = 10.0  # for tiktoken's table, at its first use: without a network the program starts all the same
_log = logging.getLogger(__name__)


def estimate(text: str) -> int:
    """Estimate the tokens of `text`: one for every three bytes, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def counter_for(model: str, tokenizer: str = "", *, section: str = "expert") -> Callable[[str], int]:
    """A function that counts the tokens of a text for `model`, by the first of these that can be had:

    `tokenizer`, a name or folder that Transformers can load without a network; else tiktoken's table for an OpenAI
    model (tiktoken downloads it at first use; we wait ten seconds at most); else a local tokenizer by the model's own
    name; else the estimate. Without a `tokenizer` the log says once which of them it is.

    Raises ConfigError, which names the setting of `section`, for a `tokenizer` that cannot be loaded.
    """
    # From the surest way to the least sure one.
    if tokenizer:
        encode = _local_tokenizer(tokenizer)
        if encode is None:
            raise ConfigError(
                f"{section}.tokenizer {tokenizer!r} cannot be loaded: name a folder with a tokenizer's files"
            )
        return token_counter(encode)
    if encode := _tiktoken_encoding(model):
        _log.info("prompt tokens are counted with tiktoken's table for %s", model)
        return token_counter(encode)
    if encode := _local_tokenizer(model):
        _log.info("prompt tokens are counted with the tokenizer of %s", model)
        return token_counter(encode)
    _log.warning("no tokenizer for %s is at hand: prompt tokens are estimated as bytes / %d", model, BYTES_PER_TOKEN)
    return estimate


def _tiktoken_encoding(model: str) -> Callable[[str], list[int]] | None:
    import tiktoken

    try:
        name = tiktoken.encoding_name_for_model(model)
    except KeyError:
        return None
    found: list[tiktoken.Encoding] = []

    def fetch() -> None:
        try:
            found.append(tiktoken.get_encoding(name))
        except Exception as error:  # a failed download may raise anything, from any library under it
            _log.info("tiktoken's table %s cannot be loaded: %s", name, error)

    # tiktoken downloads without a time limit, so the download runs in a thread of its own.
    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(DOWNLOAD_S)
    return found[0].encode_ordinary if found else None  # "ordinary": `<|endoftext|>` in a prompt is text, no error


def _local_tokenizer(name: str) -> Callable[[str], list[int]] | None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a folder's files may be damaged in any way, and then anything is raised
        _log.info("no tokenizer in %s: %s", name, error)
        return None
    return lambda text: tokenizer.encode(text, add_special_tokens=False)
