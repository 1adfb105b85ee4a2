"""Who plays which game when: rounds over a list of games, everything keyed by game id, never by position."""

from __future__ import annotations

from collections.abc import Sequence

from lavis.common.errors import EmacError


class ScheduleError(EmacError, ValueError):
    """A client's games do not fit this run; the text says how."""


class Schedule:
    """Rounds over `num_envs` games. A solved game is not played again; a game is in one session's hands at a time.

    The games are the first client's list (wire v2), or become known one by one as they appear (wire v1).
    """

    def __init__(self, *, num_rounds: int, num_envs: int) -> None:
        self.num_rounds = num_rounds
        self.num_envs = num_envs
        self.games: list[str] = []
        self.round = 0
        self.solved: set[str] = set()
        self.newly_solved = 0
        self._played: set[str] = set()
        self._holders: dict[str, str] = {}  # game -> session

    def offer(self, games: Sequence[str]) -> None:
        """Take a client's game list (v2 `hello`); every client of a run must offer the same first `num_envs`."""
        games = list(dict.fromkeys(games))[: self.num_envs]
        if len(games) < self.num_envs:
            raise ScheduleError(
                f"the client offers {len(games)} different games, the run has {self.num_envs} (run.num_envs)"
            )
        if self.games[: len(games)] != games[: len(self.games)]:
            raise ScheduleError("the client offers other games than this run has played so far; use the same list")
        self.games = games

    def withdraw(self) -> None:
        """Forget the game list if nothing has been played: whoever offered it has left, the next one may differ."""
        if not (self.round or self._played or self.solved or self._holders):
            self.games = []

    def env_of(self, game: str) -> int:
        """Index of a game, -1 when this run has no place for it; a new game takes the next free place (v1)."""
        if game not in self.games and len(self.games) < self.num_envs:
            self.games.append(game)
        return self.games.index(game) if game in self.games else -1

    def open(self, game: str) -> bool:
        """Still to be played in this round."""
        return not self.finished and game not in self.solved and game not in self._played

    def next_game(self, session: str) -> str | None:
        """Hand a session the first game of this round that nobody plays or has played; None when there is none."""
        for game in self.games:
            if self.open(game) and game not in self._holders:
                self._holders[game] = session
                return game
        return None

    def hold(self, game: str, session: str) -> bool:
        """Note that a session plays `game` (v1 clients choose by themselves); False where another one does."""
        return self._holders.setdefault(game, session) == session

    def release(self, session: str) -> None:
        """Give back what a session held."""
        self._holders = {game: holder for game, holder in self._holders.items() if holder != session}

    def finish(self, game: str, *, solved: bool) -> None:
        """Note an episode's end."""
        self._played.add(game)
        self._holders.pop(game, None)
        if solved and game not in self.solved:
            self.solved.add(game)
            self.newly_solved += 1

    @property
    def round_over(self) -> bool:
        """Every game of this round is solved or played (and all games are known)."""
        return (
            not self.finished
            and len(self.games) == self.num_envs
            and all(game in self.solved or game in self._played for game in self.games)
        )

    @property
    def in_last_round(self) -> bool:
        """No round comes after this one."""
        return self.round == self.num_rounds - 1

    @property
    def played_in_round(self) -> int:
        """Games of this round that need no more play: solved before, or played now."""
        return sum(game in self.solved or game in self._played for game in self.games)

    def advance(self) -> None:
        """Begin the next round."""
        self.round += 1
        self.newly_solved = 0
        self._played.clear()

    @property
    def finished(self) -> bool:
        """All rounds have ended."""
        return self.round >= self.num_rounds
