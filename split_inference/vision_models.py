"""The models that can play: any vision-language model in vLLM, one behind an OpenAI-compatible server, or Blip2Emac.

Each imports its own packages when it is built, because no interpreter needs to have all of them.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lavis.common.errors import ConfigError, MissingExtraError, first_sentence
from split_inference.socket_connection import ServerUnreachable
from xrl_alignment.agents.language.plain import one_line, plain
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.common.call_pool import BoundedAnswers, CallLoop, CallPool, UnusableAnswer

_PAUSE_S = 8.0  # the longest that openai waits before it tries again

if TYPE_CHECKING:
    import numpy as np
    from openai.types.chat import (
        ChatCompletionContentPartParam,
        ChatCompletionMessageParam,
        ChatCompletionSystemMessageParam,
        ChatCompletionUserMessageParam,
    )


class Turn(NamedTuple):
    """What the model is given for one turn.

    `image` is an encoded file of type `image_type` (`jpeg`, `png`); `commands` are those that the engine would accept.
    `steps` are the episode's (action, feedback) pairs so far, `earlier` the images of its turns before, oldest first.
    """

    prompt: str
    image: bytes
    image_type: str
    commands: Sequence[str]
    steps: Sequence[tuple[str, str]] = ()
    earlier: Sequence[bytes] = ()


class VisionModel(Protocol):
    """Answers several turns at once."""

    write_prompt: Callable[..., str]  # (opening text, memories, steps) -> a prompt that the model can take

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """The model's raw outputs, in order."""
        ...

    def close(self) -> None:
        """Free what the model holds."""
        ...


def load_model(arguments: argparse.Namespace, instructions: str) -> VisionModel:
    """The model that the command line chooses; `instructions` is the system message of a chat model."""
    if arguments.model_path:
        return VllmModel(arguments, instructions)
    if arguments.base_url:
        return ServedModel(arguments, instructions)
    return EmacPolicyModel(arguments)


def conversation(turn: Turn, instructions: str) -> list[ChatCompletionMessageParam]:
    """A turn as chat messages in OpenAI's format, with the image in a `data:` URL."""
    url = f"data:image/{turn.image_type};base64,{base64.b64encode(turn.image).decode()}"
    parts: list[ChatCompletionContentPartParam] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": turn.prompt},
    ]
    system: ChatCompletionSystemMessageParam = {"role": "system", "content": instructions}
    user: ChatCompletionUserMessageParam = {"role": "user", "content": parts}
    return [system, user]


class VllmModel:
    """Any vision-language model that vLLM supports, in this process; all turns are one batch.

    Raises MissingExtraError without vLLM, ConfigError if vLLM refuses the model or a setting.
    """

    def __init__(self, arguments: argparse.Namespace, instructions: str) -> None:
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise MissingExtraError(
                "--model-path needs vLLM in this interpreter (`make vllm-env`, or `pip install -e '.[vllm]'`); "
                f"--base-url does not: {error}"
            ) from error
        self._instructions = instructions
        self.write_prompt: Callable[..., str] = partial(build_prompt, budget=arguments.prompt_chars)
        try:
            self._engine = LLM(
                model=arguments.model_path,
                seed=arguments.seed,
                dtype=arguments.dtype,
                max_model_len=arguments.max_model_len,
                # There is one turn of each game in progress, so no more come at once.
                max_num_seqs=arguments.num_envs,
                tensor_parallel_size=arguments.tensor_parallel_size,
                gpu_memory_utilization=arguments.gpu_memory_utilization,
                enforce_eager=arguments.enforce_eager,
                limit_mm_per_prompt={"image": 1},
            )
            self._sampling = SamplingParams(
                temperature=arguments.temperature, max_tokens=arguments.max_new_tokens, seed=arguments.seed
            )
        except (OSError, ValueError) as error:  # no such model, damaged files, settings that do not fit
            raise ConfigError(f"vLLM cannot load --model-path {arguments.model_path}: {error}") from error

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """One output for each turn; ConfigError if a prompt is longer than the model's context."""
        chats = [conversation(turn, self._instructions) for turn in turns]
        try:
            outputs = self._engine.chat(chats, self._sampling, use_tqdm=False)
        except ValueError as error:
            advice = "if the prompt is too long, lower --prompt-chars or raise --max-model-len"
            raise ConfigError(f"vLLM refuses a turn: {first_sentence(error)} ({advice})") from error
        return [output.outputs[0].text for output in outputs]

    def close(self) -> None:
        """Do nothing: the engine's processes end with this one."""


class ServedModel:
    """A model behind an OpenAI-compatible server, which batches the turns that are sent at the same time.

    Raises ServerUnreachable, with the server's words, if it cannot be reached or does not answer.
    """

    def __init__(self, arguments: argparse.Namespace, instructions: str) -> None:
        import openai

        # A class inside the method: most installations of the client lack openai.
        class Http(BoundedAnswers, openai.DefaultAsyncHttpxClient):
            """openai's own HTTP client, with limits."""

        self._arguments, self._instructions = arguments, instructions
        self.write_prompt: Callable[..., str] = partial(build_prompt, budget=arguments.prompt_chars)
        # openai refuses to start without a key; a server on this machine mostly asks for none.
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._loop = CallLoop()
        self._client = openai.AsyncOpenAI(
            base_url=arguments.base_url,
            api_key=key,
            timeout=arguments.timeout,
            max_retries=arguments.max_retries,
            http_client=Http(),
        )
        # openai's time limit begins anew with each byte. This one ends a call, its retries and their pauses included.
        self._deadline_s = (arguments.timeout + _PAUSE_S) * (arguments.max_retries + 1)
        # One call for each game: they wait for the server at the same time, and it batches them.
        self._pool = CallPool(arguments.num_envs)
        self._name = arguments.model_name
        if not self._name:
            # A server that serves a single model leaves no choice.
            try:
                names = [model.id for model in self._call(lambda: self._client.models.list()).data]
            except (AttributeError, TypeError) as error:
                raise self._unreachable("its list of models holds none") from error
            if len(names) != 1:
                served = f"{arguments.base_url} serves {one_line(str(names))}"
                raise ConfigError(f"{served}: choose one with --model-name")
            self._name = names[0]

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """One output for each turn."""
        return list(self._pool.map(self._ask, turns))

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown()
        self._loop.close(self._client.close)

    def _ask(self, turn: Turn) -> str:
        arguments = self._arguments
        completion = self._call(
            lambda: self._client.chat.completions.create(
                model=self._name,
                messages=conversation(turn, self._instructions),
                temperature=arguments.temperature,
                max_tokens=arguments.max_new_tokens,
                seed=arguments.seed,
            )
        )
        try:
            return plain(completion.choices[0].message.content or "")
        except (AttributeError, IndexError, TypeError) as error:  # a server may answer with any JSON
            raise self._unreachable("its answer holds no text") from error

    def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What the server answers; ServerUnreachable if it does not in time, too long, or with an error."""
        from openai import APIConnectionError, OpenAIError

        try:
            return self._loop.run(call, self._deadline_s)
        except TimeoutError as error:
            raise self._unreachable(f"no answer within {self._deadline_s:g} s") from error
        except APIConnectionError as error:
            cause = error.__cause__ or error  # openai's own text says only that there was an error
            raise self._unreachable(f"no connection ({str(cause) or type(cause).__name__})") from error
        except (OpenAIError, UnusableAnswer, ValueError, RecursionError) as error:
            raise self._unreachable(f"{type(error).__name__}: {error}") from error

    def _unreachable(self, reason: str) -> ServerUnreachable:
        return ServerUnreachable(f"the model's server {self._arguments.base_url}: {one_line(reason)}")


class EmacPolicyModel:
    """`Blip2Emac` as `evaluate.py` plays it: the `model:` and `policy:` sections of its settings file.

    With `policy.name=vllm` vLLM servers compute the language model's part.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        from lavis.common.devices import pick_device, set_threads
        from xrl_alignment.builders.student import acting_policy
        from xrl_alignment.settings.loading import load_config
        from xrl_alignment.settings.schema import EvaluateConfig

        config = load_config(EvaluateConfig, arguments.cfg_path, arguments.options)
        set_threads(config.run.num_threads)
        device, tell_objects = pick_device(config.run.device), config.environment.tell_objects
        self._policy, self.write_prompt = acting_policy(
            config.model, config.policy, device, max_batch=config.run.max_batch, tell_objects=tell_objects
        )
        self._blank = config.environment.blank_frames

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """One action for each turn."""
        from xrl_alignment.agents.policies.base import PolicyInput, frames_of

        before = frames_of(self._policy) - 1  # images of earlier turns; a slice [-0:] would be all of them
        batch = []
        for turn in turns:
            earlier = [self._frame(image) for image in turn.earlier[-before:]] if before else []
            frame = self._frame(turn.image)
            batch.append(PolicyInput(turn.prompt, frame, turn.commands, steps=turn.steps, earlier=earlier))
        return self._policy.act(batch)

    def _frame(self, image: bytes) -> np.ndarray:
        """The environment's frame as the run's own client sends it: RGB, uint8 (H, W, 3), black if settings say so."""
        import numpy as np
        from PIL import Image

        from alfworld_native.drawing.frames import BLANK_FRAME

        return BLANK_FRAME if self._blank else np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))

    def close(self) -> None:
        """Stop the servers that the policy started."""
        self._policy.close()
