"""A vision-language model plays ALFWorld games on an `alfworld_server.py` that runs elsewhere.

    python alfworld_vllm_client.py --model-path Qwen/Qwen2-VL-7B-Instruct --output-dir runs/qwen --num-samples 100
    python alfworld_vllm_client.py --base-url http://localhost:8000/v1 --output-dir runs/served
    python alfworld_vllm_client.py --cfg-path ../configs/evaluate/episodes.yaml --output-dir runs/blip2_emac

The model answers for all games that are being played at once (`--num-envs`, one connection each). What comes out, a
folder for each finished game, written under another name first, so that a run that was stopped goes on where it was:

    OUTPUT_DIR/settings.json                                  what the run depends on; another one is refused
               summary.json                                   the table printed at the end
               <task folder>/<trial folder>/trajectory.json   prompts, raw outputs, actions, feedback, success
                                            images/00.jpg     what the model saw before each turn, and at the end

Messages, options and installation: docs/split_inference.md.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import shutil
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

# Run as a file, Python looks beside it; the package lies one folder up (or is installed).
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lavis.common.errors import ConfigError
from lavis.common.files import write_atomically
from lavis.common.progress import Bar
from xrl_alignment.common.call_pool import CallPool
from xrl_alignment.common.program import run_program
from xrl_alignment.language.answers import read_answer
from xrl_alignment.language.commands import is_thought, normalise
from xrl_alignment.language.prompt import build_prompt

LONGEST_LINE = 64 << 20  # bytes of an answer; a list of all 3,553 training games has 1 MB
LONGEST_ACTION = 500  # characters; the server takes no more
THOUGHT_FEEDBACK = "OK."
INSTRUCTIONS = """\
You control a household robot through text commands and see what it sees. Reach the goal of the task.
Reply with exactly one command on one line and nothing else. The commands are:
go to PLACE, open PLACE, close PLACE, take THING from PLACE, put THING in/on PLACE, use THING, heat THING with PLACE, \
cool THING with PLACE, clean THING with PLACE, slice THING with THING, examine NAME, look, inventory.
Names carry numbers: write them exactly as they are shown, for instance "go to cabinet 2" or \
"take mug 1 from countertop 1"."""


class ServerFault(RuntimeError):
    """What the environment's server answered with `success: false`; its text is the server's reason."""


class Connection:
    """One connection to an `alfworld_server.py`: one environment. Raises ConnectionError once the server is away."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._where = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise ConnectionError(f"no server on {self._where} ({error}): start alfworld_server.py first") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")

    def send_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer; ServerFault where the server could not do it."""
        self.send(request)
        return self.receive()

    def send(self, request: dict[str, Any]) -> None:
        """Send a request; its answer is `receive`d later, answers come in order."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> dict[str, Any]:
        """The next answer; ServerFault where it is `success: false`."""
        try:
            line = self._lines.readline(LONGEST_LINE)
        except OSError as error:
            raise self._lost(error) from error
        if not line.endswith(b"\n"):
            raise self._lost("it closed the connection")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise self._lost(f"it does not speak JSON: {error}") from error
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise ServerFault(str(answer.get("error", answer) if isinstance(answer, dict) else answer))
        return answer

    def close(self) -> None:
        """Leave; the server frees the environment."""
        self._lines.close()
        self._socket.close()

    def _lost(self, reason: object) -> ConnectionError:
        return ConnectionError(f"lost the server on {self._where}: {reason}; the same command goes on from here")


# ---- models --------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """What the model is shown: the prompt, an encoded image and its type (`jpeg`, `png`), what the engine accepts."""

    prompt: str
    image: bytes
    image_type: str
    commands: Sequence[str]


class Model(Protocol):
    """Writes something for each of several turns."""

    write_prompt: Callable[..., str]  # (opening text, memories, steps) -> the prompt, as long as the model can take

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """The model's raw outputs, in order."""
        ...

    def close(self) -> None:
        """Free what the model holds."""
        ...


def conversation(turn: Turn, instructions: str) -> list[dict[str, Any]]:
    """A turn as chat messages in OpenAI's form, the picture as a data address."""
    url = f"data:image/{turn.image_type};base64,{base64.b64encode(turn.image).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": turn.prompt}]
    return [{"role": "system", "content": instructions}, {"role": "user", "content": parts}]


class VllmModel:
    """Any vision-language model that vLLM serves, in this process; all turns in one batch."""

    def __init__(self, arguments: argparse.Namespace, instructions: str) -> None:
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise ImportError(
                "--model-path needs vLLM in this interpreter (`make vllm-env`, or `pip install 'emac-plus[vllm]'`); "
                f"--base-url does not: {error}"
            ) from error
        self._instructions = instructions
        self.write_prompt = partial(build_prompt, budget=arguments.prompt_chars)
        self._engine = LLM(
            model=arguments.model_path,
            seed=arguments.seed,
            dtype=arguments.dtype,
            max_model_len=arguments.max_model_len,
            max_num_seqs=arguments.num_envs,
            tensor_parallel_size=arguments.tensor_parallel_size,
            gpu_memory_utilization=arguments.gpu_memory_utilization,
            enforce_eager=arguments.enforce_eager,
            limit_mm_per_prompt={"image": 1},
        )
        self._sampling = SamplingParams(
            temperature=arguments.temperature, max_tokens=arguments.max_new_tokens, seed=arguments.seed
        )

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """One output for each turn; ValueError where a prompt is longer than the model's context."""
        chats = [conversation(turn, self._instructions) for turn in turns]
        outputs = self._engine.chat(chats, self._sampling, use_tqdm=False)
        return [output.outputs[0].text for output in outputs]

    def close(self) -> None:
        """Nothing to do: the engine's processes end with this one."""


class ServedModel:
    """A model behind an OpenAI-compatible server, which makes batches of the turns that are sent at once."""

    def __init__(self, arguments: argparse.Namespace, instructions: str) -> None:
        import openai

        self._openai, self._arguments, self._instructions = openai, arguments, instructions
        self.write_prompt = partial(build_prompt, budget=arguments.prompt_chars)
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._client = openai.OpenAI(
            base_url=arguments.base_url, api_key=key, timeout=arguments.timeout, max_retries=arguments.max_retries
        )
        self._pool = CallPool(arguments.num_envs)
        self._name = arguments.model_name or self._only_model()

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """One output for each turn; ConnectionError with the server's words where it cannot answer."""
        try:
            return list(self._pool.map(self._ask, turns))
        except self._openai.OpenAIError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown()
        self._client.close()

    def _ask(self, turn: Turn) -> str:
        arguments = self._arguments
        completion = self._client.chat.completions.create(
            model=self._name,
            messages=conversation(turn, self._instructions),
            temperature=arguments.temperature,
            max_tokens=arguments.max_new_tokens,
            seed=arguments.seed,
        )
        return completion.choices[0].message.content or ""

    def _only_model(self) -> str:
        try:
            names = [model.id for model in self._client.models.list()]
        except self._openai.OpenAIError as error:
            raise self._fault(error) from error
        if len(names) != 1:
            raise ConfigError(f"{self._arguments.base_url} serves {names}: choose one with --model-name")
        return names[0]

    def _fault(self, error: Exception) -> ConnectionError:
        return ConnectionError(f"the model's server {self._arguments.base_url}: {type(error).__name__}: {error}")


class EmacModel:
    """`Blip2Emac` as `evaluate.py` plays it: the `model:` and `policy:` sections of its settings file.

    With `policy.name=vllm` its language model answers from vLLM servers (docs/vllm.md).
    """

    def __init__(self, arguments: argparse.Namespace, instructions: str) -> None:
        from lavis.common.devices import pick_device, set_threads
        from xrl_alignment.builders.student import load_student, make_policy, prompt_writer
        from xrl_alignment.config.loading import load_config
        from xrl_alignment.config.schema import EvaluateConfig

        config = load_config(EvaluateConfig, arguments.cfg_path, arguments.options)
        set_threads(config.run.num_threads)
        model, vis_processor = load_student(config.model, pick_device(config.run.device))
        self._policy = make_policy(config.policy, model, vis_processor, config.run.max_batch)
        self.write_prompt = prompt_writer(model, tell_objects=config.environment.tell_objects)

    def answer(self, turns: Sequence[Turn]) -> list[str]:
        """One action for each turn."""
        import numpy as np
        from PIL import Image

        from xrl_alignment.policies.base import PolicyInput

        frames = [np.asarray(Image.open(io.BytesIO(turn.image)).convert("RGB")) for turn in turns]
        return self._policy.act(
            [PolicyInput(turn.prompt, frame, turn.commands) for turn, frame in zip(turns, frames, strict=True)]
        )

    def close(self) -> None:
        """Stop the servers that the policy started."""
        self._policy.close()


# ---- episodes ------------------------------------------------------------------------------------------------------


@dataclass
class Episode:
    """One game being played."""

    game: str  # names the folder
    about: dict[str, Any]  # the answer to `init`
    turns: list[dict[str, Any]] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    won: bool = False
    done: bool = False
    began: float = field(default_factory=time.monotonic)

    def see(self, answer: dict[str, Any], image: str) -> None:
        """Take in what the server answered to `init` or `step`."""
        self.images.append(base64.b64decode(answer[image]))
        self.commands = list(answer.get("admissible_commands", ()))
        self.won = bool(answer["goal_satisfied"])
        self.done = bool(answer.get("done", self.won))

    @property
    def task_type(self) -> str:
        """ALFWorld's task type."""
        return str(self.about.get("task_type", ""))

    def image_name(self, number: int) -> str:
        """Where picture `number` lies in the game's folder."""
        ending = "png" if self.about.get("image_format") == "png" else "jpg"
        return f"images/{number:02}.{ending}"

    def record(self) -> dict[str, Any]:
        """What `trajectory.json` holds."""
        return {
            "game": self.about.get("game", self.game),
            "task_type": self.task_type,
            "task_desc": self.about["task_desc"],
            "intro": self.about["intro"],
            "success": self.won,
            "turns": self.turns,
            "final_image": self.image_name(len(self.images) - 1),
            "seconds": round(time.monotonic() - self.began, 3),
        }


class Trajectories:
    """The output folder: which games are finished, and a place for the next."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._partial = folder / ".partial"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._check(folder / "settings.json", settings)

    @staticmethod
    def _check(file: Path, settings: dict[str, Any]) -> None:
        if not file.exists():
            write_atomically(file, lambda out: out.write(json.dumps(settings, indent=1).encode()))
            return
        before = json.loads(file.read_text(encoding="utf-8"))
        other = [key for key in settings if before.get(key) != settings[key]]
        if other:
            changes = ", ".join(f"{key} {before.get(key)!r} is now {settings[key]!r}" for key in other)
            raise ConfigError(f"{file.parent} holds another run ({changes}): give another --output-dir")

    def finished(self, game: str) -> bool:
        """Whether the game was played to its end."""
        return (self._place(game) / "trajectory.json").is_file()

    def write(self, episode: Episode) -> None:
        """Write a finished episode's folder: all of it appears at once, or nothing."""
        partial, place = self._partial, self._place(episode.game)
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "images").mkdir(parents=True)
        for number, image in enumerate(episode.images):
            (partial / episode.image_name(number)).write_bytes(image)
        text = json.dumps(episode.record(), indent=1, ensure_ascii=False)
        write_atomically(partial / "trajectory.json", lambda out: out.write(text.encode("utf-8", "backslashreplace")))
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, place)

    def summarise(self, games: Sequence[str]) -> str:
        """Write `summary.json` of those of `games` that are finished; returns the table by task type."""
        from xrl_alignment.evaluation.metrics import summarise, table

        summary = summarise([self._result(game) for game in games if self.finished(game)])
        text = json.dumps(summary, indent=1)
        write_atomically(self._folder / "summary.json", lambda out: out.write(text.encode()))
        return table(summary)

    def _result(self, game: str) -> Any:
        from xrl_alignment.evaluation.metrics import EpisodeResult

        record = json.loads((self._place(game) / "trajectory.json").read_text(encoding="utf-8"))
        actions = [turn for turn in record["turns"] if turn["feedback"] != THOUGHT_FEEDBACK]
        rejected = sum(not turn["action_success"] for turn in actions)
        return EpisodeResult(record["game"], record["task_type"], record["success"], len(actions), rejected)

    def _place(self, game: str) -> Path:
        parts = PurePosixPath(game).parts
        if not parts or parts[0] == "/" or ".." in parts or parts[0].startswith("."):
            raise ConfigError(f"the server names a game {game!r}, which is no folder's name")
        return self._folder.joinpath(*parts)


# ---- playing -------------------------------------------------------------------------------------------------------


def parse_action(output: str) -> str:
    """The command in a model's output, or its thought (`think: …`), or its first line cleaned up."""
    output = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in output)
    answer = read_answer(output)
    thought = f"think: {answer.thought}" if answer.thought else ""
    return (answer.action or thought or normalise(output))[:LONGEST_ACTION]


class Player:
    """Plays games on several connections at once: one batch for the model, then one step of every game."""

    def __init__(
        self,
        *,
        connections: Sequence[Connection],
        model: Model,
        trajectories: Trajectories,
        max_turns: int,
        show_commands: bool,
    ) -> None:
        self._free = deque(connections)
        self._model = model
        self._trajectories = trajectories
        self._max_turns = max_turns
        self._show_commands = show_commands
        self._playing: dict[Connection, Episode] = {}
        self.failed: dict[str, str] = {}  # game -> why it could not be played

    def play(self, games: Sequence[dict[str, str]]) -> Iterator[Episode]:
        """Play `games` (as `list_games` gives them); yields each episode once it is written."""
        waiting = deque(games)
        while waiting or self._playing:
            self._begin(waiting)
            if not self._playing:
                continue
            turns = [self._turn(episode) for episode in self._playing.values()]
            self._step(turns, self._model.answer(turns))
            for connection, episode in list(self._playing.items()):
                if episode.done or len(episode.turns) >= self._max_turns:
                    self._leave(connection)
                    self._trajectories.write(episode)
                    yield episode

    def _begin(self, waiting: deque[dict[str, str]]) -> None:
        """Give every free connection a game; all load theirs at the same time."""
        begun = []
        while waiting and self._free:
            connection, game = self._free.popleft(), waiting.popleft()
            connection.send({"command": "init", "traj_file": game["traj_file"]})
            begun.append((connection, game["game"]))
        for connection, game in begun:
            try:
                about = connection.receive()
            except ServerFault as fault:
                self.failed[game] = str(fault)
                self._free.append(connection)
                continue
            self._playing[connection] = episode = Episode(game, about)
            episode.see(about, "initial_image")

    def _turn(self, episode: Episode) -> Turn:
        steps = [(turn["action"], turn["feedback"]) for turn in episode.turns]
        prompt = self._model.write_prompt(episode.about["intro"], (), steps)
        if self._show_commands:
            prompt = f"Possible commands: {'; '.join(episode.commands)}\n{prompt}"
        image_type = str(episode.about.get("image_format", "jpeg"))
        return Turn(prompt, episode.images[-1], image_type, episode.commands)

    def _step(self, turns: Sequence[Turn], outputs: Sequence[str]) -> None:
        """Carry out the actions; all environments work at the same time."""
        asked = []
        for (connection, episode), turn, output in zip(self._playing.items(), turns, outputs, strict=True):
            action = parse_action(output)
            image = episode.image_name(len(episode.images) - 1)
            record = {"prompt": turn.prompt, "image": image, "output": output, "action": action}
            episode.turns.append(record)
            if is_thought(action):
                record |= {"feedback": THOUGHT_FEEDBACK, "action_success": True, "error_message": ""}
            else:
                connection.send({"command": "step", "action": action})
                asked.append((connection, episode, record))
        for connection, episode, record in asked:
            try:
                answer = connection.receive()
            except ServerFault as fault:
                self.failed[episode.game] = str(fault)
                self._leave(connection)
                continue
            record |= {key: answer[key] for key in ("feedback", "action_success", "error_message")}
            episode.see(answer, "current_image")

    def _leave(self, connection: Connection) -> None:
        del self._playing[connection]
        connection.send_request({"command": "reset_task"})
        self._free.append(connection)


def choose(games: Sequence[dict[str, str]], number: int, seed: int) -> list[dict[str, str]]:
    """`number` of the games (0: all), drawn by `seed`; a larger number with the same seed continues the draw."""
    drawn = sorted(games, key=lambda game: game["game"])
    random.Random(f"games {seed}").shuffle(drawn)
    if number > len(drawn):
        raise ConfigError(f"--num-samples {number}: there are {len(drawn)} games")
    return drawn[: number or None]


# ---- the program ---------------------------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, with `--help`."""
    parser = argparse.ArgumentParser(
        description="A vision-language model plays ALFWorld games on an alfworld_server.py.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model(parser)
    server = parser.add_argument_group("environments")
    server.add_argument("--host", default="localhost", help="where alfworld_server.py listens")
    server.add_argument("--port", type=int, default=5555)
    server.add_argument("--num-envs", type=_positive, default=8, help="games at the same time")
    server.add_argument("--timeout", type=float, default=600.0, help="seconds to wait for an answer")
    games = parser.add_argument_group("games")
    games.add_argument("--data-dir", help="folder of games on the server (default: the server's own)")
    games.add_argument("--traj-dir", help="folder of trajectory files (*.json) on the server to take games from")
    games.add_argument("--num-samples", type=int, default=0, help="number of games, 0 for all")
    games.add_argument("--seed", type=int, default=0, help="of the draw of games, and of sampling")
    games.add_argument("--output-dir", type=Path, required=True, help="where trajectories go")
    play = parser.add_argument_group("play")
    play.add_argument("--max-turns", type=_positive, default=50, help="of an episode, thoughts included")
    play.add_argument(
        "--prompt-chars", type=_positive, default=6000, help="of the episode's text; oldest steps go first"
    )
    play.add_argument("--show-commands", action="store_true", help="list the commands that the engine would accept")
    play.add_argument("--instructions", type=Path, help="a text file to use as the system message")
    arguments = parser.parse_args(argv)
    if arguments.num_samples < 0:
        parser.error("--num-samples must be 0 (all) or more")
    return arguments


def _add_model(parser: argparse.ArgumentParser) -> None:
    which = parser.add_argument_group("model").add_mutually_exclusive_group(required=True)
    which.add_argument("--model-path", help="a vision-language model for vLLM: a folder or a name on the hub")
    which.add_argument("--base-url", help="a running OpenAI-compatible server (vllm serve …), ending in /v1")
    which.add_argument("--cfg-path", help="Blip2Emac plays: a settings file of evaluate.py, its model: and policy:")
    model = parser.add_argument_group("how it answers")
    model.add_argument(
        "--options", metavar="KEY=VALUE", nargs="+", action="extend", default=[], help="settings laid over --cfg-path"
    )
    model.add_argument("--model-name", help="with --base-url: its name there, if several are served")
    model.add_argument("--max-retries", type=int, default=5, help="with --base-url: of a request that failed")
    model.add_argument("--temperature", type=float, default=0.0, help="0: the most probable answer")
    model.add_argument("--max-new-tokens", type=_positive, default=64, help="of an answer")
    vllm = parser.add_argument_group("vLLM, with --model-path")
    vllm.add_argument("--max-model-len", type=_positive, default=4096, help="tokens of prompt, picture and answer")
    vllm.add_argument("--dtype", default="auto")
    vllm.add_argument("--tensor-parallel-size", type=_positive, default=1, help="GPUs for one model")
    vllm.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    vllm.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs: starts faster, runs slower")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def main(argv: list[str] | None = None) -> int:
    """Connect, load the model, play, print the table; returns 1 if games could not be played."""
    arguments = parse_arguments(argv)
    instructions = arguments.instructions.read_text(encoding="utf-8") if arguments.instructions else INSTRUCTIONS
    connections = [Connection(arguments.host, arguments.port, arguments.timeout)]
    try:
        games = choose(list_games(connections[0], arguments), arguments.num_samples, arguments.seed)
        trajectories = Trajectories(arguments.output_dir, settings_of(arguments, instructions))
        left = [game for game in games if not trajectories.finished(game["game"])]
        while len(connections) < min(arguments.num_envs, len(left)):
            connections.append(Connection(arguments.host, arguments.port, arguments.timeout))
        failed = play(arguments, instructions, connections, trajectories, left) if left else {}
        print(trajectories.summarise([game["game"] for game in games]))
    finally:
        for connection in connections:
            connection.close()
    for game, reason in failed.items():
        print(f"not played: {game}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def list_games(connection: Connection, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """What the server can play; ConfigError with its reason where there is nothing."""
    request = {"command": "list_games", "data_dir": arguments.data_dir, "traj_dir": arguments.traj_dir}
    try:
        return connection.send_request(request)["games"]
    except ServerFault as fault:
        raise ConfigError(f"the server lists no games: {fault}") from fault


def settings_of(arguments: argparse.Namespace, instructions: str) -> dict[str, Any]:
    """What the trajectories of a run depend on; the same for the run that continues it."""
    names = "model_path base_url model_name cfg_path options temperature max_new_tokens seed"
    names += " max_turns prompt_chars show_commands"
    return {name: getattr(arguments, name) for name in names.split()} | {"instructions": instructions}


def play(
    arguments: argparse.Namespace,
    instructions: str,
    connections: Sequence[Connection],
    trajectories: Trajectories,
    games: Sequence[dict[str, str]],
) -> dict[str, str]:
    """Load the model and play `games`; returns those that could not be played, with the reason."""
    kind = VllmModel if arguments.model_path else ServedModel if arguments.base_url else EmacModel
    with closing(kind(arguments, instructions)) as model, Bar("games") as bar:
        player = Player(
            connections=connections,
            model=model,
            trajectories=trajectories,
            max_turns=arguments.max_turns,
            show_commands=arguments.show_commands,
        )
        won = 0
        for number, episode in enumerate(player.play(games), start=1):
            won += episode.won
            bar.show(number, len(games), f"{won} solved")
    return player.failed


if __name__ == "__main__":
    run_program(main)
