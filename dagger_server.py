"""Online training: serves actions to ALFWorld clients over HTTP and trains the model on the expert's labels.

    python dagger_server.py --cfg-path configs/dagger/demo_bc.yaml --options server.port=7860
    python dagger_server.py --resume output/demo/bc/with_bc_dpo-False-tc-False-20260101-120000

Then start `alfworld_client.py` with the same port, here or on another machine. A run writes the directory that
docs/run_directory.md describes; `--resume` continues one that was stopped or killed.
"""

from __future__ import annotations

if __name__ == "__main__":
    import lavis  # noqa: F401  (before all else: it says in one line what this interpreter lacks)

import argparse
import contextlib
import json
import os
import shlex
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

from lavis.common.errors import ConfigError
from lavis.common.program import parse_args, read_first, run_program
from xrl_alignment.builders.named import check_named
from xrl_alignment.settings.loading import load_config, to_yaml
from xrl_alignment.settings.resume import refuse_changes, saved_settings
from xrl_alignment.settings.schema import DaggerConfig
from xrl_alignment.settings.token import read_token
from xrl_alignment.wire.expected import ExpectedGames
from xrl_alignment.wire.http_server import DaggerHTTPServer, PageServer

EXAMPLE = "configs/dagger/demo_bc.yaml"


def read_command_line() -> tuple[argparse.Namespace, DaggerConfig]:
    """The arguments, and the settings that they name; an EmacError if a run could not use these."""
    arguments = parse_args(__doc__, add_arguments, cfg_required=False)
    config = read_config(arguments)
    check_named(config)
    # Opened and closed again: a port that is taken, or a host without a token, is told before the imports below.
    PageServer(config.server.host, config.server.port, read_token(config.server)).stop()
    return arguments, config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments beside `--cfg-path` and `--options`."""
    parser.add_argument("--resume", type=Path, metavar="RUN_DIR", help="continue this run, with its own config.yaml")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="write here instead of a new folder")


def read_config(arguments: argparse.Namespace) -> DaggerConfig:
    """The settings of a new run, or those that a resumed run was started with; these two must agree."""
    if arguments.resume:
        if arguments.run_dir:
            raise ConfigError("--resume continues in its own folder: leave --run-dir out")
        saved = saved_settings(arguments.resume)
        wanted = saved_settings(arguments.resume, arguments.options)
        if arguments.cfg_path:
            wanted = load_config(DaggerConfig, arguments.cfg_path, arguments.options)
        refuse_changes(saved, wanted, arguments.resume)
        return wanted
    if not arguments.cfg_path:
        raise ConfigError(
            f"give --cfg-path FILE for a new run, or --resume RUN_DIR. For example --cfg-path {EXAMPLE}; its client, "
            f"in another terminal: python alfworld_client.py --cfg-path {EXAMPLE}"
        )
    if arguments.run_dir and (arguments.run_dir / "config.yaml").exists():
        raise ConfigError(
            f"{arguments.run_dir} holds a run already: continue it with --resume, or choose another folder"
        )
    return load_config(DaggerConfig, arguments.cfg_path, arguments.options)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes in the settings are answered at once.
    COMMAND_LINE = read_first(read_command_line)

from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import pick_device, set_seed, set_threads
from lavis.common.files import make_folder, writable, write_text
from lavis.models import StudentModel
from lavis.runners.parallel import check_shardable
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.policies.base import Policy
from xrl_alignment.agents.reflexion.base import update_memories
from xrl_alignment.builders.environments import client_arguments
from xrl_alignment.builders.student import ImageProcessor, check_served, load_student, make_policy, prompt_writer
from xrl_alignment.builders.teacher import TeacherParts, build_teacher, expert_options
from xrl_alignment.common.choices import CLIENT_EXPERTS, LABELS_FROM_CLIENT
from xrl_alignment.common.network import page_url
from xrl_alignment.common.progress import RoundProgress
from xrl_alignment.dagger.building import build_training, check_learner_devices, expected_games
from xrl_alignment.dagger.decoupled.process import LearnerProcess
from xrl_alignment.dagger.decoupled.trainer import DecoupledTraining
from xrl_alignment.dagger.front import Front
from xrl_alignment.dagger.loop import DaggerLoop
from xrl_alignment.dagger.rounds import LabelGuard, Rounds
from xrl_alignment.dagger.training import Trainer
from xrl_alignment.lab.ending import ending, trained_unplayed
from xrl_alignment.runs.directory import RunDirectory, new_run_directory
from xrl_alignment.show.dashboard.pages import Dashboard


def main(command_line: tuple[argparse.Namespace, DaggerConfig] | None = None) -> None:
    """Parse, unless that is done; build, run."""
    arguments, config = command_line or read_command_line()
    bound_kernel_cache()
    keep_freed_memory()
    run = config.run
    set_threads(run.num_threads)
    set_seed(run.seed)
    if not arguments.resume:
        name, folder = ("--run-dir", arguments.run_dir) if arguments.run_dir else ("run.output_dir", run.output_dir)
        writable(name, Path(folder), folder=True)
    expected = expected_games(config)
    # It keeps its port from here on, while the model is loaded. It answers nobody before `start`, and by then `loop`,
    # which its status asks, is built.
    server = DaggerHTTPServer(
        config.server.host,
        config.server.port,
        read_token(config.server),
        session_timeout_s=config.server.session_timeout_s,
        status=lambda: loop.status(),
    )
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(server.stop)
        # A missing key ends here. An evaluation asks no expert: a key is needed only if a model is to reflect.
        by_rule = config.reflexion.reflector == "rule" or not config.reflexion.enabled
        unasked = by_rule and not run.run_training
        asked = replace(config.expert, name="explorer") if unasked else config.expert
        teacher = build_teacher(asked, config.reflexion, thinking=run.enable_tc)
        cleanup.callback(teacher.close)
        device = pick_device(run.device)
        check_learner_devices(run)
        model, vis_processor = load_student(config.model, device)
        check_student(config, model)
        policy = make_policy(config.policy, model, vis_processor, run.max_batch)
        cleanup.callback(policy.close)
        directory = open_directory(arguments, config)
        cleanup.callback(directory.close)
        if teacher.account:
            # A resumed run goes on counting: what the calls before it have cost stands in this file.
            teacher.account.keep(directory.expert_calls)
        progress = cleanup.enter_context(RoundProgress())
        training = build_trainer(config, directory, model, vis_processor, progress, cleanup)
        loop = build_loop(config, server, directory, model, policy, training, teacher, progress, expected)
        if config.server.dashboard:
            server.mount(Dashboard(directory.path, status=server.status, in_progress=loop.front.in_progress))
        # From here on clients are answered; what follows tells how to start one.
        server.start()
        if arguments.resume:
            print(found(directory, config), flush=True)
        announce(directory, server)
        if config.server.dashboard:
            print(f"Dashboard: {page_url(config.server.host, server.port)}", flush=True)
        expected.client_command = client_command(config, server.port)
        for line in advice(config, directory, expected):
            print(line, flush=True)
        try:
            loop.serve()
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"continue with --resume {directory.path}") from stop
        except FileNotFoundError as error:
            # A file of the run, as the error says: whatever else is not found is a bug.
            if directory.path not in Path(os.fsdecode(error.filename or "")).parents:
                raise
            raise directory.gone() from error
        if directory.done:
            print("\n".join(ending(directory.path)), flush=True)


def open_directory(arguments: argparse.Namespace, config: DaggerConfig) -> RunDirectory:
    """The run's directory, with its settings in it: only now, when nothing that was given can be wrong any more."""
    run = config.run
    path = arguments.resume or arguments.run_dir
    path = path or new_run_directory(run.output_dir, enable_dpo=run.enable_dpo, enable_tc=run.enable_tc)
    make_folder(path)
    directory = RunDirectory(path)
    if not arguments.resume:
        write_text(directory.path / "config.yaml", to_yaml(config))
    return directory


def client_command(config: DaggerConfig, port: int) -> str:
    """The command line of the client that plays what `config` asks for."""
    host = config.server.host
    # "0.0.0.0" and "::" mean all addresses of this machine: a client elsewhere needs a name of it.
    default = host in ("127.0.0.1", "localhost")
    there = [] if default else ["--host", socket.gethostname() if host in ("0.0.0.0", "::") else host]
    # Never the token itself: the line is printed, and every user of a machine can read command lines.
    token = ["--token", "TOKEN"] if read_token(config.server) else []
    return shlex.join(["python", "alfworld_client.py", *there, "--port", str(port), *token, *client_arguments(config)])


def found(directory: RunDirectory, config: DaggerConfig) -> str:
    """What a resume finds in the run directory."""
    if directory.done:
        return f"{directory.path} has ended (DONE): nothing is left to play"
    journal, (memories_round, _) = directory.episodes(), directory.memories()
    round = max([memories_round, *(record.round for record in journal)])
    solved = len({record.game for record in journal if record.solved})
    state = "a saved trainer" if directory.trainer.exists() else "no saved trainer"
    return (
        f"resuming {directory.path}: {len(journal)} episodes, round {min(round + 1, config.run.num_rounds)} of "
        f"{config.run.num_rounds}, {solved} of {config.run.num_envs} games solved by the policy, {state}"
    )


def advice(config: DaggerConfig, directory: RunDirectory, expected: ExpectedGames) -> list[str]:
    """What is printed while the server waits: warnings, and the client that fits."""
    run, lines = config.run, []
    most = run.num_rounds * run.num_envs
    if run.run_training and run.train_every > most:
        lines.append(
            f"warning: run.train_every={run.train_every}, but the run has at most {most} episodes: "
            "the model is updated once, at the end"
        )
    if not_playing := trained_unplayed(config):
        lines.append(f"warning: {not_playing}")
    if not directory.done:
        lines.append(f"Waiting for a client: {expected.client_command}")
    return lines


def check_student(config: DaggerConfig, model: StudentModel) -> None:
    """ConfigError if the model cannot be trained as the settings ask."""
    run = config.run
    if run.run_training and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("every part of the model is frozen: set one of model.freeze_* to false, or run.run_training")
    if run.run_training and run.enable_dpo and not model.has_reference:
        raise ConfigError("run.enable_dpo needs model.ref_pretrained: the checkpoint of the first (BC) phase")
    if run.run_training and run.learner_fsdp:
        check_shardable(model, "run.learner_fsdp")
    if run.run_training and config.policy.name == "vllm":
        check_served(model, config.policy.adapters)


def announce(directory: RunDirectory, server: DaggerHTTPServer) -> None:
    """Say where the server listens, on the screen and in `state/server.json`."""
    print(f"Server running on port {server.port}, run directory {directory.path}", flush=True)
    content = json.dumps({"port": server.port, "pid": os.getpid()})
    write_text(directory.state / "server.json", content)


def build_trainer(
    config: DaggerConfig,
    directory: RunDirectory,
    model: StudentModel,
    vis_processor: ImageProcessor,
    progress: RoundProgress,
    cleanup: contextlib.ExitStack,
) -> Trainer | None:
    """Who trains `model`, None if nobody does; `cleanup` stops the learner's process."""
    run = config.run
    if not run.run_training:
        return None
    if run.learner == "inline":
        return build_training(config, directory, model, vis_processor)
    # With these settings and not those of config.yaml: a resume may have changed some.
    write_text(directory.learner_settings, to_yaml(config))
    process = LearnerProcess(directory.path)
    cleanup.callback(process.stop)
    return DecoupledTraining(
        model,
        directory,
        process,
        updates=run.train_iters_per_epoch,
        train_every=run.train_every,
        max_staleness=run.max_staleness,
        say=progress.say,
    )


def build_loop(
    config: DaggerConfig,
    server: DaggerHTTPServer,
    directory: RunDirectory,
    model: StudentModel,
    policy: Policy,
    training: Trainer | None,
    teacher: TeacherParts,
    progress: RoundProgress,
    expected: ExpectedGames,
) -> DaggerLoop:
    """Put the parts together."""
    run = config.run
    expert = config.expert.name if training else "client"  # an evaluation asks none: this one does nothing
    # A trace that the reflector cannot read gives no memory: a client may have sent any text.
    reflect, told = None, config.environment.tell_objects
    if teacher.reflector:
        reflect = partial(update_memories, reflector=teacher.reflector, skip_unreadable=True, tell_objects=told)
    rounds = Rounds(
        directory,
        num_rounds=run.num_rounds,
        num_envs=run.num_envs,
        reflect=reflect,
        account=teacher.account,
        say=progress.say,
    )
    options = expert_options(expert, teacher, tell_objects=told, notes=config.expert.notes) if training else {}
    front = Front(
        server,
        rounds,
        make_expert=lambda: make_expert("client" if expert in CLIENT_EXPERTS else expert, **options),
        client_expert=expert if training and expert in LABELS_FROM_CLIENT else "",
        beta=run.beta if training else [0.0],  # an evaluation shows the policy alone
        max_steps=run.max_steps,
        repeat_limit=run.repeat_limit,
        labels_required=bool(training) and expert in LABELS_FROM_CLIENT,
        expected=expected,
        say=progress.say,
        max_batch=run.max_batch,
        window_s=run.window_ms / 1000,
    )
    return DaggerLoop(
        front=front,
        rounds=rounds,
        policy=policy,
        training=training,
        label_guard=LabelGuard(config.expert.max_missing_labels),
        # DPO's rejected action is the policy's own; without that nobody can say either where the two differ.
        ask_policy=run.run_training and (run.enable_dpo or run.learn_from == "disagreements"),
        enable_tc=run.enable_tc,
        seed=run.seed,
        write_prompt=prompt_writer(model, tell_objects=config.environment.tell_objects),
        on_progress=progress.update,
    )


if __name__ == "__main__":
    run_program(lambda: main(COMMAND_LINE))
