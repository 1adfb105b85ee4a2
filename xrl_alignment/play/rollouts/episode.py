"""One episode in progress: the same class in training, evaluation, collection, client and split inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from alfworld_native.language.commands import MAX_THOUGHTS, normalise
from alfworld_native.language.sentences import is_refusal
from lavis.common.errors import ConfigError
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.language.prompt import opening

THOUGHT_FEEDBACK = "OK."  # ReAct's answer to a thought (Yao et al. 2023)
STUCK_AFTER = (
    5  # equal actions in a row that end a game of the demo's evaluations: a greedy policy would go on for ever
)


@dataclass(kw_only=True)
class Episode:
    """What was shown, said and done so far in one game.

    Each turn is `act` (the action goes to the environment), then `hear` (what the environment answered); or `think`,
    which the environment does not notice. `text` is what the environment said after `reset`.
    """

    game: str  # the game id; it begins with the task type
    text: str
    opening: str = field(init=False)  # `text` without TextWorld's banner: the room and the task sentence
    memories: Sequence[str] = ()
    repeat_limit: int = 0
    steps: list[tuple[str, str]] = field(default_factory=list)  # (action, feedback), oldest first; thoughts included
    actions: int = 0  # sent to the environment
    won: bool = False
    done: bool = False
    awaiting: str = ""  # the action whose feedback has not come yet
    _thoughts: int = 0  # in a row
    _repeats: int = 0  # how often in a row the newest action was taken

    def __post_init__(self) -> None:
        """Find the `opening`; ConfigError for a `repeat_limit` of 1: an action that came once is no repetition."""
        if self.repeat_limit < 0 or self.repeat_limit == 1:
            raise ConfigError(f"repeat_limit is {self.repeat_limit}: use 0 (off) or at least 2 (the same action twice)")
        self.opening = opening(self.text)

    @property
    def task_type(self) -> str:
        """The game's ALFWorld task type."""
        return self.game.split("-", 1)[0]

    @property
    def newest_text(self) -> str:
        """What the agent heard last: the newest feedback, or the opening."""
        return self.steps[-1][1] if self.steps else self.opening

    @property
    def rejected(self) -> int:
        """How many actions the environment did not understand."""
        return sum(is_refusal(feedback) for _, feedback in self.steps)

    @property
    def stuck(self) -> bool:
        """Whether the same action came `repeat_limit` times in a row (0: never)."""
        return 0 < self.repeat_limit <= self._repeats

    def over(self, max_steps: int) -> bool:
        """Won, ended by the environment, stuck, or at its limit of `max_steps` actions."""
        return self.won or self.done or self.stuck or self.actions >= max_steps

    def act(self, action: str) -> str:
        """Note that `action` goes to the environment; returns it."""
        self._thoughts = 0
        self.actions += 1
        self.awaiting = action
        return action

    def hear(self, feedback: str, *, won: bool = False, done: bool = False) -> None:
        """Take in what the environment answered to the action that was sent."""
        self.won, self.done = won, done
        # Thoughts count as well: a model that repeats a thought for ever is stuck, too.
        repeated = bool(self.steps) and self.steps[-1][0] == self.awaiting
        self._repeats = self._repeats + 1 if repeated else 1
        self.steps.append((self.awaiting, feedback))

    @property
    def may_think(self) -> bool:
        """Whether a thought would not be one too many in a row: such a one goes to the environment."""
        return self._thoughts < MAX_THOUGHTS

    def think(self, thought: str) -> None:
        """Have a thought."""
        self._thoughts += 1
        self.awaiting = thought
        self.hear(THOUGHT_FEEDBACK, won=self.won, done=self.done)

    def answer(self, action: str | None, thought: str) -> str | None:
        """What an expert's advice means now: its `thought` if that is new in this episode, else its `action`."""
        # Normalised as the model's answers are, for it is compared with them, and becomes a label.
        said = normalise(f"think: {thought}")
        # After a thought comes an action.
        new = not self.has_just_thought and all(done != said for done, _ in self.steps)
        return said if thought and new else action

    @property
    def has_just_thought(self) -> bool:
        """Whether the newest step is a thought that was answered without the environment."""
        return self._thoughts > 0

    def trace(self) -> EpisodeTrace:
        """The episode as a reflector reads it."""
        return EpisodeTrace(self.game, self.task_type, self.opening, tuple(self.steps), self.won)
