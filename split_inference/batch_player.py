"""Plays games on several connections at once: one batch for the model, then one step of every game."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from alfworld_native.language.commands import is_thought, normalise
from split_inference.socket_connection import FailedRequest, ServerUnreachable, SocketConnection
from split_inference.trajectories import RecordedEpisode, TrajectoryFolder
from split_inference.vision_models import Turn, VisionModel
from xrl_alignment.agents.language.answers import read_answer

MAX_ACTION_CHARS = 500  # the server accepts no longer action


def parse_action(output: str) -> str:
    """The command in a model's output; else its thought (`think: …`); else its first line, normalised."""
    output = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in output)
    answer = read_answer(output)
    thought = f"think: {answer.thought}" if answer.thought else ""
    return (answer.action or thought or normalise(output))[:MAX_ACTION_CHARS]


class BatchPlayer:
    """Plays each game on a connection of its own; all games that are in progress share the model's batches.

    `max_turns` ends an episode and counts thoughts too: there is no other limit on thoughts. With `show_commands` the
    prompt begins with the commands that the engine would accept. A game whose environment crashes or hangs counts as
    failed, and `reconnect` gives the next one another environment.
    """

    def __init__(
        self,
        *,
        connections: Sequence[SocketConnection],
        reconnect: Callable[[], SocketConnection],
        model: VisionModel,
        trajectories: TrajectoryFolder,
        max_turns: int,
        show_commands: bool,
    ) -> None:
        self._free = deque(connections)
        self._reconnect = reconnect
        self._model = model
        self._trajectories = trajectories
        self._max_turns = max_turns
        self._show_commands = show_commands
        self._playing: dict[SocketConnection, RecordedEpisode] = {}
        self._tried_again: set[str] = set()  # games whose first connection was dead before they began
        self.failed: dict[str, str] = {}  # game -> why it could not be played

    def play(self, games: Sequence[dict[str, str]]) -> Iterator[RecordedEpisode]:
        """Play `games` (as the server's `list_games` gives them); yields each episode once it is written."""
        waiting = deque(games)
        while waiting or self._playing:
            self._begin(waiting)
            if not self._playing:  # no game could be begun, and none is left
                return
            turns = []
            for recorded in self._playing.values():
                episode = recorded.episode
                prompt = self._model.write_prompt(episode.text, (), episode.steps)
                if self._show_commands:
                    prompt = f"Possible commands: {'; '.join(recorded.commands)}\n{prompt}"
                said = (prompt, recorded.images[-1], recorded.image_format, recorded.commands)
                turns.append(Turn(*said, tuple(episode.steps), tuple(recorded.shown)))
            # One batch for the model, then one step of every game.
            self._step(turns, self._model.answer(turns))
            for connection, recorded in list(self._playing.items()):
                if recorded.over(self._max_turns):
                    self._trajectories.write(recorded)
                    self._release(connection)
                    yield recorded

    def _begin(self, waiting: deque[dict[str, str]]) -> None:
        """Give every free connection a game; all environments load at the same time.

        A free connection may be dead: the server closes one that is silent for `--idle-timeout`, for instance while the
        model loads. Then the game gets one more try, on a new connection.
        """
        while waiting and self._free:
            asked, lost = [], list[tuple[SocketConnection, dict[str, str], Exception]]()
            while waiting and self._free:
                connection, game = self._free.popleft(), waiting.popleft()
                try:
                    connection.send({"command": "init", "traj_file": game["traj_file"]})
                    asked.append((connection, game))
                except ServerUnreachable as reason:
                    lost.append((connection, game, reason))
            for connection, game in asked:
                try:
                    self._playing[connection] = RecordedEpisode(game["game"], connection.receive())
                except FailedRequest as reason:
                    self._give_up(connection, game["game"], reason)
                except ServerUnreachable as reason:
                    lost.append((connection, game, reason))
            for connection, game, why in lost:
                if game["game"] in self._tried_again:
                    self._give_up(connection, game["game"], why)
                else:
                    self._tried_again.add(game["game"])
                    waiting.appendleft(game)
                    self._release(connection, lost=True)

    def _step(self, turns: Sequence[Turn], outputs: Sequence[str]) -> None:
        """Carry out the actions; all environments work at the same time."""
        # First all requests go out, then the answers are read: a server's process works on each meanwhile.
        asked, lost = [], list[tuple[SocketConnection, RecordedEpisode, Exception]]()
        for (connection, recorded), turn, output in zip(self._playing.items(), turns, outputs, strict=True):
            action = parse_action(output)
            if is_thought(action):
                recorded.think(turn.prompt, output, action)
            else:
                try:
                    connection.send({"command": "step", "action": recorded.act(turn.prompt, output, action)})
                    asked.append((connection, recorded))
                except ServerUnreachable as reason:
                    lost.append((connection, recorded, reason))
        for connection, recorded in asked:
            try:
                recorded.hear(connection.receive())
            except (FailedRequest, ServerUnreachable) as reason:
                lost.append((connection, recorded, reason))
        for connection, recorded, why in lost:
            self._give_up(connection, recorded.episode.game, why)

    def _give_up(self, connection: SocketConnection, game: str, reason: Exception) -> None:
        """The game cannot be played. ServerUnreachable if its environment is gone, and the server gives no other."""
        self.failed[game] = str(reason)
        if isinstance(reason, FailedRequest) and connection not in self._playing:  # it has begun no game
            self._free.append(connection)
        else:
            self._release(connection, lost=isinstance(reason, ServerUnreachable))

    def _release(self, connection: SocketConnection, *, lost: bool = False) -> None:
        """End the connection's game, so that it, or another one if it is `lost`, can take the next one."""
        self._playing.pop(connection, None)
        try:
            if not lost:
                connection.send_request({"command": "reset_task"})
        except ServerUnreachable:
            lost = True
        if lost:
            connection.close()
            self._free.appendleft(self._reconnect())  # first: the others may be dead by now
        else:
            self._free.append(connection)
