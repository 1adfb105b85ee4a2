"""The DAgger loop: one observation in, one action out, and learning after every episode.

Follow one observation: `DaggerLoop.run` takes it from the server, `_receive` adds it to its episode, `_act` asks
expert and policy and answers; the end of an episode goes to the `Ledger`, which stores it, lets the learner train on
it, and ends the round when it was the last one.

Ross, Gordon, Bagnell 2011 (DAgger: the policy's own states, the expert's labels, mixing probability beta); EMMA, Yang
et al. 2024 (DPO with the expert's action chosen and the policy's own rejected; Reflexion memories between rounds).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.dagger.episode import Episode, plain
from xrl_alignment.dagger.journal import Ledger
from xrl_alignment.dagger.learner import DivergedError
from xrl_alignment.dagger.replay import Transition
from xrl_alignment.dagger.schedule import ScheduleError
from xrl_alignment.experts.base import Expert, act_all
from xrl_alignment.language.history import EnvironmentHistory
from xrl_alignment.language.prompt import build_prompt, opening
from xrl_alignment.policies.base import Policy, PolicyInput
from xrl_alignment.wire.admission import PendingRequest
from xrl_alignment.wire.http_server import DaggerHTTPServer
from xrl_alignment.wire.messages import Bye, Hello, Next, Observation
from xrl_alignment.wire.v1 import SKIP

V1_SESSION = "v1"  # wire v1 knows no sessions: there is one client
WAIT_S = 0.2  # until a session without work asks again

logger = logging.getLogger(__name__)


class DaggerLoop:
    """Answers clients through `server` until all rounds of `ledger` are over.

    `make_expert` gives a fresh expert for every episode; `client_expert` is the one that clients are asked to compute
    beside their environment instead (handcoded, planner), or empty. `beta` is the probability, by round (its last
    value repeats), that the expert's action is executed instead of the policy's; it counts only while the ledger has a
    learner: an evaluation shows the policy alone. `preferences` asks the policy for its own answer at every step (DPO's
    rejected side). `enable_tc` lets expert and policy think (`think: …`, answered `OK.`). `write_prompt` writes
    what the model sees (`history.build_prompt`).
    """

    def __init__(
        self,
        *,
        server: DaggerHTTPServer,
        policy: Policy,
        make_expert: Callable[[], Expert],
        ledger: Ledger,
        client_expert: str = "",
        preferences: bool = False,
        enable_tc: bool = False,
        beta: Sequence[float] = (0.0,),
        max_steps: int = 50,
        repeat_limit: int = 0,
        seed: int = 42,
        max_batch: int = 32,
        window_s: float = 0.02,
        write_prompt: Callable[..., str] = build_prompt,
    ) -> None:
        self.server = server
        self.policy = policy
        self.make_expert = make_expert
        self.ledger = ledger
        self.schedule = ledger.schedule
        self.client_expert = client_expert
        self.preferences = preferences
        self.enable_tc = enable_tc
        self.beta = list(beta) if ledger.learner else [0.0]
        self.max_steps = max_steps
        self.repeat_limit = repeat_limit
        self.seed = seed
        self.max_batch = max_batch
        self.window_s = window_s
        self.write_prompt = write_prompt
        self._log = ledger.directory.logger
        self._episodes: dict[str, Episode] = {}  # by session
        self._sessions: set[str] = set()  # v2 sessions that have said hello and not bye
        self._warned = False
        self._last_call_s = 0.0  # how long the policy's last call took: gathering more than that would not pay

    # --- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the last round has ended; writes DONE.

        Raises DivergedError when the loss is not finite, EndpointFault when the expert cannot be asked any more (its
        budget is spent, its endpoint is down): the run can then be resumed.
        """
        try:
            self.ledger.open()
            while not self.schedule.finished:
                self._answer(self._take(self.max_batch, timeout_s=1.0))
        except DivergedError as error:
            self._log.error(str(error))
            raise
        except EndpointFault as error:
            self._log.error(str(error))
            raise type(error)(f"{error}; the run is kept: --resume {self.ledger.directory.path}") from error
        self.ledger.directory.mark_done()
        self._say_goodbye()

    def status(self) -> dict[str, Any]:
        """Progress for `/status` and the progress bar."""
        return {**self.ledger.status(), "playing": len(self._episodes)}

    def _take(self, most: int, timeout_s: float) -> list[PendingRequest]:
        return self.server.take(most, timeout_s, window_s=self.window_s, longest_s=self._last_call_s)

    def _answer(self, pending: Sequence[PendingRequest]) -> None:
        waiting: list[tuple[PendingRequest, Episode]] = []
        ended: list[Episode] = []
        # Who has just been given a game will send its first observation at once: others' wait for it. But not those who
        # have ended theirs: they will ask for another one, and must not before the first is committed.
        while self._sort(pending, waiting, ended) and waiting and not ended and len(waiting) < self.max_batch:
            pending = self._take(self.max_batch - len(waiting), timeout_s=self.window_s)
        self._act(waiting)
        for episode in ended:
            self.ledger.commit(episode)

    def _sort(
        self, pending: Sequence[PendingRequest], waiting: list[tuple[PendingRequest, Episode]], ended: list[Episode]
    ) -> bool:
        """Receive observations, answer the rest; whether a session has come or been given a game."""
        begins = False
        for item in pending:
            match item.message:
                case Observation():
                    self._receive(item, waiting, ended)
                case Hello():
                    self._greet(item)
                    begins = True
                case Next():
                    work = self._assign(item.message.session)
                    item.reply(work)
                    begins |= work["kind"] == "work"
                case Bye():
                    self._give_back(item.message.session, item.message.reason or "left")
                    self._sessions.discard(item.message.session)
                    item.reply({"kind": "bye"})
        return begins

    def _greet(self, item: PendingRequest) -> None:
        try:
            self.schedule.offer([plain(game) for game in item.message.games])
        except ScheduleError as error:
            item.reply({"kind": "error", "reason": str(error)})
            return
        self.ledger.note_games()
        self._sessions.add(item.message.session)
        size = {"num_rounds": self.schedule.num_rounds, "num_envs": self.schedule.num_envs}
        item.reply({"kind": "welcome", "expert": self.client_expert, **size})

    def _assign(self, session: str) -> dict[str, Any]:
        """Answer a session that asks for work."""
        self._give_back(session, "asked for new work")
        if self.schedule.finished:
            return {"kind": "finished"}
        game = self.schedule.next_game(session)
        if game is None:
            return {"kind": "wait", "seconds": WAIT_S}
        return {"kind": "work", "env": self.schedule.env_of(game), "game": game, "round": self.schedule.round}

    def _give_back(self, session: str, why: str) -> None:
        """Forget a session's unfinished episode; its game goes to whoever asks next."""
        episode = self._episodes.pop(session, None)
        self.schedule.release(session)
        if episode:
            self._log.info(f"Task: [{episode.env}] given back: its client {why}")

    def _say_goodbye(self, patience_s: float = 5.0) -> None:
        """Tell clients that still ask that the run is over, until they have left or patience ends."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and self._sessions:
            self._answer(self.server.take(self.max_batch, timeout_s=0.2))

    # --- one observation -------------------------------------------------------------------------------------------

    def _receive(
        self, item: PendingRequest, waiting: list[tuple[PendingRequest, Episode]], ended: list[Episode]
    ) -> None:
        """Add an observation to its episode; sort the episode into those that need an action and those that ended."""
        observation = item.message
        session = observation.session or V1_SESSION
        if observation.task_type:
            self._leave(session)
            episode = self._begin(session, observation)
        elif episode := self._episodes.get(session):
            episode.receive(observation)
        if episode is None:  # no use for this game, or an episode from before a restart: the client goes on
            _end_episode(item)
        elif episode.over(self.max_steps):
            del self._episodes[session]
            ended.append(episode)
            _end_episode(item)
        else:
            waiting.append((item, episode))

    def _leave(self, session: str) -> None:
        """A new game begins while another is open: in v1 that one has ended, unsolved; in v2 it is given back."""
        if session != V1_SESSION:
            if session in self._episodes:
                self._give_back(session, "began another game")
        elif episode := self._episodes.pop(session, None):
            self.ledger.commit(episode, abandoned=True)

    def _begin(self, session: str, observation: Observation) -> Episode | None:
        """Start an episode, or None where this run has no use for that game now."""
        game = plain(observation.task_type)
        env = self.schedule.env_of(game)
        if env < 0 or not self.schedule.open(game) or not self.schedule.hold(game, session):
            self._warn_of_few_games()
            return None
        self.ledger.note_games()
        memories = self.ledger.memories.get(game, [])
        text = plain(observation.text)
        start = opening(text)
        expert = self.make_expert()
        expert.begin(text, task_type=game, memories=memories)
        self._episodes[session] = Episode(
            env=env,
            game=game,
            round=self.schedule.round,
            beta=self.beta[min(self.schedule.round, len(self.beta) - 1)],
            opening=start,
            memories=memories,
            expert=expert,
            history=EnvironmentHistory("", start, memories, repeat_limit=self.repeat_limit),
            observation=observation,
        )
        return self._episodes[session]

    def _warn_of_few_games(self) -> None:
        """A v1 client that starts over before all games of a round came has too few: the round cannot end."""
        known, wanted = len(self.schedule.games), self.schedule.num_envs
        if not self._warned and not self.schedule.finished and known < wanted:
            self._warned = True
            logger.warning("the client begins again after %d games, the run has %d (run.num_envs)", known, wanted)

    def _act(self, waiting: list[tuple[PendingRequest, Episode]]) -> None:
        """Decide and send the next action of every waiting episode; thoughts are answered here, without the client."""
        while waiting:
            actions = self._decide([episode for _, episode in waiting])
            thinking = []
            for (item, episode), action in zip(waiting, actions, strict=True):
                if self.enable_tc and episode.thinks(action):
                    thinking.append((item, episode))
                else:
                    item.reply([episode.send(action)])
            waiting = thinking

    def _decide(self, episodes: Sequence[Episode]) -> list[str]:
        """The executed action of each episode: the policy's, or with probability beta the expert's.

        Stores a transition for each. The policy is not asked where its answer would have no use: under behavioural
        cloning, when the expert drives.
        """
        seen = [episode.observation for episode in episodes]
        prompts = [self.write_prompt(e.opening, e.memories, e.steps) for e in episodes]
        advice = act_all([episode.expert for episode in episodes], [now.information for now in seen])
        labels = [e.label(said, thoughts=self.enable_tc) for e, said in zip(episodes, advice, strict=True)]
        drives = [
            label is not None and episode.coin(self.seed) < episode.beta
            for episode, label in zip(episodes, labels, strict=True)
        ]
        asked = [i for i, expert_drives in enumerate(drives) if self.preferences or not expert_drives]
        inputs = [PolicyInput(prompts[i], seen[i].image, seen[i].admissible_commands, episodes[i].game) for i in asked]
        began = time.monotonic()
        own = dict(zip(asked, self.policy.act(inputs) if inputs else [], strict=True))
        self._last_call_s = time.monotonic() - began
        executed = []
        for i, episode in enumerate(episodes):
            # The original's rule for a filtered expert answer: the policy's own action becomes the label.
            label = own[i] if labels[i] is None else labels[i]
            action = label if drives[i] else own[i]
            episode.assisted |= drives[i]
            episode.transitions.append(Transition(seen[i].image, prompts[i], label, own.get(i, ""), action, ""))
            self._log.info(
                f"Task: [{episode.env}], Iter: [{episode.actions}], Obs: {episode.heard}, "
                f"VLM Action: {own.get(i, '-')}, LLM Action: {label}"
            )
            executed.append(action)
        return executed


def _end_episode(item: PendingRequest) -> None:
    """Answer an observation after which there is nothing to do: a final one, or a game that is not to be played."""
    item.reply([] if item.message.session or item.message.done else [SKIP])
