"""Wire v1 against v2: bytes and time for one observation with a 300 × 300 frame, and a round trip over HTTP.

    python benchmarks/wire.py --json wire.json

`time` is the processor time to encode, decode and compute the MD5 on both ends. v1 is measured as the original does
it: `json.dumps` of the frame, then a regular expression, `json.loads` and `np.asarray` on the other end. (Our code for
v1 is faster and has its own rows.) There are two frames: one rendered by `alfworld_native.drawing`, as sent where no
simulator renders, and a synthetic one that resembles a photograph (smooth shading, noise). Each ratio is the smaller
of the two.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
from _bench import Result, run
from PIL import Image

from alfworld_native import choose_games
from alfworld_native.drawing import frames
from alfworld_native.engine.environment import NativeEnvironment
from xrl_alignment.play.client.connection import Connection
from xrl_alignment.wire import v1, v2
from xrl_alignment.wire.http_server import DaggerHTTPServer
from xrl_alignment.wire.images import IMAGE_FORMATS
from xrl_alignment.wire.messages import Hello, Observation, md5_hex

SIZE = 300  # AI2-THOR's frame in the original
REPEATS = 15
_V1 = re.compile(
    r"\[#OBSERVATION\](.*?)\[#HISTORY\](.*?)\[#INFORMATION\](.*?)\[#TYPE\](.*?)\[#DONE\](.*?)\[#IMAGE\](.*)", re.DOTALL
)


def observations() -> dict[str, Observation]:
    """One observation for each kind of frame; text, history and information as in a running episode."""
    environment = NativeEnvironment()
    with tempfile.TemporaryDirectory() as folder:
        games = choose_games("household", "household_train", num=1, data=folder, num_train=1, num_heldout=0)
        step = environment.reset(games[0])
        history = step.text
        for _ in range(8):
            action = step.admissible_commands[0]
            step = environment.step(action)
            history += f"\n> {action}\n{step.text}"
        drawn = frames.render(environment.room_state(), size=SIZE)
    information = {"admissible_commands": step.admissible_commands, "won": False, "engine": "native"}
    texts = {"text": step.text, "history": history, "information": information, "session": "bench", "seq": 1}
    return {"drawn": Observation(**texts, image=drawn), "photograph": Observation(**texts, image=like_a_photograph())}


def like_a_photograph() -> np.ndarray:
    """Smooth shading and noise of three grey levels: uint8 (SIZE, SIZE, 3)."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 255, (SIZE // 8, SIZE // 8, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC), float)
    return (smooth + rng.normal(0, 3, smooth.shape)).clip(0, 255).astype(np.uint8)


def encode_v1_as_the_original(observation: Observation) -> bytes:
    """The body with its frame written by `json.dumps`."""
    empty = dataclasses.replace(observation, image=np.zeros((1, 1, 3), np.uint8))
    text, tag, _ = v1.encode(empty).rpartition(b"[#IMAGE]")
    return text + tag + json.dumps(observation.image.tolist()).encode()


def decode_v1_as_the_original(body: bytes) -> None:
    """Read a body as the original's `process_feedback` does (emac_full_documentation.md §6.1)."""
    fields = _V1.match(body.decode())
    ast.literal_eval(fields[3])
    Image.fromarray(np.asarray(json.loads(fields[6]), dtype=np.uint8))


def milliseconds(work: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """Least time of `work` in REPEATS runs; by default processor time, which other processes hardly touch."""
    times = []
    for _ in range(REPEATS):
        began = clock()
        work()
        times.append(1000 * (clock() - began))
    return min(times)


def measure_codec(encode: Callable[[], bytes], decode: Callable[[bytes], object]) -> dict[str, float]:
    """Bytes, and milliseconds to encode and to decode, the MD5 of each end included."""
    body = encode()
    return {
        "bytes": len(body),
        "encode_ms": milliseconds(lambda: md5_hex(encode())),
        "decode_ms": milliseconds(lambda: (md5_hex(body), decode(body))),
    }


def measure_frame(observation: Observation) -> dict[str, dict[str, float]]:
    """Every way to send one observation."""
    rows = {
        "v1": measure_codec(lambda: encode_v1_as_the_original(observation), decode_v1_as_the_original),
        "v1, our code": measure_codec(lambda: v1.encode(observation), v1.decode),
        "v2": measure_codec(lambda: v2.encode(observation), v2.decode),
    }
    for name in IMAGE_FORMATS[1:]:
        rows[f"v2 {name}"] = measure_codec(lambda: v2.encode(observation, name), v2.decode)  # noqa: B023
    return rows


def measure_round_trip(frame: np.ndarray) -> float:
    """Milliseconds of a whole v2 round trip of `frame` on an open connection, with a loop that answers at once."""
    server = DaggerHTTPServer("127.0.0.1", 0)
    server.start()
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            for pending in server.take(8, timeout_s=0.1, window_s=0.002):
                pending.reply(["go to desk 1"])

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        with closing(Connection(f"http://127.0.0.1:{server.port}")) as connection:
            connection.post(v2.encode(Hello("bench", 0, ())), v2.CONTENT_TYPE)
            seq = iter(range(1, 10_000))

            def trip() -> None:
                body = v2.encode(Observation("You see a desk 1.", image=frame, session="bench", seq=next(seq)))
                _, reply, _ = connection.post(body, v2.CONTENT_TYPE)
                v2.decode_reply(reply)

            return milliseconds(trip, time.perf_counter)  # several threads take part
    finally:
        over.set()
        thread.join()
        server.stop()


def measure() -> Result:
    """Everything, as a table and ratios."""
    kinds = observations()
    results = {kind: measure_frame(observation) for kind, observation in kinds.items()}
    rows = [{"frame": kind, "wire": wire, **row} for kind, wires in results.items() for wire, row in wires.items()]
    for kind, observation in kinds.items():
        frame = np.ascontiguousarray(observation.image[:224, :224])
        rows.append({"frame": f"{kind}, 224 × 224", "wire": "v2 over HTTP", "round_trip_ms": measure_round_trip(frame)})
    return Result(rows, ratios(results), targets={"bytes_v1_over_v2": 20, "time_v1_over_v2": 20})


def ratios(results: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """v1 over v2 for each kind of frame, and the smaller of them as the benchmark's figure."""
    found: dict[str, float] = {}
    for kind, rows in results.items():
        theirs, ours = rows["v1"], rows["v2"]
        found[f"bytes_v1_over_v2_{kind}"] = theirs["bytes"] / ours["bytes"]
        found[f"time_v1_over_v2_{kind}"] = (theirs["encode_ms"] + theirs["decode_ms"]) / (
            ours["encode_ms"] + ours["decode_ms"]
        )
    for name in ("bytes_v1_over_v2", "time_v1_over_v2"):
        found[name] = min(found[f"{name}_{kind}"] for kind in results)
    return found


if __name__ == "__main__":
    run("Wire v1 against v2, one 300 × 300 observation", measure)
