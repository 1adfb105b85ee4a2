"""One DAgger round with a vision-language model of the hub: play, ask the expert, learn, in one file.

    python examples/hub_vlm.py HuggingFaceTB/SmolVLM-256M-Instruct
    python -m lavis.models.hf_vlm.tiny /tmp/vlm && python examples/hub_vlm.py /tmp/vlm    # no download, a random model

A real run takes `dagger_server.py --options model.arch=hf_vlm model.path=…` (docs/models.md): it plays many games at
once, stores what it sees, resumes, and continues with DPO.
"""

from __future__ import annotations

import argparse
import random
from tempfile import TemporaryDirectory

import torch

from alfworld_native import choose_games, make_environment
from alfworld_native.language.commands import normalise
from lavis.common.devices import pick_device
from lavis.common.program import run_program
from lavis.models.student import Question
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.builders.student import load_student, prompt_writer

GAMES, STEPS, BATCH, BETA = 3, 6, 4, 0.5  # BETA: how often the expert's action is executed


def main() -> None:
    """Play, ask, learn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", help="a hub id, or the folder of a model")
    settings = {"arch": "hf_vlm", "path": parser.parse_args().path, "lora_rank": 8}
    student, read_frame = load_student(settings, pick_device("auto"))
    write_prompt, expert, environment = prompt_writer(student), make_expert("explorer"), make_environment("household")
    batch: dict[str, list] = {"image": [], "text_input": [], "text_output": []}
    with TemporaryDirectory() as folder:
        for game in choose_games("household", "household_train", data=folder, num_train=GAMES, num_heldout=1):
            now = start = environment.reset(game)
            expert.begin(start.text, task_type=game.task_type)
            steps: list[tuple[str, str]] = []
            while not now.done and len(steps) < STEPS:
                question = Question(write_prompt(start.text, (), steps), (read_frame(environment.render()),))
                own = student.act([question], normalise=normalise, num_beams=1, max_length=16)[0]
                label = expert.act().action or own
                for values, value in zip(batch.values(), (question.images[0], question.prompt, label), strict=True):
                    values.append(value)
                action = label if random.random() < BETA else own
                now = environment.step(action)
                expert.observe(action, now.text)
                steps.append((action, now.text))
    optimizer = torch.optim.AdamW([weight for weight in student.parameters() if weight.requires_grad], lr=1e-3)
    for start_row in range(0, len(batch["image"]), BATCH):
        rows = {key: values[start_row : start_row + BATCH] for key, values in batch.items()}
        loss = student.train().losses(rows, "bc").loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{start_row + len(rows['image'])} states, loss {loss.item():.3f}")


if __name__ == "__main__":
    run_program(main)
