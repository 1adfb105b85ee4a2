"""Runs the project's programs as steps that are done once: a killed `make results` continues where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from lavis.common.config import as_option
from lavis.common.errors import EmacError
from lavis.common.files import write_json
from lavis.common.paths import REPO_ROOT
from lavis.common.program import LIFELINE, lifeline
from xrl_alignment.lab.pipeline import hand_off, tail

CONFIGS = REPO_ROOT / "configs" / "results"
NOTE_S = 10.0  # between two notes of how long a step has been running
_LOOK_S = 0.5  # between two looks whether a step's program has ended, or is to be stopped


class StepError(EmacError, RuntimeError):
    """A program that an experiment ran ended with an error; the text holds the end of its log."""


class Lab:
    """Data, students, rounds and evaluations below `output`, each made by one program, at most `jobs` at a time.

    A step that is done is not run again. One that was made by another command is an error: the folder holds the
    figures of one set of sizes. Each program computes on one thread.
    """

    def __init__(self, output: Path, *, jobs: int = 1, say: Callable[[str], None] = print) -> None:
        self.output = output.absolute()
        self.jobs = jobs
        self.say = say
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)  # by step: chains may share one
        self._running = threading.Semaphore(jobs)
        self._stopped = threading.Event()
        self._used: dict[str, float] = {}

    def all(self, chains: Iterable[Callable[[], Any]]) -> list[Any]:
        """The results of `chains`, each a sequence of steps, in their order; the first error ends the others."""
        # More chains than jobs: while one reads its results, another may compute; `_running` limits the programs.
        with ThreadPoolExecutor(max_workers=2 * self.jobs) as pool:
            futures = [pool.submit(chain) for chain in chains]
            try:
                # Whichever fails first: read in their order, an error would be seen only after all chains before it.
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                if failed := [future for future in ended if future.exception()]:
                    failed[0].result()
                return [future.result() for future in futures]
            except BaseException:
                self._stopped.set()
                for future in futures:
                    future.cancel()
                raise

    # ---- the programs -----------------------------------------------------------------------------------------------

    def collect(self, name: str, *arguments: str) -> Path:
        """The folder of a collection (`python -m xrl_alignment.collect`)."""
        folder = self.output / "data" / name
        self.step(f"data/{name}", ["-m", "xrl_alignment.collect", *arguments, "--out", str(folder)])
        return folder

    def generate(self, name: str, *arguments: str) -> Path:
        """The folder of generated games (`python -m alfworld_native.household`)."""
        folder = self.output / "data" / name
        self.step(f"data/{name}", ["-m", "alfworld_native.household", *arguments, "--out", str(folder)])
        return folder

    def read(self, name: str, *arguments: str) -> Path:
        """The language model that went on reading logs of games (`python -m xrl_alignment.make_backbone`)."""
        weights = self.output / "students" / f"{name}.safetensors"
        self.step(f"students/{name}", ["-m", "xrl_alignment.make_backbone", *arguments, "--out", str(weights)])
        return weights

    def train(
        self,
        name: str,
        storages: Sequence[Path],
        start: Path | None = None,
        language_model: Path | None = None,
        model: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Path:
        """The checkpoint of behavioural cloning on `storages` (`train.py`, student.yaml).

        It begins with the checkpoint `start`; without one, with the demo's frozen parts and `language_model` (else the
        demo's). `model` holds further keys of the section `model`, `options` those of the section `run`; with
        `objective` dpo `start` is the reference, too.
        """
        # Settings over those of student.yaml; the last group is this method's own and cannot be overridden.
        listed = json.dumps([*map(str, storages)], ensure_ascii=False, separators=(",", ":"))
        from_start = {"model.pretrained": start, "model.load_pretrained": True} if start else {}
        if options.get("objective") == "dpo":
            from_start["model.ref_pretrained"] = start
        given = (
            from_start
            | ({"model.llm_weights": language_model} if language_model else {})
            | {f"model.{key}": value for key, value in (model or {}).items()}
            | {f"run.{key}": value for key, value in options.items()}
            | {
                "datasets.alfworld_cap.build_info.annotations.train.storage": listed,
                "run.output_dir": self.output / "students",
                "run.job_id": name,
                "run.resume_ckpt_path": "latest",
            }
        )
        self.step(f"students/{name}", ["train.py", "--cfg-path", str(CONFIGS / "student.yaml"), *as_options(given)])
        # One checkpoint for each step of the learning rate, by its number: as text 10 would come before 9.
        found = (self.output / "students" / name).glob("checkpoint_[0-9]*.pth")
        *older, newest = sorted(found, key=lambda checkpoint: int(checkpoint.stem.rpartition("_")[2]))
        for path in older:
            path.unlink(missing_ok=True)
        return newest

    def label(self, name: str, start: Path, options: Mapping[str, Any]) -> Path:
        """The folder of transitions of games that `start` played and the expert labelled; nothing is trained."""
        return self._round(name, start, dict(options) | {"run.train_iters_per_epoch": 0}) / "state" / "buffer"

    def round(self, name: str, start: Path, options: Mapping[str, Any]) -> Path:
        """The checkpoint after a DAgger run that begins with `start` (pipeline, round.yaml)."""
        return hand_off(self._round(name, start, options))

    def _round(self, name: str, start: Path, options: Mapping[str, Any]) -> Path:
        folder = self.output / "rounds" / name
        given = {"model.pretrained": start, "model.load_pretrained": True, "run.output_dir": folder} | dict(options)
        if given.get("run.enable_dpo"):
            given["model.ref_pretrained"] = start
        command = ["-m", "xrl_alignment.pipeline", "--cfg-path", str(CONFIGS / "round.yaml")]

        runs, done = "with_bc_dpo-*", "DONE"

        def resume() -> list[str]:
            """`--resume` and the run that was killed, if one was."""
            # One that was killed before it had its settings cannot go on: the step begins a new one.
            killed = [run for run in folder.glob(runs) if (run / "config.yaml").is_file() and not (run / done).exists()]
            return ["--resume", str(max(killed))] if killed else []

        self.step(f"rounds/{name}", [*command, *as_options(given)], resume=resume)
        # Names end with the time of the start, so the largest is the newest.
        return max(run for run in folder.glob(runs) if (run / done).exists())

    def evaluate(self, name: str, weights: Path | None, options: Mapping[str, Any], trials: int = 1) -> dict[str, Any]:
        """What `evaluate.py` wrote about `weights`, or `student_official` (evaluation.yaml)."""
        output = self.output / "evaluations" / f"{name}.json"
        player = {"model.pretrained": weights} if weights else {"model.model_type": "student_official"}
        given = player | {"run.num_trials": trials, "run.output": output} | dict(options)
        command = ["evaluate.py", "--cfg-path", str(CONFIGS / "evaluation.yaml"), *as_options(given)]
        self.step(f"evaluations/{name}", command)
        return json.loads(output.read_text(encoding="utf-8"))

    # ---- steps ------------------------------------------------------------------------------------------------------

    def step(self, name: str, command: Sequence[str], *, resume: Callable[[], Sequence[str]] = tuple) -> None:
        """Run `command` of this interpreter, once; its output goes to `logs/<name>.log`.

        `resume` gives further arguments if a killed run can be continued. Raises StepError.
        """
        done = self.output / "steps" / f"{name}.json"
        # Two chains may need one step: the second waits, and finds it done.
        with self._locks[name]:
            # The command as another machine would write it, without the quotes of this one's paths.
            shown = " ".join(command).replace('"', "").replace(str(self.output), "OUTPUT")
            shown = shown.replace(f"{REPO_ROOT}{os.sep}", "")
            if done.is_file():
                made = json.loads(done.read_text(encoding="utf-8"))
                if made["command"] != shown:
                    raise StepError(
                        f"{done} was made by another command ({made['command']}): use another results.output"
                    )
                # The seconds of the run that made it: a page says what its figures have cost, whenever it is written.
                self._used[name] = made["seconds"]
                return
            with self._running:
                # Another chain has failed while this one waited for its turn.
                if self._stopped.is_set():
                    raise StepError(f"{name} was not begun")
                # A start that was killed has cost time, too: its seconds stand in a file until the step is done.
                spent = done.with_suffix(".spent")
                done.parent.mkdir(parents=True, exist_ok=True)
                before = float(spent.read_text(encoding="utf-8")) if spent.is_file() else 0.0
                seconds = before + self._run(name, [*command, *resume()], lambda now: write_json(spent, before + now))
            write_json(done, {"command": shown, "seconds": round(seconds, 1)})
            spent.unlink(missing_ok=True)
            self._used[name] = round(seconds, 1)

    def seconds(self) -> dict[str, float]:
        """Wall time of every step that this lab was asked for, by name; of a step that was killed, that of all starts.

        Of a killed start up to `NOTE_S` seconds are lost.
        """
        return dict(sorted(self._used.items()))

    def _run(self, name: str, command: Sequence[str], note: Callable[[float], None]) -> float:
        """Run a step's program; returns its seconds, which `note` gets from time to time while it runs."""
        log = self.output / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.say(f"{name} …")
        began = time.monotonic()
        # Appended: what a killed run of this step has said stays in front.
        with (
            open(log, "ab") as file,
            lifeline() as line,  # a lab that is killed leaves no program behind
            subprocess.Popen(
                [sys.executable, *command], cwd=REPO_ROOT, stdout=file, stderr=subprocess.STDOUT,
                env={**os.environ, LIFELINE: str(line)}, pass_fds=[line],
            ) as process,
        ):  # fmt: skip
            try:
                code, noted = None, began
                while code is None:
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(_LOOK_S)
                    # A signal raises in the main thread alone, which waits for this one.
                    if code is None and self._stopped.is_set():
                        raise StepError(f"{name} was stopped")
                    if code is not None or time.monotonic() - noted > NOTE_S:
                        noted = time.monotonic()
                        note(noted - began)
            except BaseException:
                process.kill()  # as `subprocess.run` does
                raise
        seconds = time.monotonic() - began
        if code:
            raise StepError(f"{name} ended with code {code}; the end of {log}:\n{tail(log)}")
        self.say(f"{name}: {seconds:.0f} s")
        return seconds


def as_options(settings: Mapping[str, Any]) -> list[str]:
    """`--options` for `settings`; paths are in quotes, without which yaml cuts `/runs #2` to `/runs`."""
    pairs = settings.items()
    return ["--options", *(as_option(key, it) if isinstance(it, Path) else f"{key}={it}" for key, it in pairs)]
