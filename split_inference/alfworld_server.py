#!/usr/bin/env python3
"""ALFWorld behind a TCP socket, for a model that lives in another interpreter or on another machine.

    python alfworld_server.py --host localhost --port 5555 --env textworld --data-dir /data/json_2.1.1/valid_seen

A message is one JSON object on one line (UTF-8), its answer is one too, in order; docs/split_inference.md describes
them. Every client has an environment of its own, in a process of its own: many play at once, on all cores, and none
can disturb another. There is no password: whoever reaches the port can play and can shut the server down.

This file stands alone: Python 3.6 or newer, alfworld and Pillow. `--env thor` shows the simulator's own frames. The
text engines have none: with the emac-plus package (Python 3.10 or newer) beside it the room is drawn, without it a
card shows the text.
"""

import argparse
import base64
import contextlib
import errno
import io
import json
import os
import select
import signal
import socket
import sys
import textwrap
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

GAME_FILE, TRAJECTORY_FILE = "game.tw-pddl", "traj_data.json"
LARGEST_FILE = 16 << 20  # bytes; ALFWorld's own files have 0.1 MB
LONGEST_ACTION = 500  # characters
NOTHING_HAPPENS = "Nothing happens."
_GOAL = "Your task is to: "
_CHUNK = 1 << 16
_GRACE_S = 5.0  # for clients' processes to end by themselves


class Fault(Exception):
    """What makes a request fail; its text goes to the client as `error`."""


class Idle(Exception):
    """A client has said nothing for too long."""


class Game(NamedTuple):
    """A game on disk; `id` is `<task folder>/<trial folder>`, AI2-THOR builds its room from the file `trajectory`."""

    id: str
    task_type: str
    path: str
    trajectory: str


class Moment(NamedTuple):
    """What a backend answers: the engine's words, the commands it would accept now, whether the goal holds."""

    text: str
    commands: List[str]
    won: bool


# ---- commands in two dialects --------------------------------------------------------------------------------------


def canonical(command: str) -> str:
    """`move X to Y` (ALFWorld 0.4's games) as `put X in/on Y` (before); all else stays."""
    what, found, where = command[5:].partition(" to ")
    return f"put {what} in/on {where}" if found and command.startswith("move ") else command


def to_move(command: str) -> str:
    """`put X in/on Y` as `move X to Y`; all else stays."""
    what, found, where = command[4:].partition(" in/on ")
    return f"move {what} to {where}" if found and command.startswith("put ") else command


# ---- games on disk -------------------------------------------------------------------------------------------------


def read_json(path: str) -> Dict[str, Any]:
    """The object in a JSON file; Fault where it is none, too large, or no regular file."""
    if not os.path.isfile(path):
        raise Fault(f"no file {path}")
    if os.path.getsize(path) > LARGEST_FILE:
        raise Fault(f"{path} is larger than {LARGEST_FILE} bytes")
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise Fault(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise Fault(f"{path} holds no JSON object")
    return content


def find_game(traj_file: str, data_dir: str) -> Game:
    """The game that `traj_file` names, relative to `data_dir`.

    It is a trial folder, a file in one (`traj_data.json`, `game.tw-pddl`), or a copy of a `traj_data.json` anywhere,
    whose trial folder is then looked for under `data_dir` by its `task_id`. Raises Fault where there is nothing.
    """
    try:
        path = os.path.abspath(os.path.join(data_dir, os.path.expanduser(traj_file)))
        os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a zero byte, half a surrogate pair
        raise Fault(f"no game {traj_file!r}: {error}") from error
    if os.path.basename(path) in (GAME_FILE, TRAJECTORY_FILE):
        path = os.path.dirname(path)
    if os.path.isdir(path):
        return _game_in(path, os.path.join(path, TRAJECTORY_FILE))
    about = read_json(path)
    trial = about.get("task_id")
    if not isinstance(trial, str):
        raise Fault(f"{path} has no task_id: it is no ALFWorld trajectory")
    for folder in trial_folders(data_dir):
        if os.path.basename(folder) == trial:
            return _game_in(folder, path)
    return Game(trial, str(about.get("task_type", "")), "", path)


def _game_in(folder: str, trajectory: str) -> Game:
    task = os.path.basename(os.path.dirname(folder))
    return Game(f"{task}/{os.path.basename(folder)}", task.split("-")[0], os.path.join(folder, GAME_FILE), trajectory)


def trial_folders(data_dir: str) -> Iterator[str]:
    """Every folder under `data_dir` that holds a game, sorted; without those that ALFWorld itself leaves out."""
    for folder, inner, files in os.walk(data_dir):
        inner[:] = sorted(name for name in inner if "movable" not in name and "Sliced" not in name)
        if GAME_FILE in files or TRAJECTORY_FILE in files:
            yield folder


def solvable(path: str) -> bool:
    """ALFWorld's own test of a game file: `"solvable": true` (read as text, parsing takes ten times as long)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found, _, value = file.read(LARGEST_FILE).rpartition('"solvable"')
    except OSError:
        return False
    return bool(found) and value.lstrip(" :").startswith("true")


# ---- pictures ------------------------------------------------------------------------------------------------------


def text_card(text: str, size: int) -> Any:
    """`text` in lines on a white card of `size` x `size` pixels: a frame where nothing can draw the room."""
    from PIL import Image, ImageDraw

    card = Image.new("RGB", (size, size), (250, 250, 246))
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, max(1, (size - 12) // 6))]
    ImageDraw.Draw(card).multiline_text((6, 6), "\n".join(lines).encode("ascii", "replace").decode(), fill=(20, 20, 24))
    return card


def encode_image(image: Any, image_format: str, quality: int) -> str:
    """A PIL image as base64 of a JPEG or PNG file."""
    out = io.BytesIO()
    if image_format == "png":
        image.save(out, "PNG", compress_level=1)
    else:
        image.save(out, "JPEG", quality=quality)
    return base64.b64encode(out.getvalue()).decode("ascii")


# ---- engines -------------------------------------------------------------------------------------------------------


class TextWorldBackend:
    """ALFWorld's text games in TextWorld, as alfworld's own environment plays them."""

    def __init__(self, max_steps: int) -> None:
        self._engine = None  # type: Any
        self._state = None  # type: Any
        self._moves = False

    @staticmethod
    def load() -> None:
        """Import what playing needs, before clients' processes are forked."""
        import textworld.envs
        from alfworld.agents.utils.misc import Demangler  # noqa: F401

        if not hasattr(textworld.envs, "PddlEnv"):
            raise ImportError("--env textworld needs TextWorld 1.6 or newer, which needs Python 3.9 or newer")
        drawing()

    def reset(self, game: Game) -> Moment:
        """Load `game`; Fault where TextWorld cannot play it."""
        import textworld
        from alfworld.agents.utils.misc import Demangler

        if not os.path.isfile(game.path):
            raise Fault(f"no game file for {game.id}: looked for {game.path or GAME_FILE!r}")
        if self._engine is None:
            self._engine = textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        try:
            self._engine.load(game.path)
            things = self._engine._entity_infos
            names = Demangler(game_infos=things, shuffle=False)
            for thing in things.values():
                thing.name = names.demangle_alfred_name(thing.id)
            self._state = self._engine.reset()
        except (KeyError, ValueError, TypeError, AssertionError) as error:
            raise Fault(f"TextWorld cannot play {game.path}: {type(error).__name__}: {error}") from error
        # The dialect belongs to the game file, whose grammar it is, not to the installed version.
        self._moves = "move {o} to {r}" in self._state["command_templates"]
        return self._moment()

    def step(self, action: str) -> Moment:
        """Carry out `action`, in either dialect."""
        self._state, _, _ = self._engine.step(to_move(action) if self._moves else canonical(action))
        return self._moment()

    def _moment(self) -> Moment:
        state = self._state
        return Moment(state["feedback"], sorted(map(canonical, state["admissible_commands"])), bool(state["won"]))

    def frame(self, size: int) -> Any:
        """The room drawn, or a card with the text."""
        state, package = self._state, drawing()
        if package is None:
            return text_card(state["feedback"], size)
        facts = ((fact.name,) + tuple(argument.name for argument in fact.arguments) for fact in state["_facts"])
        names = {id_: info.name for id_, info in state["_entity_infos"].items()}
        return package.draw(package.room_state(facts, names), size)

    def close(self) -> None:
        """Nothing to stop: the engine is part of this process."""


class Drawing(NamedTuple):
    """How emac-plus draws a room: `draw(room_state(facts, names), size)` is a PIL image."""

    draw: Callable[[Any, int], Any]
    room_state: Callable[[Any, Dict[str, str]], Any]


def drawing() -> Optional[Drawing]:
    """The drawing part of emac-plus; None where it cannot be imported (Python before 3.10)."""
    _look_beside()
    try:
        from PIL import Image

        from xrl_alignment.environments.drawing import frames
        from xrl_alignment.environments.textworld import room_state
    except (ImportError, SyntaxError):
        return None
    return Drawing(lambda state, size: Image.fromarray(frames.render(state, size=size)), room_state)


def _look_beside() -> None:
    """Let the package be imported from the checkout that this file lies in."""
    parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.version_info >= (3, 10) and os.path.isdir(os.path.join(parent, "xrl_alignment")) and parent not in sys.path:
        sys.path.append(parent)


class HouseholdBackend:
    """The same games, generated or official, in emac-plus's own engine: more than 100 times as fast."""

    def __init__(self, max_steps: int) -> None:
        from xrl_alignment.environments.native.environment import NativeEnvironment

        self._environment = NativeEnvironment(max_steps=max_steps)

    @staticmethod
    def load() -> None:
        """Import what playing needs."""
        _look_beside()
        try:
            from xrl_alignment.environments.drawing import frames  # noqa: F401
            from xrl_alignment.environments.native import environment  # noqa: F401
        except (ImportError, SyntaxError) as error:
            raise ImportError(
                f"--env household needs emac-plus in this interpreter (Python 3.10 or newer): {error}"
            ) from error

    def reset(self, game: Game) -> Moment:
        """Load `game`; Fault where the engine cannot play it."""
        from pathlib import Path

        from xrl_alignment.environments import base

        try:
            return self._moment(self._environment.reset(base.Game(game.id, Path(game.path))))
        except (OSError, base.EnvironmentFault) as error:
            raise Fault(str(error)) from error

    def step(self, action: str) -> Moment:
        """Carry out `action`, in either dialect."""
        return self._moment(self._environment.step(action))

    @staticmethod
    def _moment(step: Any) -> Moment:
        return Moment(step.text, list(step.admissible_commands), step.won)

    def frame(self, size: int) -> Any:
        """The room drawn."""
        from PIL import Image

        from xrl_alignment.environments.drawing import frames

        return Image.fromarray(frames.render(self._environment.room_state(), size=size))

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

    def reset(self, game: Game) -> Moment:
        """Build the room of `game`; Fault for one without object poses and where the simulator stops."""
        if "object_poses" not in read_json(game.trajectory).get("scene", {}):
            raise Fault(f"{game.trajectory} has no object poses: get ALFWorld's full data (alfworld-download)")
        if self._alfred is None:
            # "train" draws from the list of games, which holds just this one; alfworld's own expert is not wanted.
            from alfworld.agents.environment.alfred_thor_env import AlfredThorEnv

            config = _thor_config(os.path.dirname(game.trajectory), self._max_steps, self.SIZE)
            self._alfred = AlfredThorEnv(config, train_eval="train").init_env(batch_size=1)
            self._alfred.envs[0].train_eval = "eval"
        self._alfred.json_file_list = [game.trajectory]
        return self._ask(lambda: self._alfred.reset())

    def step(self, action: str) -> Moment:
        """Carry out `action`; alfworld's controller parses `put` only, whatever it lists."""
        return self._ask(lambda: self._alfred.step([canonical(action)]))

    def _ask(self, call: Any) -> Moment:
        """`call()`, unless alfworld's thread is dead or dies of it: then it would wait, or repeat its old results."""
        thread = self._alfred.envs[0]
        before = thread.get_results()
        answer = call() if thread.is_alive() else None
        if answer is None or thread.get_results() is before:
            self._alfred = None
            raise Fault("AI2-THOR stopped answering; its log is in ~/.ai2thor/log")
        texts, infos = answer[0], answer[-1]
        commands = sorted({canonical(command) for command in infos["admissible_commands"][0]})
        return Moment(texts[0], commands, bool(infos["won"][0]))

    def frame(self, size: int) -> Any:
        """The simulator's frame; alfworld hands it over in OpenCV's order of colours."""
        from PIL import Image

        image = Image.fromarray(self._alfred.get_frames()[0][:, :, ::-1])
        return image if image.size == (size, size) else image.resize((size, size), Image.BILINEAR)

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


BACKENDS = {"thor": ThorBackend, "textworld": TextWorldBackend, "household": HouseholdBackend}


# ---- one client's commands -----------------------------------------------------------------------------------------


class Session:
    """One client's environment: each `cmd_…` takes a request and returns the answer, or raises Fault."""

    COMMANDS = ("init", "step", "reset_task", "get_state", "is_goal_satisfied", "list_games", "shutdown")

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._backend = BACKENDS[options.env](options.max_steps)  # type: Any
        self._format = options.image_format
        self.shutdown = False
        self._forget()

    def _forget(self) -> None:
        self._game = None  # type: Optional[Game]
        self._moment = Moment("", [], False)
        self._trajectory = []  # type: List[str]
        self._turns = 0

    def process_request(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The answer to a request; `success: false` and `error` where it cannot be done. Never raises."""
        try:
            command = _text(request, "command")
            if command not in self.COMMANDS:
                raise Fault("unknown command {!r}: use one of {}".format(command[:80], ", ".join(self.COMMANDS)))
            return dict(getattr(self, "cmd_" + command)(request), success=True)
        except Fault as fault:
            return failure(str(fault))
        except Exception as error:  # the engine's own: this client's game is lost, the connection goes on
            log(traceback.format_exc())
            self._forget()
            return failure(f"the engine failed: {type(error).__name__}: {error}")

    def cmd_init(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Load the game that `traj_file` names."""
        traj_file = _text(request, "traj_file")
        image_format = request.get("image_format", self._options.image_format)
        if image_format not in ("jpeg", "png"):
            raise Fault(f"image_format is {image_format!r}: use jpeg or png")
        self._forget()
        game = find_game(traj_file, self._options.data_dir)
        self._moment = self._backend.reset(game)
        self._game, self._format = game, image_format
        self._trajectory = [self._moment.text]
        return dict(
            self._now(),
            task_desc=self._moment.text.rpartition(_GOAL)[2].strip(),
            intro=self._moment.text,
            initial_image=self._picture(),
            game=game.id,
            task_type=game.task_type,
            image_format=image_format,
            max_steps=self._options.max_steps,
        )

    def cmd_step(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Carry out `action`; `action_success` is false where the engine only says that nothing happens."""
        action = _text(request, "action", empty=True)  # a model may have written nothing: nothing happens
        if len(action) > LONGEST_ACTION:
            raise Fault(f"action has {len(action)} characters, {LONGEST_ACTION} are allowed")
        self._playing()
        if self._over():
            raise Fault(f"the episode is over after {self._turns} actions: init the next game")
        words = " ".join(action.split())
        self._moment = self._backend.step(words)
        self._turns += 1
        text = self._moment.text
        self._trajectory += [words, text]
        done = text.strip() != NOTHING_HAPPENS
        reason = "" if done else f"the engine does not accept {words!r} now: see admissible_commands"
        return dict(
            self._now(),
            action=action,
            feedback=text,
            current_image=self._picture(),
            action_success=done,
            error_message=reason,
        )

    def cmd_reset_task(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Forget the game; the next one comes with `init`."""
        self._forget()
        return {}

    def cmd_get_state(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """What has happened since `init`; nothing before it."""
        state = {
            "turn_count": self._turns,
            "trajectory": self._trajectory,
            "images_count": self._turns + 1 if self._game else 0,
        }
        if self._game:
            state.update(self._now(), game=self._game.id, task_type=self._game.task_type)
        return state

    def cmd_is_goal_satisfied(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Whether the goal holds now."""
        self._playing()
        return {"goal_satisfied": self._moment.won}

    def cmd_list_games(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """What `init` can be asked for: the playable games under `data_dir`, or every JSON file in `traj_dir`.

        Both are folders of the server; without them, its own --data-dir is searched.
        """
        if request.get("traj_dir"):
            folder = os.path.abspath(os.path.expanduser(_text(request, "traj_dir")))
            if not os.path.isdir(folder):
                raise Fault(f"no folder {folder} on the server")
            files = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
            return {"games": [{"traj_file": os.path.join(folder, name), "game": name[:-5]} for name in files]}
        root = self._options.data_dir
        if request.get("data_dir"):
            root = os.path.abspath(os.path.expanduser(_text(request, "data_dir")))
        text = self._options.env != "thor"
        games = [
            {"traj_file": folder, "game": _game_in(folder, "").id}
            for folder in trial_folders(root)
            if (solvable(os.path.join(folder, GAME_FILE)) if text else _has_trajectory(folder))
        ]
        if not games:
            raise Fault(f"no games for --env {self._options.env} under {root} on the server")
        return {"games": games}

    def cmd_shutdown(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Stop the whole server, all clients included."""
        self.shutdown = True
        return {"message": "Server shutting down"}

    def close(self) -> None:
        """Stop the engine."""
        self._backend.close()

    def _playing(self) -> None:
        if self._game is None:
            raise Fault("no game is loaded: send init with a traj_file first")

    def _over(self) -> bool:
        return self._moment.won or self._turns >= self._options.max_steps

    def _now(self) -> Dict[str, Any]:
        return {
            "goal_satisfied": self._moment.won,
            "turn_count": self._turns,
            "done": self._over(),
            "admissible_commands": self._moment.commands,
        }

    def _picture(self) -> str:
        options = self._options
        return encode_image(self._backend.frame(options.image_size), self._format, options.jpeg_quality)


def _has_trajectory(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, TRAJECTORY_FILE))


def _text(request: Dict[str, Any], key: str, empty: bool = False) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not (empty or value.strip()):
        raise Fault("{!r} must be a string{}".format(key, "" if empty else " that is not empty"))
    return value


def failure(reason: str) -> Dict[str, Any]:
    """The answer to what could not be done."""
    return {"success": False, "error": " ".join(reason.split())}


# ---- the wire ------------------------------------------------------------------------------------------------------


def decode(line: bytes) -> Dict[str, Any]:
    """The request on a line; Fault where it is no JSON object."""
    try:
        request = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise Fault("the message is not UTF-8") from None
    except RecursionError:
        raise Fault("the message is nested too deeply") from None
    except ValueError as error:
        raise Fault(f"the message is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise Fault('the message must be a JSON object such as {"command": "get_state"}')
    return request


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def encode(answer: Dict[str, Any]) -> bytes:
    """An answer as one line."""
    return json.dumps(answer).encode("ascii") + b"\n"


class Lines:
    """The lines that come in over a socket, whatever pieces it delivers them in.

    `next()` waits for one. A line longer than `limit` bytes is skipped without being kept, and is a Fault. A client
    that completes no line within `idle_s` seconds is an `Idle`; one that has gone, or a dead server process (it
    holds the other end of `lifeline`), is an EOFError.
    """

    def __init__(self, connection: socket.socket, limit: int, idle_s: float, lifeline: int) -> None:
        self._connection, self._limit, self._idle_s, self._lifeline = connection, limit, idle_s, lifeline
        self._buffer = bytearray()
        self._searched = 0  # so much of the buffer has no line end
        self._skipping = False

    def next(self) -> bytes:
        """The next line, without its end."""
        deadline = time.monotonic() + self._idle_s
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
            if self._skipping:
                self._buffer.clear()
            self._searched = len(self._buffer)
            if self._searched > self._limit:
                self._skipping = True
                self._check(self._searched)
            self._buffer += self._receive(deadline - time.monotonic())

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise Fault(f"the message is longer than {self._limit} bytes")

    def _receive(self, seconds: float) -> bytes:
        ready, _, _ = select.select([self._connection, self._lifeline], [], [], max(0.0, seconds))
        if not ready:
            raise Idle()
        piece = self._connection.recv(_CHUNK) if self._lifeline not in ready else b""
        if not piece:
            raise EOFError()
        return piece


def serve_client(connection: socket.socket, options: argparse.Namespace, lifeline: int) -> bool:
    """Answer a client until it goes; returns True if it asked for the server's shutdown."""
    session = Session(options)
    lines = Lines(connection, options.max_message, options.idle_timeout, lifeline)
    try:
        while not session.shutdown:
            try:
                answer = session.process_request(decode(lines.next()))
            except Fault as fault:
                answer = failure(str(fault))
            connection.sendall(encode(answer))
    except Idle:
        reason = f"closed: no message within {options.idle_timeout:g} seconds (--idle-timeout)"
        connection.sendall(encode(failure(reason)))
    except EOFError:
        log("Client left")
    finally:
        session.close()
    return session.shutdown


# ---- the server ----------------------------------------------------------------------------------------------------


class Server:
    """Listens, and forks a process for each client. A byte through the pipe `_orders` stops it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._listener = listen(options.host, options.port)
        self._orders, self._order = os.pipe()
        self._lifeline, self._life = os.pipe()  # nothing is ever written; its end tells clients' processes of ours
        self._clients = set()  # type: set
        self._signal = 0

    def run(self) -> int:
        """Serve until a client asks for the shutdown (0) or a signal comes (128 + its number)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        log(f"ALFWorld server listening on {self._options.host}:{self._listener.getsockname()[1]}")
        try:
            while True:
                ready, _, _ = select.select([self._listener, self._orders], [], [], 1.0)
                self._reap()
                if self._orders in ready:
                    break
                if ready:
                    self._accept()
        finally:
            self._listener.close()
            self._end_clients()
        log("ALFWorld server stopped")
        return 128 + self._signal if self._signal else 0

    def _stop(self, number: int, frame: Any) -> None:
        self._signal = number
        os.write(self._order, b"x")

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
            with contextlib.closing(connection):
                if len(self._clients) < self._options.max_clients:
                    self._start_client(connection, address)
                else:
                    reason = f"the server is full: it serves {len(self._clients)} clients (--max-clients)"
                    connection.send(encode(failure(reason)))
        except OSError as error:  # the client has gone again, or there are too many files or processes
            log(f"Client refused: {error}")
            time.sleep(0.05)

    def _start_client(self, connection: socket.socket, address: Any) -> None:
        child = os.fork()
        if child == 0:
            self._in_child(connection)
        self._clients.add(child)
        log(f"Client connected from {address[:2]}")

    def _in_child(self, connection: socket.socket) -> None:
        """The rest of a client's process; it does not return, and leaves nothing of the server's behind."""
        code = 1
        try:
            signal.signal(signal.SIGTERM, _leave)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server tells us
            self._listener.close()
            os.close(self._life)
            connection.settimeout(self._options.idle_timeout)  # for a client that takes no answers
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if serve_client(connection, self._options, self._lifeline):
                os.write(self._order, b"x")
            code = 0
        except OSError as error:
            log(f"Client lost: {error}")
        except SystemExit:
            code = 0
        except BaseException:
            log(traceback.format_exc())
        finally:
            os._exit(code)  # not sys.exit: TextWorld's planner crashes when Python unloads it

    def _reap(self) -> None:
        for child in list(self._clients):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._clients.discard(child)

    def _end_clients(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._clients:
                os.kill(child, number)
            deadline = time.monotonic() + _GRACE_S
            while self._clients and time.monotonic() < deadline:
                self._reap()
                time.sleep(0.01)


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(0)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; OSError with what to do where the address is taken or unknown."""
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", 0) == errno.EADDRINUSE:
            raise OSError(f"port {port} on {host} is taken: choose another with --port") from None
        raise OSError(f"cannot listen on {host}:{port}: {error}") from error
    return listener


def log(text: str) -> None:
    """One block of lines on stdout, each marked; a closed stdout must not stop the server."""
    lines = "".join(f"[SERVER] {line}\n" for line in text.splitlines())
    with contextlib.suppress(OSError, ValueError):
        os.write(1, lines.encode("utf-8", "backslashreplace"))


def parse_arguments(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """The command line, with `--help`."""
    parser = argparse.ArgumentParser(
        description="ALFWorld behind a TCP socket: JSON messages, one a line.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="localhost", help="address to listen on; anyone who reaches it can play")
    parser.add_argument("--port", type=int, default=5555, help="0: any free one")
    parser.add_argument("--env", choices=sorted(BACKENDS), default="thor", help="the engine")
    parser.add_argument(
        "--data-dir", help="folder with games (default: $ALFWORLD_DATA, ~/.cache/alfworld, or generated for household)"
    )
    parser.add_argument("--max-steps", type=_positive, default=50, help="actions in an episode")
    parser.add_argument("--image-format", choices=("jpeg", "png"), default="jpeg", help="unless a client wants another")
    parser.add_argument("--image-size", type=_positive, default=300, help="pixels")
    parser.add_argument("--jpeg-quality", type=_quality, default=85, help="1 to 95")
    parser.add_argument("--max-clients", type=_positive, default=64, help="at the same time")
    parser.add_argument("--max-message", type=_positive, default=1 << 16, help="bytes")
    parser.add_argument("--idle-timeout", type=float, default=3600.0, help="seconds without a message")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _quality(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 95:
        raise argparse.ArgumentTypeError(f"{value} is not between 1 and 95")
    return value


def data_folder(options: argparse.Namespace) -> str:
    """Where games are looked for: an absolute path that exists; OSError otherwise."""
    chosen = options.data_dir
    if not chosen and options.env == "household":
        HouseholdBackend.load()
        from xrl_alignment.environments import choose_games

        chosen = str(choose_games("household", "household_heldout")[0].path.parents[2])
    chosen = chosen or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
    folder = os.path.abspath(os.path.expanduser(os.path.expandvars(chosen)))
    if not os.path.isdir(folder):
        raise OSError(f"no games: {folder} is no folder; give one with --data-dir, or run alfworld-download")
    return folder


def main(argv: Optional[List[str]] = None) -> int:
    """Import the engine, listen, serve; returns the exit code."""
    options = parse_arguments(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # clients' processes share the cores
    try:
        options.data_dir = data_folder(options)
        server = Server(options)
        BACKENDS[options.env].load()
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        sys.stderr.write("error: {}\n".format(" ".join(str(error).split())))
        return 2
    if options.host not in ("localhost", "127.0.0.1", "::1"):
        log(f"warning: there is no password, and {options.host} may be reached from other machines")
    return server.run()


if __name__ == "__main__":
    sys.exit(main())
