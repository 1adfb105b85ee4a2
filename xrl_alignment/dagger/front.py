"""Who asks: greets sessions, hands games out, and makes episodes of the observations that come in.

One object stands between the server and the algorithm: `Front.collect` gives the episodes that need an action, and
those that have ended. The front answers by itself what needs no decision. `ExpectedGames` says whom it turns away.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from alfworld_native.experts.base import Expert
from lavis.common.errors import described
from xrl_alignment.agents.language.plain import one_line, plain
from xrl_alignment.dagger.episode import (
    EpisodeFault,
    LabelledEpisode,
    UnfinishedTransitions,
    may_be_the_datas,
)
from xrl_alignment.dagger.rounds import GamesError, Rounds
from xrl_alignment.wire.admission import PendingRequest
from xrl_alignment.wire.expected import ExpectedGames
from xrl_alignment.wire.http_server import DaggerHTTPServer
from xrl_alignment.wire.messages import Bye, Hello, Next, Observation
from xrl_alignment.wire.v1 import SKIP, V1_SESSION

MAX_NAME, MAX_ENVIRONMENTS = 100, 64  # of what clients say of themselves; the server writes no more of it down
LONGEST_REASON = 3000  # characters: our own command line and two names of the client's
MAX_HELD = 192 << 20  # bytes of memory for the texts of all unfinished episodes
MAX_STORED = 16 << 30  # bytes of disk for their transitions
ATTEMPTS = 3  # at a game whose data cannot be used, in one round
NO_HELLO = "this session was not welcomed: say hello first, with games of this run"
WAIT_S = 0.2  # until a session without work asks again

logger = logging.getLogger(__name__)

Asking = tuple[PendingRequest, LabelledEpisode]  # a request, and the episode that needs an action to answer it


class Front:
    """Answers greetings and requests for work through `server`, and keeps every session's episode in progress.

    `make_expert` gives a fresh expert for every episode. `client_expert` names the expert that clients are asked to
    compute beside their environment, for example `planner`; it is empty if the server's own expert labels. With
    `labels_required` an episode whose first observation brings no label of that expert is refused. `expected` is what
    clients are to play (None: anything). `beta` gives each round's probability that the expert drives; its last value
    repeats. `say` is told who is refused. Up to `max_batch` observations are collected at once; others are waited for
    `window_s`.
    """

    def __init__(
        self,
        server: DaggerHTTPServer,
        rounds: Rounds,
        *,
        make_expert: Callable[[], Expert],
        client_expert: str = "",
        beta: Sequence[float] = (0.0,),
        max_steps: int = 50,
        repeat_limit: int = 0,
        labels_required: bool = False,
        expected: ExpectedGames | None = None,
        say: Callable[[str], None] = lambda text: None,
        max_batch: int = 32,
        window_s: float = 0.02,
    ) -> None:
        self.server = server
        self.make_expert = make_expert
        self.client_expert = client_expert
        self.beta = beta
        self.max_steps = max_steps
        self.repeat_limit = repeat_limit
        self.labels_required = labels_required
        self.expected = expected
        self.say = say
        self.max_batch = max_batch
        self.window_s = window_s
        self.max_held, self.max_stored = MAX_HELD, MAX_STORED
        self._rounds = rounds
        self._directory = rounds.directory
        self._log = rounds.directory.logger
        self.episodes: dict[str, LabelledEpisode] = {}  # in progress, by session
        self._postponed: list[PendingRequest] = []  # taken from the server, to be read by the next `collect`
        self._forgotten: dict[str, str] = {}  # sessions whose episode had to make room, and why
        self.greeted: dict[str, Hello] = {}  # v2 sessions that have said hello and not bye, without their games
        self._v1_games = 0  # games that a v1 client has begun
        self._given_up: Counter[tuple[int, str]] = Counter()  # by round and game
        self._said = ""  # the reason of the refusal that the user was told last
        self._warned = False
        self._skipped = 0  # games in a row that a v1 client has begun and that were not to be played

    def in_progress(self) -> list[tuple[str, LabelledEpisode]]:
        """Every session with its episode; may be called by any thread."""
        return list(self.episodes.items())

    def collect(self, timeout_s: float = 1.0, longest_s: float = 0.0) -> tuple[list[Asking], list[LabelledEpisode]]:
        """Who asks within `timeout_s`: the requests that need an action, and the episodes that have ended.

        All ended episodes must be stored before the next call: a session which has ended a game must not be given it
        again. More requests are gathered for `longest_s` at most (or `window_s`, if that is longer). The loop gives the
        time that the policy's last call took: a larger batch would not save more than that.
        """
        asking: list[Asking] = []
        ended: list[LabelledEpisode] = []
        most, wait_s = self.max_batch, timeout_s
        while True:
            pending, self._postponed = self._postponed, []
            if not pending:
                with self._rounds.times.part("environment"):
                    pending = self.server.take(most, wait_s, window_s=self.window_s, longest_s=longest_s)
            # Greetings, work and farewells are answered here; only observations reach the algorithm.
            begins = False  # whether a session will send the first observation of its game at once
            for number, request in enumerate(pending):
                if ended and isinstance(request.message, (Next, Bye)):
                    # An episode that has ended is stored first: else its game is handed out, or the run's list of games
                    # withdrawn, as if nobody had played.
                    self._postponed.append(request)
                    continue
                match request.message:
                    case Observation() as observation:
                        begins_v1 = observation.task_type and not observation.session
                        before = self.episodes.get(V1_SESSION) if begins_v1 else None
                        if before and self._repeats(before, observation):
                            self._give_back(V1_SESSION, "began its game again")
                        elif before:
                            # Wire v1's only client begins another game: the one before ends unsolved. The new one
                            # waits until that is stored, for the round may end with it.
                            ended.append(self.episodes.pop(V1_SESSION))
                            ended[-1].won = False
                            self._postponed += pending[number:]
                            return self._still_playing(asking), ended
                        try:
                            episode = self._observe(request, observation)
                        except Exception as error:
                            if not may_be_the_datas(error):
                                raise
                            ended += self.give_up(request, error)
                            continue
                        if episode and episode.over(self.max_steps):
                            ended.append(self.end(request))
                        elif episode:
                            asking.append((request, episode))
                    case Hello() as hello:
                        begins = True
                        reason = self.expected.difference(hello) if self.expected else ""
                        try:
                            if not reason:
                                self._rounds.offer([plain(game) for game in hello.games])
                        except GamesError as error:
                            reason = str(error)
                        if reason:
                            self._refuse(request, reason)
                            continue
                        # Before anybody plays one of them.
                        self._directory.save_games(self._rounds.games, self._rounds.environments)
                        self.greeted[hello.session] = replace(hello, games=())
                        size = {"num_rounds": self._rounds.num_rounds, "num_envs": self._rounds.num_envs}
                        request.reply({"kind": "welcome", "expert": self.client_expert, **size})
                    case Next(session=session) if session not in self.greeted:
                        request.reply({"kind": "error", "reason": NO_HELLO})
                    case Next(session=session):
                        # Who asks for work has no episode (any more): a client that was restarted starts afresh.
                        self._give_back(session, "asked for new work")
                        rounds = self._rounds
                        if (env := rounds.hand_out(session)) >= 0:
                            work = {"kind": "work", "env": env, "game": rounds.games[env], "round": rounds.round}
                            request.reply(work)
                            begins = True
                        elif rounds.finished:
                            solved = {"solved": len(rounds.solved), "games": rounds.num_envs}
                            request.reply({"kind": "finished", **solved})
                        else:
                            request.reply({"kind": "wait", "seconds": WAIT_S})
                    case Bye(session=session, reason=reason):
                        self._give_back(session, one_line(reason) or "left")
                        self.greeted.pop(session, None)
                        if not self.greeted and V1_SESSION not in self.episodes:
                            self._rounds.withdraw()
                            self._directory.save_games(self._rounds.games, self._rounds.environments)
                        request.reply({"kind": "bye"})
            # A session that has just been given a game sends its first observation at once: the others wait for it.
            # One whose game has ended asks for another, and must not get it before that episode is stored.
            if not (begins and asking and not ended and len(asking) < self.max_batch):
                return self._still_playing(asking), ended
            most, wait_s = self.max_batch - len(asking), self.window_s

    def _still_playing(self, asking: Sequence[Asking]) -> list[Asking]:
        """Those whose episode was not given back since they asked, for instance because their client has left."""
        playing = []
        for request, episode in asking:
            session = getattr(request.message, "session", "") or V1_SESSION
            if self.episodes.get(session) is episode:
                playing.append((request, episode))
            else:
                _answer_end(request, self._forgotten.pop(session, ""))
        return playing

    def end(self, request: PendingRequest) -> LabelledEpisode:
        """The episode of the session that asks is over: tell the session so, and return the episode, to be stored."""
        assert isinstance(request.message, Observation)
        _answer_end(request)
        return self.episodes.pop(request.message.session or V1_SESSION)

    def give_up(self, request: PendingRequest, error: Exception) -> list[LabelledEpisode]:
        """End the episode of a session whose data cannot be used, tell the session, and log why.

        The game goes to whoever asks next. At the last of its `ATTEMPTS` in this round it counts as lost: then this
        returns an episode without steps for the journal. A v1 client plays a game once in a round, so it has one.
        """
        message, why = request.message, described(error)
        assert isinstance(message, Observation)  # no other message has data that could be at fault
        logger.debug("an episode is given up", exc_info=error)
        session = message.session or V1_SESSION
        episode = self.episodes.pop(session, None)
        game = episode.game if episode else self._game_of(session, message)
        # Without an episode the game may not be this session's to lose: another session plays it, or it is over, or the
        # observation belongs to an episode that was given back, and names none.
        env = episode.env if episode else self._rounds.hand_out(session, game) if game else -1
        self._directory.save_games(self._rounds.games, self._rounds.environments)  # the journal may soon name it
        self._log.error(f"Task: [{env}] given up: {why}")
        request.reply({"kind": "action", "action": None, "reason": why} if message.session else [SKIP])
        if env >= 0:
            self._given_up[self._rounds.round, game] += 1
            if not message.session or self._given_up[self._rounds.round, game] >= ATTEMPTS:
                # The game is not given back: nobody may play it before the journal says that it is lost.
                return [self._new_episode(game, env, Observation(""))]
        self._rounds.give_back(session)
        return []

    def _repeats(self, episode: LabelledEpisode, observation: Observation) -> bool:
        """Whether a v1 client begins `episode` anew, as after a broken connection, and not the next game.

        Only a game that names its trial tells: games of one task may have the same opening. With one game in the run
        the next game is the same one, in the next round.
        """
        return "/" in episode.game and episode.game == plain(observation.task_type) and self._rounds.num_envs > 1

    # --- who plays what --------------------------------------------------------------------------------------------

    def _refuse(self, request: PendingRequest, reason: str) -> None:
        """Answer with an error, and tell the server's user: the run still waits for a client that fits."""
        reason = one_line(reason, LONGEST_REASON)  # it may quote what the client sent
        self._log.error(f"Refused a client: {reason}")
        if reason != self._said:  # once, not for each of the client's workers
            self._said = reason
            self.say(f"refused a client: {reason}")
        request.reply({"kind": "error", "reason": reason})

    def _give_back(self, session: str, why: str) -> None:
        """Forget a session's unfinished episode; its game goes to whoever asks next."""
        episode = self.episodes.pop(session, None)
        self._rounds.give_back(session)
        self._forgotten.pop(session, None)
        if episode:
            self._log.info(f"Task: [{episode.env}] given back: its client {why}")

    # --- one observation -------------------------------------------------------------------------------------------

    def _observe(self, request: PendingRequest, observation: Observation) -> LabelledEpisode | None:
        """Add an observation to its session's episode; None if there is no such episode, and then it is answered."""
        session = observation.session or V1_SESSION
        if observation.task_type:
            episode = self._begin(request, observation, session)
        elif episode := self.episodes.get(session):
            episode.receive(observation)
        else:  # an episode that is here no more: the client continues
            _answer_end(request, self._forgotten.pop(session, ""))
        if episode is None:
            return None

        # A hostile client may begin episodes and never end them. So while all unfinished episodes together take more
        # than they may, the largest one is forgotten, whoever plays it.
        for what, most in (("memory", self.max_held), ("disk space", self.max_stored)):
            why = f"has the most {what} of all unfinished episodes, which need more than {most >> 20} MB"
            sizes = {s: e.held if what == "memory" else e.transitions.size for s, e in self.episodes.items()}
            while sum(sizes.values()) > most:
                largest = max(sizes, key=sizes.__getitem__)
                if largest == session:
                    raise EpisodeFault(f"it {why}")
                self._give_back(largest, why)
                self._forgotten[largest] = f"it {why}"
                del sizes[largest]
        return episode

    def _begin(self, request: PendingRequest, observation: Observation, session: str) -> LabelledEpisode | None:
        """Start an episode with its first observation; None if this run has no use for it, and then it is answered."""
        self._v1_games += session == V1_SESSION  # first: if what follows fails, `give_up` asks which game that was
        # Does the client fit? A v1 client's game is compared here, as if the client had said hello with it; a v2
        # session was compared when it did. The original's clients do not say on which engine they play.
        game, engine = plain(observation.task_type), str(observation.information.get("engine", ""))[:MAX_NAME]
        why = reason = ""
        if self.expected and not observation.session:
            why, reason = "plays another game", self.expected.difference(Hello("", 1, (game,), engine))
        if observation.session and session not in self.greeted:
            why, reason = "was not welcomed", NO_HELLO
        elif self.labels_required and not observation.done:
            label = self.make_expert().act(observation.information)
            if not (label.action or label.thought):
                why = "sends no labels"
                reason = (
                    f"the first observation of {game[:100]} has no label (expert_action), and the labels of this "
                    f"run come from the client (expert.name={self.client_expert})"
                )
                reason += f"; start it as: {self.expected.client_command}" if self.expected else ""
        if reason:
            self._v1_games -= session == V1_SESSION  # not begun
            self._give_back(session, why)  # a game that its session has not ended goes to others
            self._refuse(request, reason)
            return None
        if session in self.episodes:
            self._give_back(session, "began another game")

        # Is the game to be played, and by this session?
        rounds = self._rounds
        game = self._game_of(session, observation)
        env = rounds.hand_out(session, game)
        if env < 0:
            self._skipped += session == V1_SESSION
            # A v1 client that starts over before all games of a round came has too few, and one that is done with a
            # whole list and has not begun a game that is left has others: the round cannot end.
            left, numbers = next(iter(rounds.left), ""), (len(rounds.games), rounds.num_envs)
            if not self._warned and not rounds.finished and numbers[0] < numbers[1]:
                self._warned = True
                logger.warning("the client begins again after %d games, the run has %d (run.num_envs)", *numbers)
            elif not self._warned and left and self._skipped >= rounds.num_envs:
                self._warned = True
                self.say(f"the client plays no game that is left in this round, such as {left}: start it with these")
            _answer_end(request, self._forgotten.pop(session, ""))
            return None

        self._skipped = 0
        # Where the game is played is written down: as the session has said in its hello. For a wire v1 client the
        # observation may name the engine, and the run's split is assumed if that has a game of this id.
        hello = self.greeted.get(session)
        engine = hello.environment if hello else engine
        split = hello.split if hello else ""
        if not hello and self.expected and self.expected.has(game):
            split = self.expected.split
        played = plain(f"{engine[:MAX_NAME] or 'unknown'} {split[:MAX_NAME] or 'unknown'}")
        if played not in rounds.environments and len(rounds.environments) < MAX_ENVIRONMENTS:
            rounds.environments.append(played)
        self._directory.save_games(rounds.games, rounds.environments)

        episode = self._new_episode(game, env, observation)
        episode.expert.begin(episode.text, task_type=game, memories=episode.memories)
        self.episodes[session] = episode
        return episode

    def _game_of(self, session: str, observation: Observation) -> str:
        """The game's id. If a v1 client sends the bare task type, it is that of the game that the client began last.

        The original's clients play their games in order, round after round: of three games the fifth begun one is
        `pick_and_place-env1`.
        """
        game = plain(observation.task_type)
        if session == V1_SESSION and "-" not in game and "/" not in game:
            return f"{game}-env{(self._v1_games - 1) % self._rounds.num_envs}"
        return game

    def _new_episode(self, game: str, env: int, observation: Observation) -> LabelledEpisode:
        round = self._rounds.round
        return LabelledEpisode(
            game=game,
            text=plain(observation.text),
            memories=self._rounds.memories.get(game, []),
            repeat_limit=self.repeat_limit,
            env=env,
            round=round,
            beta=self.beta[min(round, len(self.beta) - 1)],  # beta_i of DAgger's round i (Ross et al. 2011)
            expert=self.make_expert(),
            observation=observation,
            transitions=UnfinishedTransitions(self._directory.buffer),
        )


def _answer_end(request: PendingRequest, why: str = "") -> None:
    """Answer an observation after which there is nothing to do: a final one, or a game that is not to be played."""
    message = request.message
    if why and message.session:
        request.reply({"kind": "action", "action": None, "reason": why})
        return
    request.reply([] if message.session or (isinstance(message, Observation) and message.done) else [SKIP])
