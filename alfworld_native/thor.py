"""ALFWorld in AI2-THOR: the same tasks embodied, with the simulator's own frames, through alfworld's `AlfredThorEnv`.

Needs the `thor` extra (`ai2thor`, OpenCV, torchvision), a display, and official games with their full `traj_data.json`
(object poses; `alfworld-download`): generated games exist as text only. ai2thor downloads the simulator at first use.
`python -m xrl_alignment.doctor` checks all of this.

What differs from the text engines: receptacles and objects are numbered in the order in which they were first seen, an
arrival reads `You arrive at loc 12. ...`, admissible commands are alfworld's heuristic list, and the goal sentence is
drawn again at each reset.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from alfworld_native.base import MAX_STEPS, Game, TimeStep, check_count
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.commands import canonical, to_dialect
from lavis.common.errors import MissingFileError, described, first_sentence

FRAME_SIZE = 300  # pixels, ALFWorld's own (and the original's) size
X_SOCKETS = Path("/tmp/.X11-unix")  # nosec B108  (X's own folder, which is only read)
_PACKAGES = {"ai2thor": "ai2thor", "cv2": "opencv-python", "torchvision": "torchvision"}


def thor_config(data_path: str, max_steps: int = MAX_STEPS) -> dict:
    """alfworld's configuration for one game: oracle controller, `FRAME_SIZE` pixels, handcoded expert."""
    return {
        "dataset": {
            "data_path": data_path,
            "eval_id_data_path": data_path,
            "eval_ood_data_path": data_path,
            "num_train_games": 0,
            "num_eval_games": 0,
        },
        "env": {
            "task_types": [1, 2, 3, 4, 5, 6],
            "goal_desc_human_anns_prob": 0.0,  # goals from ALFWorld's templates, not from ALFRED's annotators
            "thor": {
                "screen_width": FRAME_SIZE,
                "screen_height": FRAME_SIZE,
                "smooth_nav": False,  # no frames between the agent's poses, which take long
                "save_frames_to_disk": False,
                "save_frames_path": "",
            },
        },
        "controller": {"type": "oracle", "debug": False, "load_receps": False},
        # alfworld knows two methods; this one reads its step limit from the section below.
        "general": {"training_method": "dagger"},
        "dagger": {"training": {"max_nb_steps_per_episode": max_steps}},
    }


def require_simulator() -> None:
    """EnvironmentFault names the packages that AI2-THOR lacks here, or says that there is no display."""
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise EnvironmentFault(
            f"environment thor needs {', '.join(missing)}: install the extra with `pip install -e '.[thor]'`"
        )
    if sys.platform.startswith("linux") and (fault := display_fault(os.environ.get("DISPLAY", ""))):
        raise EnvironmentFault(f"AI2-THOR needs a display: {fault}; run the program under `xvfb-run -a`")


def start_alfred_thor(config: dict, train_eval: str) -> Any:
    """Start AI2-THOR behind alfworld's `AlfredThorEnv`; EnvironmentFault if that is not possible."""
    require_simulator()
    try:
        from alfworld.agents.environment.alfred_thor_env import AlfredThorEnv

        return AlfredThorEnv(config, train_eval=train_eval).init_env(batch_size=1)
    except Exception as error:  # the download of its build, the build itself, its packages: many kinds
        raise EnvironmentFault(
            f"AI2-THOR could not be started ({described(error)}): run `python -m xrl_alignment.doctor --thor`"
        ) from error


def display_fault(display: str, sockets: Path = X_SOCKETS) -> str:
    """What is wrong with `display` (DISPLAY's value), empty if an X server of this machine listens there.

    A display of another machine (`host:0`) is not looked at.
    """
    # `host:number.screen`; without a host it is a socket of this machine.
    host, _, screen = display.rpartition(":")
    number = screen.split(".")[0]
    if not display:
        return "DISPLAY is not set"
    if host in ("", "unix") and number.isdigit() and not (sockets / f"X{number}").exists():
        return f"DISPLAY={display}, but no X server is there"
    return ""


class ThorEnvironment:
    """ALFWorld's games in AI2-THOR, in the canonical dialect; an `Environment`.

    `expert="handcoded"` computes alfworld's expert beside each state. `show_ids` writes the names the text uses
    ("cabinet 2") over the frame where instance segmentation tells where things are; without it frames stay as rendered.
    """

    name = "thor"

    def __init__(
        self,
        max_steps: int = MAX_STEPS,
        expert: str | None = None,
        show_ids: bool = True,
        *,
        start: Callable[[dict, str], Any] = start_alfred_thor,
    ) -> None:
        check_count("max_steps", max_steps)
        if expert not in (None, "handcoded"):
            raise EnvironmentFault(f"expert {expert!r} does not play AI2-THOR; there is only 'handcoded'")
        self.max_steps = max_steps
        self.expert = expert
        self.show_ids = show_ids
        self._start = start
        self._alfred: Any = None
        self._plan: list[str] = []
        self._steps = 0
        self._playing = False
        self._done = False

    def reset(self, game: Game) -> TimeStep:
        """Build the game's room and return its opening text. Seconds; the first time the simulator starts.

        Raises MissingFileError, EnvironmentFault for a game without object poses and if AI2-THOR cannot start.
        """
        trajectory = game.path.parent / "traj_data.json"
        if not trajectory.is_file():
            raise MissingFileError(f"{trajectory} does not exist; AI2-THOR builds the room from it")
        try:
            posed = "object_poses" in json.loads(trajectory.read_text(encoding="utf-8")).get("scene", {})
        except (ValueError, AttributeError, TypeError) as error:
            raise EnvironmentFault(
                f"{trajectory} cannot be read ({first_sentence(error)}): get it again with `alfworld-download -f`"
            ) from error
        if not posed:
            raise EnvironmentFault(
                f"{trajectory} has no object poses, so AI2-THOR cannot build the room: get ALFWorld's full "
                "traj_data.json with `alfworld-download`, or play the game with environment.name=native"
            )
        if self._alfred is None:
            # "train" makes alfworld compute its expert and draw from the list of games, which holds just this one.
            self._alfred = self._start(thor_config(str(game.path.parent), self.max_steps), "train")
            # The thread's own setting decides whether an expert is asked at each step, which takes time.
            self._thread.train_eval = "train" if self.expert else "eval"
            _name_put(self._thread.expert)
        self._alfred.json_file_list = [str(trajectory)]
        observations, infos = self._ask(self._alfred.reset)
        self._steps, self._playing = 0, True
        return self._time_step(observations[0], infos)

    def step(self, action: str) -> TimeStep:
        """Carry out `action` (canonical, or ALFWorld 0.4's `move X to Y`).

        Raises EnvironmentFault before `reset`, after the end of the episode, or for an action that is no string.
        """
        if not self._playing:
            raise EnvironmentFault("no game is loaded; call reset(game) first")
        if self._done:
            raise EnvironmentFault("the episode is over; call reset(game) before the next step")
        if not isinstance(action, str):
            raise EnvironmentFault(f"an action is a string such as 'go to desk 1', not {type(action).__name__}")
        self._steps += 1
        # alfworld's controller for AI2-THOR parses `put` only, although it lists `move` as admissible.
        command = to_dialect(action.strip(), "put")
        observations, _, _, infos = self._ask(lambda: self._alfred.step([command]))
        return self._time_step(observations[0], infos)

    def expert_action(self) -> str | None:
        """What alfworld's handcoded expert would do now (canonical dialect); None if the expert does not know."""
        if self.expert is None:
            raise EnvironmentFault("made without an expert: ThorEnvironment(expert='handcoded')")
        return canonical(self._plan[0]) if self._plan else None

    def render(self) -> np.ndarray:
        """The agent's view now: uint8, (300, 300, 3), RGB."""
        if not self._playing:
            raise EnvironmentFault("no game is loaded; call reset(game) first")
        frame = np.ascontiguousarray(self._alfred.get_frames()[0][:, :, ::-1])  # alfworld turns RGB into OpenCV's BGR
        event = self._thread.env.last_event
        segmentation = getattr(event, "instance_segmentation_frame", None)
        if not self.show_ids or segmentation is None:
            return frame
        # The simulator tells each thing's colour in the segmentation; the text's names are known to the controller.
        controller = self._thread.controller
        named = {id_: thing["num_id"] for id_, thing in {**controller.objects, **controller.receptacles}.items()}
        colours = {colour: named[id_] for colour, id_ in event.color_to_object_id.items() if id_ in named}
        return write_names(frame, np.asarray(segmentation), colours)

    def close(self) -> None:
        """Stop the simulator."""
        if self._alfred is not None:
            self._alfred.close()
        self._alfred, self._playing = None, False

    @property
    def _thread(self) -> Any:
        """alfworld plays each game of a batch in a thread; there is one."""
        return self._alfred.envs[0]

    def _ask(self, call: Callable[[], tuple]) -> tuple:
        """The result of `call`, which uses alfworld's thread; EnvironmentFault if that is dead, or dies in the call.

        Without the check alfworld would return old results, or wait forever.
        """
        if self._thread.is_alive():
            # alfworld's thread makes a new object of results at each command: the same one means that it has not
            # answered.
            before = self._thread.get_results()
            answer = call()
            if self._thread.get_results() is not before:
                return answer
        # The simulator may run on without the thread. It may have ended, too; then its `close` fails.
        with contextlib.suppress(Exception):
            self.close()
        self._alfred, self._playing = None, False
        raise EnvironmentFault(
            "AI2-THOR stopped answering; run `python -m xrl_alignment.doctor`, and look into its log ~/.ai2thor/log"
        )

    def _time_step(self, text: str, infos: Mapping[str, list]) -> TimeStep:
        """A time step from alfworld's batch of one; its own `done` counts steps differently and is not used."""
        self._plan = list(infos["extra.expert_plan"][0])
        won = bool(infos["won"][0])
        self._done = won or self._steps >= self.max_steps
        commands = sorted({canonical(command) for command in infos["admissible_commands"][0]})
        return TimeStep(text, commands, won, self._done)


def _name_put(expert: Any) -> None:
    """Let alfworld's expert read the commands in both dialects.

    In alfworld 0.4 the controller lists `move X to Y`, but its expert for AI2-THOR puts something down only if
    `put X in/on Y` is listed, which is never (the expert for TextWorld looks for `move`).
    """
    act = expert.act

    def act_in_both(state: Mapping[str, Any], *rest: Any) -> str:
        commands = state["admissible_commands"]
        return act({**state, "admissible_commands": [*commands, *map(canonical, commands)]}, *rest)

    expert.act = act_in_both


def write_names(frame: np.ndarray, segmentation: np.ndarray, names: Mapping[tuple, str]) -> np.ndarray:
    """`frame` with each thing's name over the middle of the pixels it covers.

    `frame` and `segmentation` are uint8 (height, width, 3); `names` maps a segmentation colour (three integers) to a
    name. Things of fewer than 40 pixels stay without a name.
    """
    from PIL import Image, ImageDraw

    image = Image.fromarray(frame)
    draw = ImageDraw.Draw(image)
    # Red, green and blue as one number, so that a colour is compared once for each pixel.
    weights = np.array([1 << 16, 1 << 8, 1], dtype=np.int64)
    codes = segmentation.astype(np.int64) @ weights
    for colour, name in names.items():
        rows, columns = np.nonzero(codes == int(np.array(colour, dtype=np.int64) @ weights))
        if len(rows) < 40:
            continue
        # The median lies within most things; the mean of a bent one may lie outside.
        middle = (float(np.median(columns)), float(np.median(rows)))
        box = draw.textbbox(middle, name, anchor="mm")
        draw.rectangle(box, fill=(0, 0, 0))
        draw.text(middle, name, fill=(255, 255, 255), anchor="mm")
    return np.asarray(image)
