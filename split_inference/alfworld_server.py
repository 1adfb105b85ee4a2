#!/usr/bin/env python3
"""A TCP server that plays ALFWorld games for a model in another Python interpreter or on another machine.

    python alfworld_server.py --host localhost --port 5555 --env textworld --data-dir /data/json_2.1.1/valid_seen

Each request is one JSON object on one line (UTF-8), and so is each answer; answers come in the order of the requests
(docs/split_inference.md). Every client gets its own environment in its own process: many clients play at once on all
cores, and none can disturb another.

A client names only files under --data-dir and --traj-dir. If the environment variable ALFWORLD_SERVER_TOKEN is set, the
first message of a client must carry that token; on an address that other machines reach, the server does not start
without it. A client that has passed can shut the server down.

This file stands alone: it needs Python 3.6 or newer, alfworld and Pillow. With `--env thor` the frames are the
simulator's. The text engines have no frames: with the emac-plus package (Python 3.10 or newer) the server renders the
room, without it the frame is a white image with the text.
"""

import argparse
import base64
import contextlib
import errno
import hashlib
import hmac
import io
import ipaddress
import json
import os
import re
import select
import signal
import socket
import sys
import textwrap
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

GAME_FILE, TRAJECTORY_FILE = "game.tw-pddl", "traj_data.json"
TOKEN_VARIABLE = "ALFWORLD_SERVER_TOKEN"
MIN_TOKEN_CHARS = 16
MAX_FILE_BYTES = 16 << 20  # ALFWorld's own files have 0.1 MB
MAX_ACTION_CHARS = 500
NOTHING_HAPPENS = "Nothing happens."
_TASK_PREFIX = "Your task is to: "
_CHUNK = 1 << 16
_GRACE_S = 5.0  # for the clients' processes to end by themselves
_FIRST_MESSAGE_S = 30.0  # where a token is needed
_MAX_WAITING = 128  # connections without a first message
_BACKLOG = 1024  # connections that the system holds until the server accepts them
_HANG_UP_S = 1.0

# The texts of ALFWorld's games, by the first digits of their SHA-256, the task sentence masked. TextWorld evaluates
# expressions of the grammar as Python code, so it gets no other. The same as in
# alfworld_native/engine/gamefile.py, which says where each comes from.
KNOWN_TEXTS = {
    "pddl_domain": ("0af55e7f92d12b09", "f1473041ed01da51", "e64e8c0002648c40"),
    "grammar": ("10da93e13b58e1a6", "c294eb280206a442", "de0a5951f63a9b4f"),
}
_TASK = re.compile(r'("rhs": "Your task is to: )(.*)(")')
_PLAIN = re.compile(r"[A-Za-z0-9 .,:!?'()/_-]*")  # a task sentence that the grammar's own syntax leaves alone


class RequestError(Exception):
    """A request cannot be done; the text goes to the client as `error`."""


class EngineStopped(RequestError):
    """The engine has ended, and the client's game with it."""


class IdleTimeout(Exception):
    """A client has sent no message for too long."""


class GameFiles(NamedTuple):
    """A game on disk: `path` is its game file, and AI2-THOR builds the room from the file `trajectory`.

    `id` is `<task folder>/<trial folder>`.
    """

    id: str
    task_type: str
    path: str
    trajectory: str


class EngineState(NamedTuple):
    """What a backend answers: the engine's text, the commands that it would accept now, whether the goal is reached.

    `over` says that the engine ends the episode earlier than --max-steps: the id of a mixture's game names a horizon.
    """

    text: str
    commands: List[str]
    won: bool
    over: bool = False


# ---- commands in two dialects --------------------------------------------------------------------------------------


def canonical(command: str) -> str:
    """`move X to Y` (ALFWorld 0.4's games) as `put X in/on Y` (older games); any other command stays."""
    what, found, where = command[5:].partition(" to ")
    return f"put {what} in/on {where}" if found and command.startswith("move ") else command


def to_move(command: str) -> str:
    """`put X in/on Y` as `move X to Y`; any other command stays."""
    what, found, where = command[4:].partition(" in/on ")
    return f"move {what} to {where}" if found and command.startswith("put ") else command


# ---- games on disk -------------------------------------------------------------------------------------------------


def read_json(path: str) -> Dict[str, Any]:
    """The object in a JSON file; RequestError if it holds no object, is too large, or is not a regular file."""
    if not os.path.isfile(path):
        raise RequestError(f"no file {path}")
    if os.path.getsize(path) > MAX_FILE_BYTES:
        raise RequestError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise RequestError(f"{path} holds no JSON object")
    return content


def read_known_game(path: str) -> Dict[str, Any]:
    """The content of a game file whose texts are known; RequestError for any other, which could run code.

    The grammar's fingerprint does not cover the task sentence, so that must be plain text.
    """
    content = read_json(path)
    for key, known in KNOWN_TEXTS.items():
        text = content.get(key)
        if not isinstance(text, str) or fingerprint(text) not in known:
            raise RequestError(f"{path} is not one of ALFWorld's games: its {key} is unknown, and could run code")
    sentences = [found[1] for found in _TASK.findall(content["grammar"])]
    if len(sentences) != 1 or not _PLAIN.fullmatch(sentences[0]):
        raise RequestError(f"{path}: its task sentence is not one line of plain text, and could run code")
    return content


def fingerprint(text: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of `text`, its task sentence masked."""
    return hashlib.sha256(_TASK.sub(r"\1\3", text).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def allowed(named: str, folders: List[str]) -> str:
    """The absolute path of what a client `named`, relative to the first of `folders`.

    Raises RequestError if the path, its links resolved, lies under none of `folders`; the answer does not depend on
    what is there.
    """
    try:
        path = os.path.abspath(os.path.join(folders[0], os.path.expanduser(named)))
        real = os.path.realpath(path)
        roots = [os.path.realpath(folder).rstrip(os.sep) for folder in folders]
    except (OSError, ValueError) as error:  # ValueError: a zero byte, half a surrogate pair
        raise RequestError(f"no game {named[:200]!r}: {error}") from error
    if not any(real == root or real.startswith(root + os.sep) for root in roots):
        raise RequestError(f"{named[:200]!r} lies outside the server's folders: see its --data-dir and --traj-dir")
    return path


def find_game(traj_file: str, folders: List[str]) -> GameFiles:
    """The game that `traj_file` names, relative to the first of `folders`, which is the folder of games.

    It is a trial folder, a file in one (`traj_data.json`, `game.tw-pddl`), or a copy of a `traj_data.json`, all of
    them in one of `folders`. For such a copy the trial folder is searched for among the games by the `task_id`. Raises
    RequestError if there is no game.
    """
    path = allowed(traj_file, folders)
    try:
        os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a zero byte, half a surrogate pair
        raise RequestError(f"no game {traj_file[:200]!r}: {error}") from error
    beside = os.path.join(os.path.dirname(path), GAME_FILE)
    # Without a game file beside it a traj_data.json is read as a copy, whose folder can have any name; AI2-THOR's trial
    # folders, some of which have no game file, are found by the task_id as well.
    if path == beside or (os.path.basename(path) == TRAJECTORY_FILE and os.path.isfile(beside)):
        path = os.path.dirname(path)
    if os.path.isdir(path):
        game = _game_in(path, os.path.join(path, TRAJECTORY_FILE))
    else:  # a copy of a traj_data.json, which says what its trial folder is called
        about = read_json(path)
        trial = about.get("task_id")
        if not isinstance(trial, str):
            raise RequestError(f"{path} has no task_id: it is not an ALFWorld trajectory")
        found = (folder for folder in trial_folders(folders[0]) if os.path.basename(folder) == trial)
        folder = next(found, None)  # without one AI2-THOR, which needs no game file, may still play the trajectory
        game = _game_in(folder, path) if folder else GameFiles(trial, str(about.get("task_type", "")), "", path)
    for each in filter(None, (game.path, game.trajectory)):
        allowed(each, folders)  # each may be a link of its own
    return game


def _game_in(folder: str, trajectory: str) -> GameFiles:
    task = os.path.basename(os.path.dirname(folder))
    return GameFiles(
        f"{task}/{os.path.basename(folder)}", task.split("-")[0], os.path.join(folder, GAME_FILE), trajectory
    )


def trial_folders(data_dir: str) -> Iterator[str]:
    """Every folder under `data_dir` that holds a game, sorted, without the games that ALFWorld itself leaves out."""
    for folder, inner, files in os.walk(data_dir):
        # In place: `os.walk` then goes into these folders only, in this order.
        inner[:] = sorted(name for name in inner if "movable" not in name and "Sliced" not in name)
        if GAME_FILE in files or TRAJECTORY_FILE in files:
            yield folder


def solvable(path: str) -> bool:
    """ALFWorld's own test of a game file, `"solvable": true`; read as text, because parsing takes ten times as long."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found, _, value = file.read(MAX_FILE_BYTES).rpartition('"solvable"')
    except OSError:
        return False
    return bool(found) and value.lstrip(" :").startswith("true")


# ---- images --------------------------------------------------------------------------------------------------------


def text_card(text: str, size: int) -> Any:
    """`text` on a white image of `size` x `size` pixels: the frame if nothing can render the room."""
    from PIL import Image, ImageDraw

    card = Image.new("RGB", (size, size), (250, 250, 246))
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, max(1, (size - 12) // 6))]
    ImageDraw.Draw(card).multiline_text((6, 6), "\n".join(lines).encode("ascii", "replace").decode(), fill=(20, 20, 24))
    return card


def encode_image(image: Any, image_format: str, quality: int) -> str:
    """A PIL image as a JPEG or PNG file in base64."""
    out = io.BytesIO()
    if image_format == "png":
        image.save(out, "PNG", compress_level=1)
    else:
        image.save(out, "JPEG", quality=quality)
    return base64.b64encode(out.getvalue()).decode("ascii")


# ---- engines -------------------------------------------------------------------------------------------------------
# Each imports its packages in its methods: an interpreter needs to have those of one engine only.


class TextWorldBackend:
    """ALFWorld's text games in TextWorld, loaded as alfworld's own environment loads them."""

    def __init__(self, max_steps: int) -> None:
        self._engine = None  # type: Any
        self._state = None  # type: Any
        self._moves = False

    @staticmethod
    def load() -> None:
        """Import what playing needs, before the clients' processes are forked."""
        import textworld.envs
        from alfworld.agents.utils.misc import Demangler  # noqa: F401

        if not hasattr(textworld.envs, "PddlEnv"):
            raise ImportError("--env textworld needs TextWorld 1.6 or newer, which needs Python 3.9 or newer")
        # TextWorld 1.7 alone ends every game with a NameError there; `alfworld_native.textworld` mends it.
        if room_renderer() is None and sys.version_info >= (3, 13):
            raise ImportError("--env textworld needs emac-plus in this interpreter from Python 3.13 on")

    def reset(self, game: GameFiles) -> EngineState:
        """Load `game`; RequestError if TextWorld cannot play it."""
        import textworld
        from alfworld.agents.utils.misc import Demangler

        require_game_file(game)
        content = read_known_game(game.path)
        if self._engine is None:
            self._engine = textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        try:
            self._engine.load(content)  # not the path: the file may have changed since it was read
            # Ids become names ("desk 1") as alfworld does it, before the first text is made.
            things = self._engine._entity_infos
            names = Demangler(game_infos=things, shuffle=False)
            for thing in things.values():
                thing.name = names.demangle_alfred_name(thing.id)
            self._state = self._engine.reset()
        except (KeyError, ValueError, TypeError, AssertionError) as error:
            raise RequestError(f"TextWorld cannot play {game.path}: {type(error).__name__}: {error}") from error
        # The dialect belongs to the game file, whose grammar it is, not to the installed version.
        self._moves = "move {o} to {r}" in self._state["command_templates"]
        return self._read_state()

    def step(self, action: str) -> EngineState:
        """Carry out `action`, in either dialect."""
        # The engine accepts the dialect of its game alone.
        self._state, _, _ = self._engine.step(to_move(action) if self._moves else canonical(action))
        return self._read_state()

    def _read_state(self) -> EngineState:
        state = self._state
        return EngineState(state["feedback"], sorted(map(canonical, state["admissible_commands"])), bool(state["won"]))

    def frame(self, size: int) -> Any:
        """The room rendered, or an image of the text."""
        state, renderer = self._state, room_renderer()
        if renderer is None:
            return text_card(state["feedback"], size)
        facts = ((fact.name,) + tuple(argument.name for argument in fact.arguments) for fact in state["_facts"])
        names = {id_: info.name for id_, info in state["_entity_infos"].items()}
        return renderer.render(renderer.room_state(facts, names), size)

    def close(self) -> None:
        """Nothing to stop: the engine is part of this process."""


class RoomRenderer(NamedTuple):
    """How emac-plus renders a room: `render(room_state(facts, names), size)` is a PIL image."""

    render: Callable[[Any, int], Any]
    room_state: Callable[[Any, Dict[str, str]], Any]


def room_renderer() -> Optional[RoomRenderer]:
    """The renderer of emac-plus; None if it cannot be imported (Python before 3.10)."""
    _add_checkout_to_path()
    try:
        from alfworld_native.drawing import frames  # noqa: F401
        from alfworld_native.textworld import room_state
    except (ImportError, SyntaxError):
        return None
    return RoomRenderer(render_room, room_state)


def render_room(state: Any, size: int) -> Any:
    """A PIL image of a room of emac-plus."""
    from PIL import Image

    from alfworld_native.drawing import frames

    return Image.fromarray(frames.render(state, size=size))


def _add_checkout_to_path() -> None:
    """Let emac-plus be imported from the checkout that this file lies in."""
    parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.version_info >= (3, 10) and os.path.isdir(os.path.join(parent, "xrl_alignment")) and parent not in sys.path:
        sys.path.append(parent)


def require_game_file(game: GameFiles) -> None:
    """RequestError if `game` has none."""
    if not os.path.isfile(game.path):
        raise RequestError(f"no game file for {game.id}: looked for {game.path or GAME_FILE!r}")


class HouseholdBackend:
    """Generated or official games in emac-plus's own engine, which is more than 100 times as fast as TextWorld."""

    def __init__(self, max_steps: int) -> None:
        from alfworld_native import make_environment

        self._environment = make_environment("native", max_steps=max_steps)  # type: Any

    @staticmethod
    def load() -> None:
        """Import what playing needs, before the clients' processes are forked."""
        _add_checkout_to_path()
        try:
            from alfworld_native import make_environment
            from alfworld_native.drawing import frames  # noqa: F401

            make_environment("native").close()
        except (ImportError, SyntaxError) as error:
            raise ImportError(
                f"--env household needs emac-plus in this interpreter (Python 3.10 or newer): {error}"
            ) from error

    def reset(self, game: GameFiles) -> EngineState:
        """Load `game`; RequestError if the engine cannot play it."""
        from pathlib import Path

        from alfworld_native import base
        from lavis.common.errors import EmacError

        require_game_file(game)
        try:
            return self._read_state(self._environment.reset(base.Game(game.id, Path(game.path))))
        except (OSError, EmacError) as error:
            raise RequestError(str(error)) from error

    def step(self, action: str) -> EngineState:
        """Carry out `action`, in either dialect."""
        return self._read_state(self._environment.step(action))

    @staticmethod
    def _read_state(step: Any) -> EngineState:
        return EngineState(step.text, list(step.admissible_commands), step.won, step.done)

    def frame(self, size: int) -> Any:
        """The room rendered."""
        return render_room(self._environment.room_state(), size)

    def close(self) -> None:
        """Forget the game."""
        self._environment.close()


class ThorBackend:
    """ALFWorld in AI2-THOR through alfworld's `AlfredThorEnv`: the simulator's own frames, 300 x 300 pixels."""

    SIZE = 300

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._alfred = None  # type: Any

    @staticmethod
    def load() -> None:
        """Import alfworld's side; the simulator starts with the first game."""
        if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
            raise ImportError(
                "--env thor needs a display: set DISPLAY, run under `xvfb-run -a`, or take --env textworld"
            )
        try:
            import alfworld.agents.environment.alfred_thor_env  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "--env thor needs `pip install alfworld[full]` in this interpreter (--env textworld does not): "
                + str(error)
            ) from error

    def reset(self, game: GameFiles) -> EngineState:
        """Build the room of `game`; RequestError for one without object poses, and if the simulator stops."""
        if "object_poses" not in read_json(game.trajectory).get("scene", {}):
            raise RequestError(f"{game.trajectory} has no object poses: get ALFWorld's full data (alfworld-download)")
        if self._alfred is None:
            # "train" takes games from the list, which holds only this one; "eval" switches alfworld's own expert off.
            from alfworld.agents.environment.alfred_thor_env import AlfredThorEnv

            config = _thor_config(os.path.dirname(game.trajectory), self._max_steps, self.SIZE)
            self._alfred = AlfredThorEnv(config, train_eval="train").init_env(batch_size=1)
            self._alfred.envs[0].train_eval = "eval"
        self._alfred.json_file_list = [game.trajectory]
        return self._ask(lambda: self._alfred.reset())

    def step(self, action: str) -> EngineState:
        """Carry out `action`; alfworld's controller parses `put` only, whatever it lists."""
        return self._ask(lambda: self._alfred.step([canonical(action)]))

    def _ask(self, call: Any) -> EngineState:
        """The state after `call()`; EngineStopped if alfworld's thread has ended, or ends during the call.

        Without this check a dead thread would block the call, or alfworld would return the results of the step before.
        """
        thread = self._alfred.envs[0]
        before = thread.get_results()
        answer = call() if thread.is_alive() else None
        if answer is None or thread.get_results() is before:
            # The simulator may run on without the thread. It may have ended, too; then its `close` fails.
            with contextlib.suppress(Exception):
                self.close()
            self._alfred = None
            raise EngineStopped("AI2-THOR stopped answering; its log is in ~/.ai2thor/log")
        texts, infos = answer[0], answer[-1]
        commands = sorted({canonical(command) for command in infos["admissible_commands"][0]})
        return EngineState(texts[0], commands, bool(infos["won"][0]))

    def frame(self, size: int) -> Any:
        """The simulator's frame; alfworld gives its channels in OpenCV's order, BGR."""
        from PIL import Image

        image = Image.fromarray(self._alfred.get_frames()[0][:, :, ::-1])
        if image.size == (size, size):
            return image
        return image.resize((size, size), Image.BILINEAR)  # type: ignore[attr-defined]  # Pillow 8 has no Resampling

    def close(self) -> None:
        """Stop the simulator."""
        if self._alfred is not None:
            self._alfred.close()
        self._alfred = None


def _thor_config(data_path: str, max_steps: int, size: int) -> Dict[str, Any]:
    thor = {
        "screen_width": size,
        "screen_height": size,
        "smooth_nav": False,
        "save_frames_to_disk": False,
        "save_frames_path": "",
    }
    paths = {"data_path": data_path, "eval_id_data_path": data_path, "eval_ood_data_path": data_path}
    return {
        "dataset": dict(paths, num_train_games=0, num_eval_games=0),
        "env": {"task_types": [1, 2, 3, 4, 5, 6], "goal_desc_human_anns_prob": 0.0, "thor": thor},
        "controller": {"type": "oracle", "debug": False, "load_receps": False},
        "general": {"training_method": "dagger"},
        "dagger": {"training": {"max_nb_steps_per_episode": max_steps}},
    }


BACKENDS = {"thor": ThorBackend, "textworld": TextWorldBackend, "household": HouseholdBackend}  # type: Dict[str, Any]


# ---- one client's commands -----------------------------------------------------------------------------------------


class ClientSession:
    """One client's environment: each `cmd_…` takes a request and returns the answer, or raises RequestError."""

    COMMANDS = ("init", "step", "reset_task", "get_state", "is_goal_satisfied", "list_games", "shutdown")

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._folders = [options.data_dir] + options.traj_dir  # type: List[str]
        self._backend = BACKENDS[options.env](options.max_steps)  # type: Any
        self._format = options.image_format
        self.shutdown = False
        self._clear_game()

    def _clear_game(self) -> None:
        self._game = None  # type: Optional[GameFiles]
        self._engine_state = EngineState("", [], False)
        self._trajectory = []  # type: List[str]
        self._turns = 0

    def process_request(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The answer to a request; `success: false` and `error` if it cannot be done. It never raises."""
        try:
            command = _string_field(request, "command")
            if command not in self.COMMANDS:
                raise RequestError("unknown command {!r}: use one of {}".format(command[:80], ", ".join(self.COMMANDS)))
            return dict(getattr(self, "cmd_" + command)(request), success=True)
        except EngineStopped as error:
            self._clear_game()
            return failure(str(error))
        except RequestError as error:
            return failure(str(error))
        except Exception as error:  # an error inside the engine: this client's game is lost, the connection stays
            log(traceback.format_exc())
            self._clear_game()
            return failure(f"the engine failed: {type(error).__name__}: {error}")

    def cmd_init(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Load the game that `traj_file` names."""
        traj_file = _string_field(request, "traj_file")
        image_format = request.get("image_format", self._options.image_format)
        if image_format not in ("jpeg", "png"):
            raise RequestError(f"image_format is {image_format!r}: use jpeg or png")
        # First: if the new game cannot be loaded, no later request may go to the old one.
        self._clear_game()
        game = find_game(traj_file, self._folders)
        self._engine_state = self._backend.reset(game)
        self._game, self._format = game, image_format
        self._trajectory = [self._engine_state.text]
        return dict(
            self._state_fields(),
            task_desc=self._engine_state.text.rpartition(_TASK_PREFIX)[2].strip(),
            intro=self._engine_state.text,
            initial_image=self._encoded_frame(),
            game=game.id,
            task_type=game.task_type,
            image_format=image_format,
            max_steps=self._options.max_steps,
        )

    def cmd_step(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Carry out `action`; `action_success` is false if the engine answers only that nothing happens."""
        action = _string_field(request, "action", empty=True)  # a model may write nothing; then nothing happens
        if len(action) > MAX_ACTION_CHARS:
            raise RequestError(f"action has {len(action)} characters, {MAX_ACTION_CHARS} are allowed")
        self._require_game()
        if self._episode_over():
            raise RequestError(f"the episode is over after {self._turns} actions: init the next game")
        # A model writes line breaks and several blanks; the engines know commands with single ones.
        words = " ".join(action.split())
        self._engine_state = self._backend.step(words)
        self._turns += 1
        text = self._engine_state.text
        self._trajectory += [words, text]
        accepted = text.strip() != NOTHING_HAPPENS
        reason = "" if accepted else f"the engine does not accept {words!r} now: see admissible_commands"
        return dict(
            self._state_fields(),
            action=action,
            feedback=text,
            current_image=self._encoded_frame(),
            action_success=accepted,
            error_message=reason,
        )

    def cmd_reset_task(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Forget the game; the next one comes with `init`."""
        self._clear_game()
        return {}

    def cmd_get_state(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The episode since `init`; empty before it."""
        state = {
            "turn_count": self._turns,
            "trajectory": self._trajectory,
            "images_count": self._turns + 1 if self._game else 0,
        }
        if self._game:
            state.update(self._state_fields(), game=self._game.id, task_type=self._game.task_type)
        return state

    def cmd_is_goal_satisfied(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Whether the goal is reached now."""
        self._require_game()
        return {"goal_satisfied": self._engine_state.won}

    def cmd_list_games(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The games that `init` can load, those under `data_dir` or every JSON file in `traj_dir`, and the settings.

        Both are folders on the server's machine, under its --data-dir or --traj-dir; without them its --data-dir is
        searched.
        """
        if request.get("traj_dir"):
            folder = allowed(_folder_field(request, "traj_dir"), self._folders)
            if not os.path.isdir(folder):
                raise RequestError(f"no folder {folder} on the server")
            # Hidden files, such as the `._x.json` that macOS leaves in archives, hold no trajectories.
            files = sorted(name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("."))
            games = [{"traj_file": os.path.join(folder, name), "game": name[:-5]} for name in files]
            return {"games": games, "settings": self._settings()}
        root = self._options.data_dir
        if request.get("data_dir"):
            root = allowed(_folder_field(request, "data_dir"), self._folders)
        games = [
            {"traj_file": folder, "game": _game_in(folder, "").id}
            for folder in trial_folders(root)
            # AI2-THOR builds the room from the trajectory; the text engines need a game file that can be solved.
            if (
                os.path.isfile(os.path.join(folder, TRAJECTORY_FILE))
                if self._options.env == "thor"
                else solvable(os.path.join(folder, GAME_FILE))
            )
        ]
        if not games:
            raise RequestError(f"no games for --env {self._options.env} under {root} on the server")
        return {"games": games, "settings": self._settings()}

    def _settings(self) -> Dict[str, Any]:
        """The options that a game's course and frames depend on."""
        names = ("env", "max_steps", "image_size", "image_format", "jpeg_quality")
        return {"server_" + name: getattr(self._options, name) for name in names}

    def cmd_shutdown(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Stop the whole server, for all clients."""
        self.shutdown = True
        return {"message": "Server shutting down"}

    def close(self) -> None:
        """Stop the engine."""
        self._backend.close()

    def _require_game(self) -> None:
        if self._game is None:
            raise RequestError("no game is loaded: send init with a traj_file first")

    def _episode_over(self) -> bool:
        state = self._engine_state
        return state.won or state.over or self._turns >= self._options.max_steps

    def _state_fields(self) -> Dict[str, Any]:
        return {
            "goal_satisfied": self._engine_state.won,
            "turn_count": self._turns,
            "done": self._episode_over(),
            "admissible_commands": self._engine_state.commands,
        }

    def _encoded_frame(self) -> str:
        options = self._options
        return encode_image(self._backend.frame(options.image_size), self._format, options.jpeg_quality)


def _string_field(request: Dict[str, Any], key: str, empty: bool = False) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not (empty or value.strip()):
        raise RequestError("{!r} must be a string{}".format(key, "" if empty else " that is not empty"))
    return value


def _folder_field(request: Dict[str, Any], key: str) -> str:
    """The absolute path of the folder that a field names."""
    named = _string_field(request, key)
    try:
        return os.path.abspath(os.path.expanduser(named))
    except ValueError as error:  # a user's name with half a surrogate pair
        raise RequestError(f"no folder {named[:200]!r}: {error}") from error


def failure(reason: str) -> Dict[str, Any]:
    """The answer to a request that could not be done."""
    return {"success": False, "error": " ".join(reason.split())}


# ---- the wire ------------------------------------------------------------------------------------------------------


def decode(line: bytes) -> Dict[str, Any]:
    """The request in a line; RequestError if it is not a JSON object."""
    try:
        request = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise RequestError("the message is not UTF-8") from None
    except RecursionError:
        raise RequestError("the message is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the message is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise RequestError('the message must be a JSON object such as {"command": "get_state"}')
    return request


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def encode(answer: Dict[str, Any]) -> bytes:
    """An answer as one line."""
    # `dumps` escapes line ends and all that is not ASCII, so the only line end is the last byte.
    return json.dumps(answer).encode("ascii") + b"\n"


class LineReader:
    """Reads lines from a socket, in whatever pieces they arrive.

    `next()` waits for the next line. It raises RequestError for a line longer than `limit` bytes, which is skipped and
    never kept in memory; IdleTimeout if no line is complete within `idle_s` seconds; EOFError if the client has
    gone, or the server's process has ended (which holds the other end of the pipe `lifeline`).
    """

    def __init__(
        self, connection: socket.socket, limit: int, idle_s: float, lifeline: int, received: bytes = b""
    ) -> None:
        self._connection, self._limit, self.idle_s, self._lifeline = connection, limit, idle_s, lifeline
        self._buffer = bytearray(received)
        self._searched = 0  # this much of the buffer has no line end
        self._skipping = False

    def next(self) -> bytes:
        """The next line, without its end."""
        deadline = time.monotonic() + self.idle_s
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                if not self._skipping:
                    self._check(len(line))
                    return line
                self._skipping = False
                continue
            # A line that is too long is reported once; its rest is dropped as it comes.
            if self._skipping:
                self._buffer.clear()
            self._searched = len(self._buffer)
            if self._searched > self._limit:
                self._skipping = True
                self._check(self._searched)
            # Wait for the client, or for the end of the server: then the lifeline is ready, too.
            sources = [self._connection, self._lifeline]  # type: List[Any]
            ready, _, _ = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise IdleTimeout()
            piece = self._connection.recv(_CHUNK) if self._lifeline not in ready else b""
            if not piece:
                raise EOFError()
            self._buffer += piece

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise RequestError(f"the message is longer than {self._limit} bytes")


def serve_client(connection: socket.socket, options: argparse.Namespace, lifeline: int, received: bytes = b"") -> bool:
    """Answer a client, of whom `received` has come, until it leaves; True if it asked to shut the server down."""
    lines = LineReader(connection, options.max_message, options.idle_timeout, lifeline, received)
    try:
        if options.token:
            lines.idle_s = min(options.idle_timeout, _FIRST_MESSAGE_S)
        request = admit(lines.next(), options.token)
        lines.idle_s = options.idle_timeout
        with contextlib.closing(ClientSession(options)) as session:
            connection.sendall(encode(session.process_request(request)))
            while not session.shutdown:
                try:
                    answer = session.process_request(decode(lines.next()))
                except RequestError as error:  # a line that is no request: the connection stays
                    answer = failure(str(error))
                connection.sendall(encode(answer))
            return session.shutdown
    except RequestError as error:  # of `admit`
        log(f"Client refused: {error}")
        hang_up(connection, str(error))
    except IdleTimeout:
        hang_up(connection, f"closed: no message within {lines.idle_s:g} seconds (--idle-timeout)")
    except EOFError:
        log("Client left")
    return False


def admit(line: bytes, token: str) -> Dict[str, Any]:
    """The request in a client's first line; RequestError ends the connection.

    A first line that is no JSON object comes from another protocol: in HTTP, which any web page can send to this port,
    later lines can be JSON. With a `token` (empty: none) the request must carry it in its field `token`.
    """
    request = decode(line)
    shown = request.pop("token", "")
    # Compared as bytes: `compare_digest` takes no text beyond ASCII, and JSON may hold half a surrogate pair.
    shown = shown.encode("utf-8", "surrogatepass") if isinstance(shown, str) else b""
    if token and not hmac.compare_digest(shown, token.encode("utf-8", "surrogatepass")):
        raise RequestError(f"the first message must carry the server's token: set {TOKEN_VARIABLE} for the client")
    return request


def hang_up(connection: socket.socket, reason: str) -> None:
    """Tell the client why, and end.

    What it goes on sending is dropped for a moment: closing with unread bytes would reset the connection, and the
    reason could be lost.
    """
    connection.sendall(encode(failure(reason)))
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(_HANG_UP_S)
    deadline = time.monotonic() + _HANG_UP_S
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline and connection.recv(_CHUNK):
            pass


# ---- the server ----------------------------------------------------------------------------------------------------


class Visitor:
    """A connection whose first message has not come, or that was refused and may still send."""

    def __init__(self, connection: socket.socket, address: Any, deadline: float) -> None:
        self.connection, self.address, self.deadline = connection, address, deadline
        self.received = bytearray()
        self.refused = False


class WaitingRoom:
    """The connections that have no process yet. A first message that `admit` takes makes a client of one.

    Anyone who reaches the port can open such a connection, so there are at most _MAX_WAITING: one more closes the one
    that has waited longest. Clients that send at once always get through.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._limit, self._token = options.max_message, options.token
        self._wait_s = min(options.idle_timeout, _FIRST_MESSAGE_S) if options.token else options.idle_timeout
        self._visitors = {}  # type: Dict[socket.socket, Visitor]  # the one that waits longest first

    def connections(self) -> List[socket.socket]:
        """All that wait."""
        return list(self._visitors)

    def seconds_left(self) -> float:
        """Until the next deadline."""
        ends = [visitor.deadline for visitor in self._visitors.values()]
        return max(0.0, min(ends) - time.monotonic()) if ends else float("inf")

    def enter(self, connection: socket.socket, address: Any) -> Visitor:
        """Let a new connection wait."""
        connection.setblocking(False)
        if len(self._visitors) >= _MAX_WAITING:
            self._drop(next(iter(self._visitors.values())))
        visitor = Visitor(connection, address, time.monotonic() + self._wait_s)
        self._visitors[connection] = visitor
        return visitor

    def read(self, connection: socket.socket) -> Optional[Visitor]:
        """Read what has come; the visitor, no longer here, if that completes a first message that is admitted."""
        visitor = self._visitors[connection]
        try:
            piece = connection.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        if not piece:
            self._drop(visitor)
        elif not visitor.refused:
            visitor.received += piece
            if b"\n" in piece or len(visitor.received) > self._limit:
                # The first message is checked here, before a process is forked for it: strangers cost no process.
                line = bytes(visitor.received).partition(b"\n")[0]
                try:
                    if len(line) > self._limit:
                        raise RequestError(f"the message is longer than {self._limit} bytes")
                    admit(line, self._token)
                except RequestError as error:
                    self.refuse(visitor, str(error))
                    return None
                return self._visitors.pop(visitor.connection)
        return None

    def refuse(self, visitor: Visitor, reason: str) -> None:
        """Tell a visitor why; what it goes on sending is dropped for a moment (see `hang_up`)."""
        log(f"Client refused: {reason}")
        visitor.refused, visitor.deadline = True, time.monotonic() + _HANG_UP_S
        self._visitors[visitor.connection] = visitor
        try:
            visitor.connection.send(encode(failure(reason)))
            visitor.connection.shutdown(socket.SHUT_WR)
        except OSError:  # it has left
            self._drop(visitor)

    def send_away_late(self) -> None:
        """Refuse those whose time is over."""
        now = time.monotonic()
        for visitor in [visitor for visitor in self._visitors.values() if visitor.deadline <= now]:
            if visitor.refused:
                self._drop(visitor)
            else:
                self.refuse(visitor, f"closed: no message within {self._wait_s:g} seconds (--idle-timeout)")

    def close(self) -> None:
        """Close all connections, in this process."""
        for visitor in list(self._visitors.values()):
            self._drop(visitor)

    def _drop(self, visitor: Visitor) -> None:
        del self._visitors[visitor.connection]
        visitor.connection.close()


class ForkingServer:
    """Listens, and forks a process for each client. A byte written to `_stop_writer` stops it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._listener = listen(options.host, options.port)
        self._listener.setblocking(False)
        # The self-pipe trick (D. J. Bernstein): a signal handler, or a client's process, writes a byte, which ends the
        # server's `select`.
        self._stop_reader, self._stop_writer = os.pipe()
        # Nothing is ever written to this pipe. When the server ends, the clients' processes read its end, and end too.
        self._lifeline_reader, self._lifeline_writer = os.pipe()
        self._clients = set()  # type: set
        self._signal = 0

    def address(self) -> str:
        """The IP address that it listens on."""
        return str(self._listener.getsockname()[0])

    def run(self) -> int:
        """Serve until a client asks to shut down (returns 0) or a signal comes (returns 128 + its number)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        log(f"ALFWorld server listening on {self._options.host}:{self._listener.getsockname()[1]}")
        self._room = WaitingRoom(self._options)
        try:
            while self._turn():
                pass
        finally:
            self._listener.close()
            self._room.close()
            # Ask the clients' processes to end, then force those that have not.
            for number in (signal.SIGTERM, signal.SIGKILL):
                for child in self._clients:
                    os.kill(child, number)
                deadline = time.monotonic() + _GRACE_S
                while self._clients and time.monotonic() < deadline:
                    self._forget_ended_clients()
                    time.sleep(0.01)
        log("ALFWorld server stopped")
        return 128 + self._signal if self._signal else 0

    def _stop(self, number: int, frame: Any) -> None:
        self._signal = number
        os.write(self._stop_writer, b"x")

    def _turn(self) -> bool:
        """Wait for something to do, and do it; False if the server shall stop."""
        sources = [self._listener, self._stop_reader]  # type: List[Any]
        # A second at most, so that processes that have ended are collected even if nobody connects.
        ready, _, _ = select.select(sources + self._room.connections(), [], [], min(1.0, self._room.seconds_left()))
        self._forget_ended_clients()
        if self._stop_reader in ready:
            return False
        # Those who wait come before newcomers, which could push them out of a full room.
        for source in ready:
            # Each begins before the next one leaves the room: its process closes the connections that wait there.
            visitor = None if source in sources else self._room.read(source)
            if visitor is not None:
                self._begin(visitor)
        self._room.send_away_late()
        if self._listener in ready:
            try:
                for _ in range(_MAX_WAITING):
                    newcomer = self._room.enter(*self._listener.accept())
                    if self._full():
                        self._room.refuse(newcomer, self._full())
            except BlockingIOError:  # all are in
                pass
            except OSError as error:  # the client has left already, or there are too many open files
                log(f"Client refused: {error}")
                time.sleep(0.05)  # the listener stays ready meanwhile: without a pause this would take a whole core
        return True

    def _full(self) -> str:
        number = len(self._clients)
        full = number >= self._options.max_clients
        return f"the server is full: it serves {number} clients (--max-clients)" if full else ""

    def _begin(self, visitor: Visitor) -> None:
        if self._full():
            self._room.refuse(visitor, self._full())
            return
        try:
            with contextlib.closing(visitor.connection):  # in this process: the child has a copy of its own
                child = os.fork()
                if child == 0:
                    self._in_child(visitor)
                self._clients.add(child)
                log(f"Client connected from {visitor.address[:2]}")
        except OSError as error:  # too many processes
            log(f"Client refused: {error}")

    def _in_child(self, visitor: Visitor) -> None:
        """All that a client's process does; it never returns, so that no code of the server runs in it."""
        code, connection = 1, visitor.connection
        try:
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us, too; the server decides
            self._listener.close()
            self._room.close()
            os.close(self._lifeline_writer)
            connection.settimeout(self._options.idle_timeout)  # for a client that reads no answers
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # For a client whose machine is gone: it sends no end, but it answers no probe either.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if serve_client(connection, self._options, self._lifeline_reader, bytes(visitor.received)):
                os.write(self._stop_writer, b"x")
            code = 0
        except OSError as error:
            log(f"Client lost: {error}")
        except SystemExit:
            code = 0
        except BaseException:
            log(traceback.format_exc())
        finally:
            os._exit(code)  # not sys.exit: TextWorld's planner crashes when Python unloads it

    def _forget_ended_clients(self) -> None:
        for child in list(self._clients):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._clients.discard(child)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; OSError, which says how to fix it, if the address is taken or unknown."""
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", 0) == errno.EADDRINUSE:
            raise OSError(f"port {port} on {host} is taken: choose another with --port") from None
        raise OSError(f"cannot listen on {host}:{port}: {error}") from error
    return listener


def log(text: str) -> None:
    """Print lines to stdout, each with a mark; a closed stdout must not stop the server."""
    # One write for all lines: several processes write to the same stdout.
    lines = "".join(f"[SERVER] {line}\n" for line in text.splitlines())
    with contextlib.suppress(OSError, ValueError):
        os.write(1, lines.encode("utf-8", "backslashreplace"))


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:  # a socket would take it modulo 65,536
        raise argparse.ArgumentTypeError(f"{port} is no port: use 0 to 65535")
    return port


def parse_arguments(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """The command line, with `--help`."""
    parser = argparse.ArgumentParser(
        description="Plays ALFWorld games for clients on a TCP socket (JSON messages, one on each line).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--host", default="localhost", help="address to listen on; one that is not loopback needs " + TOKEN_VARIABLE
    )
    parser.add_argument("--port", type=_port, default=5555, help="its port; 0 takes any free one")
    parser.add_argument("--env", choices=sorted(BACKENDS), default="thor", help="engine that plays the games")
    parser.add_argument(
        "--data-dir", help="folder with games (default: $ALFWORLD_DATA, ~/.cache/alfworld, or generated for household)"
    )
    parser.add_argument(
        "--traj-dir",
        action="append",
        default=[],
        help="a folder outside --data-dir with copies of traj_data.json, which clients may name; may be repeated",
    )
    parser.add_argument("--max-steps", type=int, default=50, help="actions in an episode")
    parser.add_argument(
        "--image-format",
        choices=("jpeg", "png"),
        default="jpeg",
        help="format of frames, unless the client asks for another",
    )
    parser.add_argument("--image-size", type=int, default=300, help="width and height of frames in pixels")
    parser.add_argument("--jpeg-quality", type=int, default=85, help="1 to 95")
    parser.add_argument("--max-clients", type=int, default=64, help="clients at the same time")
    parser.add_argument("--max-message", type=int, default=1 << 16, help="longest request in bytes")
    parser.add_argument(
        "--idle-timeout",
        type=float,
        default=3600.0,
        help="seconds without a message after which a client is disconnected",
    )
    options = parser.parse_args(argv)
    for name in ("max_steps", "image_size", "max_clients", "max_message"):
        if getattr(options, name) < 1:
            parser.error("argument --{}: {} is less than 1".format(name.replace("_", "-"), getattr(options, name)))
    if not 1 <= options.jpeg_quality <= 95:  # above 95 Pillow's files grow without looking better
        parser.error(f"argument --jpeg-quality: {options.jpeg_quality} is not between 1 and 95")
    if not 0 < options.idle_timeout <= 1e6:  # epoll takes no more than 2**31 milliseconds
        parser.error(f"argument --idle-timeout: {options.idle_timeout:g} is not above 0 and at most 1,000,000")
    return options


def data_folder(options: argparse.Namespace) -> str:
    """The folder with games, an absolute path; OSError if it does not exist."""
    chosen = options.data_dir
    if not chosen and options.env == "household":
        HouseholdBackend.load()
        from alfworld_native import choose_games

        chosen = str(choose_games("household", "household_heldout")[0].path.parents[2])
    chosen = chosen or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
    folder = os.path.abspath(os.path.expanduser(os.path.expandvars(chosen)))
    if not os.path.isdir(folder):
        raise OSError(f"no games: {folder} is no folder; give one with --data-dir, or run alfworld-download")
    return folder


def access_token(address: str) -> str:
    """The token that clients must show (empty: none), taken out of the environment; ValueError if it cannot do."""
    # Out of the environment: what an engine starts, such as the simulator, need not know it.
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if token and len(token) < MIN_TOKEN_CHARS:
        raise ValueError(f"{TOKEN_VARIABLE} has {len(token)} characters: a token has at least {MIN_TOKEN_CHARS}")
    if not token and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise ValueError(
            f"{address} may be reached from other machines: set {TOKEN_VARIABLE} to a random text (openssl rand -hex "
            "32), for the clients too, or listen on localhost"
        )
    return token


def main(argv: Optional[List[str]] = None) -> int:
    """Listen, import the engine, serve; returns the exit code."""
    options = parse_arguments(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the clients' processes share the cores
    try:
        options.data_dir = data_folder(options)
        options.traj_dir = [os.path.abspath(os.path.expanduser(folder)) for folder in options.traj_dir]
        # The port before the engine, whose import takes seconds: if the port is taken, that is told at once. The token
        # after the port: only then it is known which address a host name means.
        server = ForkingServer(options)
        options.token = access_token(server.address())
        BACKENDS[options.env].load()
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        sys.stderr.write("error: {}\n".format(" ".join(str(error).split())))
        return 2
    return server.run()


if __name__ == "__main__":
    sys.exit(main())
