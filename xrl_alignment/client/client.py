"""The client's end of the wire: plays games in an environment and asks the server for every action.

`play` is the entry. Below it, from the socket upwards: `Connection` (one keep-alive HTTP connection), `Link` (waiting,
retrying, giving up), `Session` (v2's numbered messages), `Player` (one environment and what it shows), `Episodes` (what
an executor of `rollouts.py` plays: here, or in a process of its own), and the two ways to ask for work, `work_v2` and
`work_v1`.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from xrl_alignment.client.report import ClientReport
from xrl_alignment.common.choices import STEP_TIMEOUT_S
from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.base import Environment, Game, TimeStep
from xrl_alignment.experts.base import Expert
from xrl_alignment.language.prompt import build_prompt
from xrl_alignment.rollouts.base import RolloutExecutor
from xrl_alignment.rollouts.make import make_executor
from xrl_alignment.wire import v1, v2
from xrl_alignment.wire.images import IMAGE_FORMATS
from xrl_alignment.wire.messages import Bye, Hello, Message, Next, Observation, ProtocolError, md5_hex
from xrl_alignment.wire.v1 import SKIP

PATIENCE_S = 600.0  # how long a server may be away: it may load a model first, or be restarted with --resume
_V1_PATIENCE_S = 10.0  # v1 cannot tell a server that finished from one that broke down
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0
_CONNECT_S = 10.0
_GOODBYE_S = 5.0  # a worker that is asked to stop may be inside a simulator's step, and its server may be busy
_EXPERTS_BESIDE = ("handcoded", "planner")
EXECUTORS = ("sequential", "local")
_LONG_WAIT_S = 10.0  # for other clients' games, before a worker says so
_OTHERS_PLAY = (
    "the other games of this round are with other clients: waiting for them "
    "(the server misses a client that died after server.session_timeout_s)"
)
_LOSSES = 3  # of a worker's process in a row: then something is wrong with all of them

EnvironmentFactory = Callable[[], Environment]
ExpertFactory = Callable[[Environment], Expert]


class ClientError(OSError):
    """The server cannot be reached or refuses what it is sent; the text says what to do."""


class _Unreachable(OSError):
    """No connection could be opened, so nothing was sent."""


class _Stopped(Exception):
    """This worker was asked to end."""


class _SessionLost(Exception):
    """The server does not know this session (any more): it was restarted, or took the work back."""


class _EnvironmentLost(Exception):
    """An environment's process ended or hung in the middle of a game; the text says which."""


class _ServerGone(Exception):
    """The server went away and stayed away."""


def play(
    server_url: str,
    environment_factory: EnvironmentFactory,
    games: Sequence[Game],
    *,
    wire: str = "v2",
    num_workers: int = 1,
    expert: ExpertFactory | None = None,
    token: str = "",
    image_format: str = "auto",
    blank_frames: bool = False,
    num_rounds: int | None = None,
    split: str = "",
    patience_s: float = PATIENCE_S,
    executor: str = "sequential",
    step_timeout_s: float = STEP_TIMEOUT_S,
    report: ClientReport | None = None,
) -> dict[str, Any]:
    """Play `games` against the server at `server_url` (`http://host:port`) until it has no more work.

    v2: each of `num_workers` threads holds its own environment and session and asks for work. v1: one worker plays the
    games in order, `num_rounds` times (None: until the server goes away). `expert` makes an expert that runs beside the
    environment and travels as `expert_action`; without it, an environment that offers `expert_action()` is asked.
    `blank_frames` sends black pictures.

    `executor` says where the environments are: in this process, or (`local`) each in a process of its own. One that is
    lost, or makes no step for `step_timeout_s`, is replaced, and its game is given back to the server, which has it
    played from the start; three losses in a row of one worker are an EnvironmentFault.

    Returns `{"episodes", "won", "success", "steps", "seconds", "bytes_sent", "per_task_type": {type: [won, played]}}`.
    Raises ClientError (server unreachable for `patience_s`, or it refuses) and what the environment raises.
    """
    if wire not in ("v1", "v2"):
        raise ValueError(f"unknown wire {wire!r}: choose v1 or v2")
    if wire == "v1" and num_workers != 1:
        raise ValueError(f"wire v1 knows one client, not {num_workers} workers: use --wire v2 or --num-workers 1")
    if num_rounds is not None and num_rounds < 1:
        raise ValueError(f"the number of rounds must be at least 1, not {num_rounds}")
    if num_workers < 1:
        raise ValueError(f"the number of workers must be at least 1, not {num_workers}")
    if executor not in EXECUTORS:
        raise ValueError(f"unknown executor {executor!r}: choose one of {', '.join(EXECUTORS)}")
    if image_format not in IMAGE_FORMATS:
        raise ValueError(f"unknown image format {image_format!r}: choose one of {', '.join(IMAGE_FORMATS)}")
    with report or ClientReport() as progress:
        tally = Tally(progress)
        workers = [
            _Worker(
                link=Link(server_url, token=token, patience_s=patience_s, report=progress),
                executor=make_executor(executor, retries=0, step_timeout_s=step_timeout_s),
                episodes=Episodes(environment_factory, expert, blank_frames, tell_history=wire == "v1"),
                games=games,
                split=split,
                image_format=image_format,
                tally=tally,
            )
            for _ in range(num_workers)
        ]
        _run_all(workers, (lambda w: w.work_v2()) if wire == "v2" else (lambda w: w.work_v1(num_rounds)))
        return tally.summary(sum(worker.link.bytes_sent for worker in workers))


def _run_all(workers: Sequence[_Worker], work: Callable[[_Worker], None]) -> None:
    """Run every worker in its thread; the first failure, or Ctrl-C, ends all of them (each says bye).

    Waits on a queue, not with `Thread.join`: before Python 3.13 a join that Ctrl-C interrupts takes the thread for
    ended (python/cpython#90882), and the goodbyes would be lost.
    """
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(worker: _Worker) -> None:
        try:
            work(worker)
        except _Stopped:
            ended.put(None)
        except BaseException as error:  # handed to the caller's thread below
            ended.put(error)
        else:
            ended.put(None)

    running = 0
    try:
        for worker in workers:  # in here, for Ctrl-C may come before the last one has started
            running += 1
            threading.Thread(target=run, args=(worker,), daemon=True).start()
        while running:
            error = ended.get()
            running -= 1
            if error is not None:
                raise error
            for worker in workers:  # one whose environment hung may come back after the server has ended
                worker.link.run_is_over()
    finally:
        for worker in workers:
            worker.link.stop()
        for _ in range(running):
            with contextlib.suppress(queue.Empty):
                ended.get(timeout=_GOODBYE_S)


@dataclass
class Tally:
    """Counts finished episodes, from any thread."""

    report: ClientReport
    started: float = field(default_factory=time.monotonic)
    steps: int = 0
    per_task_type: dict[str, list[int]] = field(default_factory=dict)  # task type -> [won, played]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, game: Game, *, won: bool, steps: int) -> None:
        """Count one finished episode."""
        with self._lock:
            counts = self.per_task_type.setdefault(game.task_type, [0, 0])
            counts[0] += won
            counts[1] += 1
            self.steps += steps
            self.report.episode(won=won)

    def summary(self, bytes_sent: int) -> dict[str, Any]:
        """What `play` returns."""
        won = sum(counts[0] for counts in self.per_task_type.values())
        episodes = sum(counts[1] for counts in self.per_task_type.values())
        return {
            "episodes": episodes,
            "won": won,
            "success": won / episodes if episodes else 0.0,
            "steps": self.steps,
            "seconds": time.monotonic() - self.started,
            "bytes_sent": bytes_sent,
            "per_task_type": dict(sorted(self.per_task_type.items())),
        }


class Connection:
    """One keep-alive HTTP connection; checks the MD5 of every reply."""

    def __init__(self, server_url: str, token: str = "") -> None:
        host, port = _address(server_url)
        self._http = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def post(self, body: bytes, content_type: str) -> tuple[int, bytes, float]:
        """Post `body`; returns (status, reply, seconds to wait before a retry, 0 if not told).

        Waits for the reply as long as it takes (the server may be training); a server that dies is noticed.
        Raises OSError or HTTPException when the connection breaks.
        """
        if self._http.sock is None:
            self._connect()
        headers = {**self._headers, "Content-Type": content_type, "MD5": md5_hex(body)}
        self._http.request("POST", "/", body, headers)
        response = self._http.getresponse()
        reply = response.read()
        claimed, retry_after = response.headers.get("MD5"), response.headers.get("Retry-After", "")
        if response.status == 200 and claimed is None:
            raise ClientError(f"{self._http.host}:{self._http.port} does not answer like a dagger server (no MD5)")
        if response.status == 200 and claimed != md5_hex(reply):
            raise ConnectionError("the reply was damaged on the way")
        return response.status, reply, float(retry_after) if retry_after.isdigit() else 0.0

    def _connect(self) -> None:
        try:
            self._http.connect()  # http.client sets TCP_NODELAY
        except socket.gaierror as error:
            raise ClientError(f"no host is called {self._http.host}: check --host") from error
        except OSError as error:
            raise _Unreachable(str(error)) from error
        _watch(self._http.sock)

    def close(self) -> None:
        """Close; the next `post` opens a new connection."""
        self._http.close()

    def interrupt(self) -> None:
        """From another thread: make a `post` that waits fail now."""
        connection = self._http.sock  # once: the other thread may close it meanwhile
        try:
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it had failed already


def _address(server_url: str) -> tuple[str, int]:
    try:
        url = urlsplit(server_url)
        if url.scheme == "http" and url.hostname:
            return url.hostname, url.port or 80
    except ValueError as error:
        raise ValueError(f"server URL {server_url!r}: {error}") from error
    raise ValueError(f"server URL must look like http://host:port, not {server_url!r}")


def _watch(connection: socket.socket) -> None:
    """No limit on a reply's time, but probes that find a machine that vanished within a minute or two."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):  # Linux; other systems keep their own intervals
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Link:
    """A connection that waits for its server, retries, and gives up after `patience_s`."""

    def __init__(self, server_url: str, *, token: str, patience_s: float, report: ClientReport) -> None:
        self.url = server_url
        self.bytes_sent = 0
        self._token = token
        self._connection = Connection(server_url, token)
        self._patience = patience_s
        self._report = report
        self._stop = threading.Event()
        self._run_is_over = False

    def exchange(
        self, body: bytes, content_type: str, *, resend: bool = True, patience_s: float | None = None
    ) -> bytes:
        """Post `body` and return the reply; waits through refused connections and 503.

        With `resend` a request whose connection broke is sent again (v2: the server recognises it); without it that
        raises _ServerGone, as does a server that stays away where `patience_s` is given.
        """
        patience = self._patience if patience_s is None else patience_s
        delay, give_up = _FIRST_DELAY_S, time.monotonic() + patience
        while True:
            self._check()
            wait_s = delay
            try:
                status, reply, retry_after = self._connection.post(body, content_type)
                self.bytes_sent += len(body)
                if status != 503:
                    return self._accept(status, reply)
                why, wait_s = reply.decode(errors="replace").strip(), retry_after or delay
            except ClientError:
                raise
            except (OSError, http.client.HTTPException) as error:
                if not resend and not isinstance(error, _Unreachable):
                    raise _ServerGone from error
                why = str(error) or type(error).__name__
            self._connection.close()
            self._check()
            if self._run_is_over:
                raise _Stopped
            if time.monotonic() + wait_s > give_up:
                if patience_s is not None:
                    raise _ServerGone(why)
                raise ClientError(f"no server at {self.url} for {patience:g} s ({why}): start dagger_server.py there")
            if delay > _FIRST_DELAY_S:  # a first retry is silent: an idle connection may have been closed
                self._report.waiting(f"waiting for the server at {self.url} ({why})")
            self._stop.wait(wait_s)
            delay = min(2 * delay, _LONGEST_DELAY_S)

    def say_once(self, body: bytes, content_type: str) -> None:
        """Send a last message without waiting for anybody: one try, also after `stop`.

        On a connection of its own: `stop` wakes a worker first and interrupts its connection then.
        """
        self._connection.close()
        connection = Connection(self.url, self._token)
        try:
            connection.post(body, content_type)
        except (OSError, http.client.HTTPException):
            return  # the server is gone, or will miss us after its session timeout
        finally:
            connection.close()

    def pause(self, seconds: float) -> None:
        """Sleep, unless stopped."""
        self._stop.wait(seconds)
        self._check()

    def stop(self) -> None:
        """From another thread: end whatever this link is doing."""
        self._stop.set()
        self._connection.interrupt()

    def run_is_over(self) -> None:
        """From another thread: the server has no more work, so do not wait for it once it has gone."""
        self._run_is_over = True

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _accept(self, status: int, reply: bytes) -> bytes:
        self._report.connected()
        if status == 200:
            return reply
        reason = reply.decode(errors="replace").strip()[:500]
        if status == 410:
            raise _SessionLost(reason)
        hint = " (give it with --token or EMAC_TOKEN)" if status == 401 else ""
        raise ClientError(f"the server at {self.url} refuses ({status}): {reason}{hint}")


class Session:
    """v2: numbers the messages, so that a repeated one is recognised."""

    def __init__(self, link: Link, image_format: str) -> None:
        self.name = uuid.uuid4().hex
        self._link = link
        self._image_format = image_format
        self._seq = 0

    def send(self, make: Callable[..., Message], **fields: Any) -> dict[str, Any]:
        """Send `make(session=…, seq=…, **fields)`; returns the server's answer."""
        body = v2.encode(make(session=self.name, seq=self._next(), **fields), self._image_format)
        try:
            reply = v2.decode_reply(self._link.exchange(body, v2.CONTENT_TYPE))
        except ProtocolError as error:
            raise ClientError(f"{self._link.url} does not answer like a dagger server: {error}") from error
        if reply["kind"] == "error":
            raise ClientError(f"the server at {self._link.url} refuses: {reply.get('reason', 'no reason given')}")
        return reply

    def bye(self) -> None:
        """Leave, whatever state the connection is in."""
        self._link.say_once(v2.encode(Bye(self.name, self._next())), v2.CONTENT_TYPE)

    def _next(self) -> int:
        self._seq += 1
        return self._seq


class Player:
    """One environment, what it shows, and the episode's story so far."""

    def __init__(self, environment: Environment, expert: Expert | None, blank_frames: bool) -> None:
        self.environment = environment
        self.step: TimeStep
        self.actions = 0
        self._expert = expert
        self._blank_frames = blank_frames
        self._blank: np.ndarray | None = None
        self._game: Game
        self._opening = ""
        self._story: list[tuple[str, str]] = []

    def begin(self, game: Game) -> None:
        """Reset to `game`."""
        self.step = self.environment.reset(game)
        self._game, self._opening, self._story, self.actions = game, self.step.text, [], 0
        if self._expert:
            self._expert.begin(self.step.text)

    def act(self, action: str) -> None:
        """Carry out the server's action."""
        self.step = self.environment.step(action)
        self.actions += 1
        self._story.append((action, self.step.text))
        if self._expert:
            self._expert.observe(action, self.step.text)

    def observation(self, **fields: Any) -> Observation:
        """What the agent sees now; `fields` are v2's (session, seq, env, round)."""
        return Observation(
            text=self.step.text,
            information=self._information(),
            task_type="" if self._story else self._game.id,
            done=self.step.done,
            image=self._frame(),
            **fields,
        )

    def history(self) -> str:
        """The episode's text so far, as the model is shown it (v1 lets the client write it)."""
        return build_prompt(self._opening, [], self._story)

    def _information(self) -> dict[str, Any]:
        information = {
            "admissible_commands": list(self.step.admissible_commands),
            "won": bool(self.step.won),
            "engine": self.environment.name,
        }
        if self._expert:
            label = self._expert.act()
            information |= {"expert_action": label.action or "", "expert_thought": label.thought}
        elif _advises(self.environment):
            information |= {"expert_action": self.environment.expert_action() or "", "expert_thought": ""}
        return information

    def _frame(self) -> np.ndarray:
        if self._blank is not None:
            return self._blank
        frame = self.environment.render()
        if self._blank_frames:
            self._blank = frame = np.zeros_like(frame)  # all frames of an environment have one shape
        return frame


def _advises(environment: Environment) -> bool:
    """Whether `environment` was made with an expert of ALFWorld's beside it."""
    return getattr(environment, "expert", None) is not None and hasattr(environment, "expert_action")


class About(NamedTuple):
    """What a server wants to know of an environment: its name, and whether it comes with an expert."""

    name: str
    advises: bool


@dataclass(eq=False)
class Episodes:
    """Plays games for an executor of `rollouts.py`: yields an `Observation`, is sent the action, None at the end.

    An episode of a game returns `(won, actions)`, that of None what there is to say `About` the environment. One
    environment is made and kept until `close`. Observations have the episode's text only with `tell_history`.
    """

    environment_factory: EnvironmentFactory
    expert_factory: ExpertFactory | None
    blank_frames: bool
    tell_history: bool
    _player: Player | None = field(default=None, init=False, repr=False)

    def __call__(self, game: Game | None) -> Generator[Observation, str | None, About | tuple[bool, int]]:
        """Play one game."""
        if self._player is None:
            environment = self.environment_factory()
            expert = self.expert_factory(environment) if self.expert_factory else None
            self._player = Player(environment, expert, self.blank_frames)
        player = self._player
        if game is None:
            return About(player.environment.name, self.expert_factory is not None or _advises(player.environment))
        player.begin(game)
        while True:
            action = yield player.observation(history=player.history() if self.tell_history else "")
            if action is None:
                return bool(player.step.won), player.actions
            player.act(action)

    def close(self) -> None:
        """Close the environment."""
        if self._player is not None:
            self._player.environment.close()
            self._player = None


@dataclass
class _Worker:
    """Plays what one session is given."""

    link: Link
    executor: RolloutExecutor
    episodes: Episodes
    games: Sequence[Game]
    split: str
    image_format: str
    tally: Tally
    _losses: int = 0  # in a row

    def work_v2(self) -> None:
        """Ask for work until the server has none; start a new session when the server has lost ours."""
        try:
            while not self._work_in_session():
                pass
        finally:
            self.executor.close()

    def work_v1(self, num_rounds: int | None) -> None:
        """Play all games in order, round after round, until `num_rounds` are over or the server is gone."""
        self.tally.report.expect(len(self.games) * num_rounds if num_rounds else 0)
        rounds = 0
        try:
            while num_rounds is None or rounds < num_rounds:
                for game in self.games:
                    self._count(game, self._play(game, self._ask_v1))
                rounds += 1
        except _ServerGone:
            if not self.tally.per_task_type and not rounds:
                raise ClientError(f"the server at {self.link.url} went away before the first episode ended") from None
            self.tally.report.say(f"the server has gone after {rounds} whole rounds")
        finally:
            self.executor.close()

    def _work_in_session(self) -> bool:
        """True when the server has no more work, False when it has lost the session."""
        session = Session(self.link, self.image_format)
        by_id = {game.id: game for game in self.games}
        try:
            about = self._about()
            self._greet(session, about)
            waited_s = 0.0
            while True:
                work = session.send(Next)
                if work["kind"] == "finished":
                    return True
                if work["kind"] == "wait":
                    waited_s += float(work["seconds"])
                    if waited_s >= _LONG_WAIT_S:
                        self.tally.report.say_once(_OTHERS_PLAY)
                    self.link.pause(float(work["seconds"]))
                elif work.get("game") in by_id:
                    waited_s = 0.0
                    game = by_id[work["game"]]
                    try:
                        self._count(game, self._play(game, partial(self._ask_v2, session, work)))
                    except _EnvironmentLost as lost:
                        self.tally.report.say(f"an environment's process {lost}: its game goes back to the server")
                        # Greet before leaving: a server that is left by all may end.
                        left, session = session, Session(self.link, self.image_format)
                        self._greet(session, about)
                        left.bye()
                else:
                    raise ClientError(f"the server hands out a game that was not offered: {work.get('game')!r}")
        except _SessionLost:
            self.tally.report.say("the server has lost this session: starting a new one")
            return False
        finally:
            session.bye()

    def _greet(self, session: Session, about: About) -> None:
        games = tuple(game.id for game in self.games)
        welcome = session.send(Hello, games=games, environment=about.name, split=self.split)
        self._check_expert(about, welcome.get("expert") or "")
        self.tally.report.expect(welcome.get("num_rounds", 1) * welcome.get("num_envs", len(games)))

    def _about(self) -> About:
        while True:
            with contextlib.suppress(_EnvironmentLost):
                return self._play(None)

    def _check_expert(self, about: About, wanted: str) -> None:
        if wanted in _EXPERTS_BESIDE and not about.advises:
            raise ClientError(
                f"the server's expert.name={wanted} runs beside the environment: start the client with "
                f"--env textworld --expert {wanted}"
            )

    def _play(self, game: Game | None, ask: Callable[[Observation], str | None] | None = None) -> Any:
        """What `Episodes` returns for `game`; _EnvironmentLost, or EnvironmentFault at the third loss in a row."""
        answer = ask and (lambda observations: [ask(observation) for observation in observations])
        (outcome,) = self.executor.run(self.episodes, [game], answer=answer)
        if outcome.fault:
            self._losses += 1
            if self._losses >= _LOSSES:
                raise EnvironmentFault(f"an environment was lost {_LOSSES} times in a row: it {outcome.fault}")
            raise _EnvironmentLost(outcome.fault)
        self._losses = 0 if game else self._losses
        return outcome.value

    def _count(self, game: Game, played: tuple[bool, int]) -> None:
        won, actions = played
        if actions or not self.episodes.tell_history:  # v1 skips what was solved in an earlier round
            self.tally.add(game, won=won, steps=actions)

    def _ask_v2(self, session: Session, work: dict[str, Any], observation: Observation) -> str | None:
        return session.send(partial(replace, observation), env=work["env"], round=work["round"]).get("action")

    def _ask_v1(self, observation: Observation) -> str | None:
        met = self.link.bytes_sent > 0
        reply = self.link.exchange(
            v1.encode(observation),
            "text/plain; charset=utf-8",
            resend=False,
            patience_s=_V1_PATIENCE_S if met else None,
        )
        try:
            actions = v1.decode_reply(reply)
        except ProtocolError as error:
            raise ClientError(f"{self.link.url} does not answer like a dagger server: {error}") from error
        return actions[0] if actions and actions[0] != SKIP else None
