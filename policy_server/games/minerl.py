"""MineRL BASALT: prompts for the four tasks, and a tolerant parser for the model's answer.

The action dictionary has the keys of MineRL 1.0's BASALT environments: buttons (0 or 1) and `camera`, the change of
pitch and yaw in degrees. The prompt asks the model for JSON. The parser also accepts JSON inside prose or code fences,
Python literals, `key: value` lines, and synonyms of button names. It drops unknown keys and notes them.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from policy_server.games.prompts import ModelPrompt, ParsedAction, with_notes

BUTTONS = (
    *("forward", "back", "left", "right", "jump", "sneak", "sprint", "attack", "use", "drop", "inventory"),
    *("pickItem", "swapHands"),
)
HOTBAR = tuple(f"hotbar.{slot}" for slot in range(1, 10))
CAMERA_LIMIT = 180.0  # degrees in one step, the limit of MineRL's action space

TASKS = {
    "MineRLBasaltFindCave-v0": (
        "Find a cave: a natural hollow in the ground with an opening. Walk until you see one, go inside, and only then "
        "end the episode with ESC. Digging down yourself does not count."
    ),
    "MineRLBasaltMakeWaterfall-v0": (
        "Make a waterfall in the mountains: climb to a high edge, put the water bucket's water there with use, step "
        "back, turn until the waterfall fills the view, and end the episode with ESC."
    ),
    "MineRLBasaltCreateVillageAnimalPen-v0": (
        "Build an animal pen beside a village house: close it with fences and a gate and bring in two animals of one "
        "kind (food in the hand lures them). Harm neither villagers nor houses. Then end the episode with ESC."
    ),
    "MineRLBasaltBuildVillageHouse-v0": (
        "Build a house in the style of this village on a free spot, without harming it, from the material in the "
        "inventory. Then look around in it and end the episode with ESC."
    ),
}

_INSTRUCTIONS = """You play Minecraft. You see the player's view and choose what to do for one tick (1/20 s).
Answer with one JSON object and nothing else:
{"reasoning": "<what you see and why you act so, in one or two sentences>", "action": {<only what is not 0>}}
Keys of "action", 1 presses: forward, back, left, right, jump, sneak, sprint, attack, use, drop, inventory, pickItem,
swapHands, hotbar.1 to hotbar.9, ESC (ends the episode: only when the task is done).
"camera": [pitch, yaw] turns the view in degrees: pitch above 0 is down, yaw above 0 is right; stay within 30."""

_BY_LOWER_NAME = {name.lower(): name for name in (*BUTTONS, *HOTBAR, "ESC")} | {
    "backward": "back",
    "backwards": "back",
    "crouch": "sneak",
    "run": "sprint",
    "place": "use",
    "escape": "ESC",
    "pick_item": "pickItem",
    "swap_hands": "swapHands",
    **{f"hotbar{slot}": f"hotbar.{slot}" for slot in range(1, 10)},
    **{f"hotbar_{slot}": f"hotbar.{slot}" for slot in range(1, 10)},
}
_PAIR = re.compile(
    r"(?<![\w.])([A-Za-z][\w.]{0,40})[\"']?\s*[:=]\s*(\[[^\]]{0,80}\]|\([^)]{0,80}\)|[-+]?[\d.]+|true|false|True|False)"
)
_ACTION = ("action", "actions")
_PROSE = ("reasoning", "thought", "reason", *_ACTION)
_SHOWN = 40  # characters of an unknown key or value that a note repeats


def no_op() -> dict[str, Any]:
    """The action that does nothing: every key, in the order of the published examples."""
    return {**dict.fromkeys(BUTTONS, 0), "camera": [0.0, 0.0], **dict.fromkeys(HOTBAR, 0), "ESC": 0}


def model_prompt(task: str, prompt: str, commands: Sequence[str], history: Sequence[str]) -> ModelPrompt:
    """The task, the client's advice in `prompt`, and the last steps. `commands` has no effect."""
    lines = [f"Task: {TASKS[task]}"]
    if prompt:
        lines.append(prompt)
    if history:
        lines += ["Your last steps, oldest first:", *history]
    return ModelPrompt(_INSTRUCTIONS, "\n".join((*lines, "What do you do now?")))


def parse(text: str, commands: Sequence[str] = ()) -> ParsedAction:
    """The action in `text`; always a valid one. `reasoning` says what was dropped or changed."""
    found = _find_object(text) or _pairs(text)
    if not found:
        reason = "no action found in the model's answer" if text.strip() else "the model said nothing"
        return ParsedAction(no_op(), with_notes(text, [f"{reason}: doing nothing"]), "nothing")
    reasoning = next((str(found[key]) for key in ("reasoning", "thought", "reason") if found.get(key)), "")
    # The part of the answer that is the action: under a key of its own, else all that is not prose. Button names
    # without values mean that these are pressed.
    wanted: dict[Any, Any] = {key: value for key, value in found.items() if key not in _PROSE}
    for key in _ACTION:
        value = found.get(key)
        if isinstance(value, str):
            value = re.split(r"[\s,+]+", value.strip())
        if isinstance(value, list):
            value = dict.fromkeys((str(name) for name in value if name), 1)
        if isinstance(value, dict):
            wanted = value
            break
    action, notes = _valid(wanted)
    if action == no_op() and (notes or not any(key in found for key in _ACTION)):
        notes.append("no usable action in the model's answer: doing nothing")
    # One line for the history: `forward jump camera 5 -10`.
    pressed = [name for name, value in action.items() if name != "camera" and value]
    pitch, yaw = action["camera"]
    turn = [f"camera {pitch:g} {yaw:g}"] if pitch or yaw else []
    return ParsedAction(action, with_notes(reasoning, notes), " ".join(pressed + turn) or "nothing")


def _find_object(text: str) -> dict[str, Any] | None:
    """The first `{…}` in `text` that parses as a dictionary; adds the closing bracket if the answer was cut off."""
    decoder = json.JSONDecoder()
    python = {"true": "True", "false": "False", "null": "None"}
    # A few tries: each may cost a look at the rest of the text, and a model that repeats itself writes hundreds.
    for match in islice(re.finditer(r"\{", text), 8):
        start = match.start()
        try:
            value, _ = decoder.raw_decode(text, start)
            candidates = []
        except (ValueError, RecursionError):
            # Not JSON: up to one of the last closing brackets it may be a Python literal (single quotes, True, trailing
            # commas). Four brackets at most: Python's parser reads the whole candidate each time. The last is tried
            # first, because the outermost object ends there; then with one bracket more, which `max_tokens` cut off.
            value, rest = None, text[start:]
            ends = [end.end() for end in re.finditer(r"\}", rest[:4000])][-4:]
            candidates = [candidate for end in reversed(ends) for candidate in (rest[:end], rest[:end] + "}")]
        for candidate in candidates:
            try:
                found = ast.literal_eval(re.sub(r"\b(true|false|null)\b", lambda word: python[word.group()], candidate))
                str(found)  # ValueError: a number such as 0xfff…, of more digits than Python writes
                value = found
                break
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # TypeError: a set of dicts
                continue
        if isinstance(value, dict) and value:
            return value
    return None


def _pairs(text: str) -> dict[str, Any]:
    """The `key: value` pairs in free text whose key is known; other words before a colon are prose."""
    found: dict[str, Any] = {}
    for name, value in _PAIR.findall(text):
        if name.lower() in _BY_LOWER_NAME or name.lower() in ("camera", "pitch", "yaw", "hotbar"):
            try:  # JSON knows neither Python's True nor its tuples
                found[name] = json.loads(value.lower().replace("(", "[").replace(")", "]"))
            except ValueError:
                found[name] = value
    return found


def _valid(wanted: dict[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """A value within range for every key of the action space, and notes on what was changed."""
    action, camera = no_op(), [0.0, 0.0]
    notes: list[str] = []
    for raw, value in wanted.items():
        name = str(raw).strip().lower()
        if name == "camera":
            camera = _camera(value, notes)
        elif name in ("pitch", "yaw", "camera_pitch", "camera_yaw"):
            camera["yaw" in name] = _degrees(value, name, notes)
        elif name == "hotbar" and str(value) in "123456789" and len(str(value)) == 1:
            action[f"hotbar.{value}"] = 1
        elif name in _BY_LOWER_NAME:
            action[_BY_LOWER_NAME[name]] = _pressed(value, name, notes)
        else:
            notes.append(f"unknown key {str(raw)[:_SHOWN]!r} dropped")
    action["camera"] = camera
    return action, notes[:8]


def _pressed(value: Any, name: str, notes: list[str]) -> int:
    text = str(value).strip().lower()
    if text in ("true", "yes", "press", "pressed", "on"):
        return 1
    if text in ("false", "no", "none", "off", ""):
        return 0
    try:
        return int(float(text) > 0)  # nan > 0 is false
    except ValueError:
        notes.append(f"{name}={text[:_SHOWN]!r} is not 0 or 1: taken as 0")
        return 0


def _camera(value: Any, notes: list[str]) -> list[float]:
    if isinstance(value, dict):
        value = [value.get("pitch", 0), value.get("yaw", 0)]
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        notes.append(f"camera={str(value)[:_SHOWN]!r} is not [pitch, yaw]: taken as [0, 0]")
        return [0.0, 0.0]
    return [_degrees(value[0], "camera pitch", notes), _degrees(value[1], "camera yaw", notes)]


def _degrees(value: Any, name: str, notes: list[str]) -> float:
    try:
        degrees = float(value)
    except (TypeError, ValueError, OverflowError):
        degrees = math.nan
    if math.isnan(degrees):  # nan would pass every comparison below, and no environment takes it
        notes.append(f"{name}={str(value)[:_SHOWN]!r} is not a number: taken as 0")
        return 0.0
    clamped = max(-CAMERA_LIMIT, min(CAMERA_LIMIT, degrees))
    if clamped != degrees:
        notes.append(f"{name}={degrees:g} clamped to {clamped:g}")
    return clamped
