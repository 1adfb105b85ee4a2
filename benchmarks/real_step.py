"""One training step of SmolLM2-135M with LoRA on whole episodes: how near is it to the machine's matrix products?

    python -m lavis.models.smollm DEST
    python benchmarks/real_step.py --model DEST [--games 6] [--json real_step.json]

The explorer plays official training games (`ALFWORLD_DATA`); all sides learn the same actions of these games, in
bfloat16 (float32 on a CPU that only emulates it: `half_type`), one thread:

    ours        a row for each episode; logits at the actions' tokens alone (`make_student --actions-only`)
    plain rows  the same rows through peft and Transformers with `labels`: logits at every position, masked pads
    plain       the usual loop: a row for each action, prompt and answer, through peft and Transformers

FLOPs are those of the matrices (2 for each weight and token; forward, and the gradient of the layer's input; adapters
and attention's scores are left out) and of the output layer where it is computed by `ours`: an efficiency is a lower
bound. The rate that it is measured against is that of products of the same shapes and number format in the same run.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _shapes
import torch
from _bench import Result, run
from torch import Tensor

from alfworld_native.games import find_games
from lavis.common.devices import autocast, half_type
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.text import IGNORE
from xrl_alignment.builders.student import ImageProcessor, load_student
from xrl_alignment.lab.pretraining.labelled import Pools, draw_jobs, played
from xrl_alignment.lab.pretraining.rows import Row, RowWriter, batches, loss_of
from xrl_alignment.lab.pretraining.student import BATCH_TOKENS
from xrl_alignment.play.rollouts.sequential import SequentialExecutor

TOLERANCE = 0.03  # of the mean loss: bfloat16 products in another order
Batch = list[Row]


def episodes(model: Blip2Emac, games: int) -> Batch:
    """The rows of `games` official games, the largest batch of them: about 2,500 tokens."""
    pools = Pools(number=games, mixture={"standard": 1.0}, official=find_games("train"), official_share=1.0)
    with tempfile.TemporaryDirectory() as folder, SequentialExecutor(games) as executor:
        records = [each.value for each in executor.run(played, draw_jobs(Path(folder), pools, "0"), answer=None)]
    draw, writer = random.Random(0), RowWriter(model, actions_only=True)
    rows = [row for record in records for row in writer.rows(record, draw)]
    return max(batches(rows, draw, BATCH_TOKENS), key=lambda batch: sum(len(row.ids) for row in batch))


def apart(batch: Batch) -> Batch:
    """A row for each action: all before it, and the action."""
    rows = []
    for row in batch:
        learned = [weight == 1 and target != IGNORE for weight, target in zip(row.weights, row.targets, strict=True)]
        ends = [i + 1 for i, yes in enumerate(learned) if yes and not (i + 1 < len(learned) and learned[i + 1])]
        for start, end in zip([0, *ends], ends, strict=False):
            targets = [IGNORE] * start + [t if yes else IGNORE for t, yes in zip(row.targets, learned, strict=True)][
                start:end
            ]
            rows.append(Row(row.kind, row.ids[:end], targets, [1.0] * end, row.frame))
    return rows


def plain_loss(model: Blip2Emac, vis_processor: ImageProcessor, batch: Batch) -> Tensor:
    """Mean cross-entropy of the actions' tokens, by peft and Transformers."""
    llm = model.llm_model
    longest = max(len(row.ids) for row in batch)
    ids, labels = torch.zeros(len(batch), longest, dtype=torch.long), torch.full((len(batch), longest), IGNORE)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(batch):
        ids[i, : len(row.ids)], mask[i, : len(row.ids)] = torch.tensor(row.ids), 1
        kept = [t if w == 1 else IGNORE for t, w in zip(row.targets, row.weights, strict=True)]
        labels[i, 1 : len(kept)] = torch.tensor(kept[:-1])  # Transformers shifts labels; ours are shifted already
    with autocast(torch.device("cpu")):
        with torch.no_grad():
            images = torch.stack([vis_processor(row.frame) for row in batch])
            queries = model.vision.encode_queries(images, [""] * len(batch))
        before = model.llm_proj(queries)
        embeds = torch.cat([before, llm.get_input_embeddings()(ids)], dim=1)
        front = before.shape[1]
        mask = torch.cat([mask.new_ones(len(batch), front), mask], dim=1)
        labels = torch.cat([labels.new_full((len(batch), front), IGNORE), labels], dim=1)
        return llm(inputs_embeds=embeds, attention_mask=mask, labels=labels, use_cache=False).loss


def side(name: str, folder: str, games: int, repeats: int) -> dict[str, Any]:
    """What a step of one side costs, and what it does."""
    torch.set_num_threads(1)
    model, vis_processor = load_student({"model_type": "smollm2_135m", "llm_model": folder}, torch.device("cpu"))
    assert isinstance(model, Blip2Emac)
    model.train()
    batch = episodes(model, games)
    actions = apart(batch)
    if name != "ours":
        model.llm_model.set_attn_implementation("sdpa")

    def learned(rows: Batch) -> Tensor:
        return loss_of(model, vis_processor, rows)[0] if name == "ours" else plain_loss(model, vis_processor, rows)

    # A row for each action repeats the game: a part of the rows is measured, the time is that of as many actions.
    measured = actions[:: max(1, len(actions) // len(batch))][: len(batch)] if name == "plain" else batch
    cost = _shapes.cost_of(model, lambda: learned(measured), repeats)
    config = model.llm_model.config
    head = config.hidden_size // config.num_attention_heads
    shapes = {  # (out, in): how many in a layer
        (config.hidden_size, config.hidden_size): 2,
        (config.num_key_value_heads * head, config.hidden_size): 2,
        (config.intermediate_size, config.hidden_size): 2,
        (config.hidden_size, config.intermediate_size): 1,
    }
    tokens = sum(len(row.ids) + model.query_tokens.shape[1] for row in measured)
    targets = sum(t != IGNORE and w > 0 for row in measured for t, w in zip(row.targets, row.weights, strict=True))
    weights = sum(out * inner * count for (out, inner), count in shapes.items()) * config.num_hidden_layers
    flops = 4 * weights * tokens + 4 * config.hidden_size * config.vocab_size * targets
    return {
        **asdict(cost), "tokens": tokens, "actions": len(measured) if name == "plain" else len(actions),
        "flops": flops, "rate": matrix_rate(shapes, tokens) if name == "ours" else 0.0,
    }  # fmt: skip


def matrix_rate(shapes: dict[tuple[int, int], int], tokens: int) -> float:
    """FLOPs in a second of products `(tokens, in) x (in, out)`, each shape as often as it occurs."""
    flops, seconds, dtype = 0.0, 0.0, half_type(torch.device("cpu"))
    for (out, inner), count in shapes.items():
        x, weight = torch.randn(tokens, inner).to(dtype), torch.randn(out, inner).to(dtype)
        times = []
        for _ in range(5):
            start = time.process_time()
            torch.nn.functional.linear(x, weight)
            times.append(time.process_time() - start)
        flops += 2 * tokens * inner * out * count
        seconds += min(times) * count
    return flops / seconds


def measure(model: Path, games: int, repeats: int) -> Result:
    """Each side in a process of its own."""
    found = {name: _shapes.measured(side, name, str(model), games, repeats) for name in ("ours", "plain rows", "plain")}
    ours, same = found["ours"], found["plain rows"]
    if abs(ours["loss"] - same["loss"]) > TOLERANCE * ours["loss"]:
        raise ValueError(f"the losses differ: {ours['loss']:.4f} and {same['loss']:.4f}")
    rows = [
        {
            "side": name,
            "tokens": one["tokens"],
            "actions": one["actions"],
            "s": one["seconds"],
            "ms an action": 1e3 * one["seconds"] / one["actions"],
            "tokens/s": one["tokens"] / one["seconds"],
            "peak MiB": one["peak"] / 2**20,
            "loss": one["loss"],
        }
        for name, one in found.items()
    ]
    each = {name: one["seconds"] / one["actions"] for name, one in found.items()}
    ratios = {
        "share of the matrix rate": ours["flops"] / ours["seconds"] / ours["rate"],
        "matrix rate, GFLOP/s": ours["rate"] / 1e9,
        "speedup against plain": each["plain"] / each["ours"],
        "speedup against plain rows": each["plain rows"] / each["ours"],
        "peak GiB": ours["peak"] / 2**30,
    }
    return Result(rows, ratios, {"share of the matrix rate": 0.4, "speedup against plain": 2.0})


def options(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument(
        "--model", required=True, type=Path, metavar="FOLDER", help="of `python -m lavis.models.smollm`"
    )
    parser.add_argument("--games", type=int, default=6, help="official training games (6)")
    parser.add_argument("--repeats", type=int, default=2, help="steps measured, the fastest counts (2)")


if __name__ == "__main__":
    run("A step of SmolLM2-135M with LoRA", measure, options)
