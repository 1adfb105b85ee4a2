"""A whole training run inside a test: real server, client, engine, explorer, tiny model, learner; small numbers."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from alfworld_native import make_environment
from lavis.common.devices import set_seed
from lavis.common.optims import LinearWarmupCosineLRScheduler
from lavis.models.hf_vlm import tiny
from lavis.runners.parallel import Replicas
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.reflexion.base import update_memories
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.builders.student import load_student, make_policy, prompt_writer
from xrl_alignment.dagger.front import Front
from xrl_alignment.dagger.learner import Learner
from xrl_alignment.dagger.loop import DaggerLoop
from xrl_alignment.dagger.rounds import Rounds
from xrl_alignment.dagger.training import Training
from xrl_alignment.play.client.play import play
from xrl_alignment.play.client.report import ClientReport
from xrl_alignment.runs.directory import RunDirectory
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer
from xrl_alignment.settings.policy import PolicyConfig
from xrl_alignment.wire.http_server import DaggerHTTPServer

MAX_STEPS = 6


class Killed(BaseException):
    """Ends a run as SIGKILL would: nothing is finished, nothing more is written."""


class Scripted:
    """A policy that gives the same answers in every episode, the last one for ever; may end the run at some call."""

    reads: tuple[str, ...] = ("text", "image", "admissible_commands")

    def __init__(self, *answers: str, die_at: int = 0) -> None:
        self.answers = answers or ("look",)
        self.die_at = die_at
        self.inputs: list = []

    def act(self, batch):
        actions = []
        for item in batch:
            self.inputs.append(item)
            if len(self.inputs) == self.die_at:
                raise Killed
            taken = item.prompt.partition("Your task is to:")[2].count("\n> ") - 1
            actions.append(self.answers[min(max(taken, 0), len(self.answers) - 1)])
        return actions


class Watched:
    """Another policy, whose inputs are kept; may end the run at some input."""

    def __init__(self, policy, *, die_at: int = 0) -> None:
        self.policy, self.die_at = policy, die_at
        self.inputs: list = []

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def act(self, batch):
        self.inputs += batch
        if 0 < self.die_at <= len(self.inputs):
            raise Killed
        return self.policy.act(batch)


def make_learner(
    model, vis_processor, directory, *, preferences=False, lr=1e-3, updates=1, seed=42, num_rounds=2, fsdp=False
):
    replicas = Replicas(model, fsdp=fsdp, ddp=False)
    buffer = DPOReplayBuffer if preferences else ReplayBuffer
    optimizer = torch.optim.AdamW(replicas.parameters(), lr=lr, weight_decay=0.05)
    return Learner(
        replicas=replicas,
        vis_processor=vis_processor,
        buffer=buffer(directory, seed=seed, frames=model.frames),
        optimizer=optimizer,
        lr_scheduler=LinearWarmupCosineLRScheduler(
            optimizer=optimizer, max_epoch=num_rounds, min_lr=0.0, init_lr=lr, warmup_steps=2, warmup_start_lr=1e-8
        ),
        batch_size=2,
        accum_grad_steps=1,
        updates=updates,
        preferences=preferences,
    )


class Run:
    """One run in `path`: `play` starts the loop and plays against it until the end; `log` is its step log.

    `student` is the `model:` section; `watch` may put something around the policy.
    """

    def __init__(
        self,
        path,
        games,
        *,
        student=None,
        policy=None,
        watch=lambda policy: policy,
        train=True,
        num_rounds=2,
        num_envs=None,
        preferences=False,
        seed=42,
        expert="explorer",
        train_every=1,
        state_interval_s=0.0,
        reflect=True,
        trainer=None,
        **options,
    ) -> None:
        set_seed(seed)
        self.games = list(games)
        self.directory = RunDirectory(path)
        timeout_s = options.pop("session_timeout_s", 60)
        self.server = DaggerHTTPServer("127.0.0.1", 0, session_timeout_s=timeout_s, status=lambda: self.loop.status())
        self.student, self.preferences = student or {}, preferences
        self.model, vis_processor = load_student(self.student, torch.device("cpu"))
        if preferences:
            self.model.set_reference()
        self.rounds = Rounds(
            self.directory,
            num_rounds=num_rounds,
            num_envs=num_envs or len(self.games),
            reflect=partial(update_memories, reflector=RuleReflector(), skip_unreadable=True) if reflect else None,
        )
        self.training = trainer(self) if trainer else None
        if train and not trainer:
            learner = make_learner(self.model, vis_processor, self.directory.buffer, preferences=preferences, seed=seed)
            self.training = Training(
                learner, self.directory, train_every=train_every, state_interval_s=state_interval_s
            )
        beta = options.pop("beta", [0.0])
        self.loop = DaggerLoop(
            front=Front(
                self.server,
                self.rounds,
                make_expert=lambda: make_expert(expert),
                client_expert=options.pop("client_expert", ""),
                max_batch=options.pop("max_batch", 32),
                beta=beta if train else [0.0],
                max_steps=options.pop("max_steps", MAX_STEPS),
                repeat_limit=options.pop("repeat_limit", 0),
            ),
            rounds=self.rounds,
            policy=watch(policy or make_policy(PolicyConfig(num_beams=1, max_length=8), self.model, vis_processor, 32)),
            ask_policy=preferences,
            seed=seed,
            write_prompt=prompt_writer(self.model),
            training=self.training,
            **options,
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def log(self) -> str:
        return (self.directory.path / "running_nb01.log").read_text()

    @property
    def journal(self):
        return self.directory.episodes()

    def start(self) -> Run:
        self.server.start()
        self._thread.start()
        return self

    def play(self, **options):
        """Start, play to the end; returns the client's summary (None when the loop ended with an error)."""
        if not self._thread.is_alive():
            self.start()
        try:
            return play(
                self.url,
                options.pop("factory", lambda: make_environment("native")),
                self.games,
                report=options.pop("report", None) or ClientReport(io.StringIO()),
                patience_s=0.5,
                **options,
            )
        except OSError:
            if self.error is None:
                raise
            return None
        finally:
            self.wait()

    def wait(self) -> Run:
        self._thread.join(120)
        assert not self._thread.is_alive(), "the loop does not end"
        return self

    def _serve(self) -> None:
        try:
            self.loop.serve()
        except BaseException as error:
            self.error = error
        finally:
            self.server.stop()
            self.directory.close()


@pytest.fixture(scope="session")
def students(tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """`students(name)`: the `model:` section of the "own" tiny model, or of a tiny one as the "hub" has them."""
    made: dict[str, dict[str, Any]] = {"own": {}}

    def section(name: str) -> dict[str, Any]:
        if name not in made:
            pytest.importorskip("peft")
            folder = tiny.make("qwen2_5_vl", tmp_path_factory.mktemp("hub") / "vlm")
            made[name] = {"arch": "hf_vlm", "path": str(folder), "lora_rank": 4, "images": 2}
        return made[name]

    return section


@pytest.fixture
def make_run(tmp_path, games):
    """`make_run(name, …)`: a `Run` in its own folder; the same name again is a resume."""

    def make(name: str = "run", **options) -> Run:
        return Run(tmp_path / name, options.pop("games", games[:2]), **options)

    return make


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, games):
    """A `Run` of two rounds, two games each, that nobody has solved; it has ended. For reading only."""
    run = Run(tmp_path_factory.mktemp("finished") / "run", games[:2], policy=Scripted("look", "inventory"), max_steps=3)
    run.play()
    assert run.error is None and run.directory.done
    return run


@pytest.fixture
def scripted():
    """The class `Scripted`."""
    return Scripted


@pytest.fixture
def watched():
    """The class `Watched`."""
    return Watched


@pytest.fixture
def learner_maker():
    """`make_learner`."""
    return make_learner
