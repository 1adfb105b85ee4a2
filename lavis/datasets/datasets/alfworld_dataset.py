"""ALFWorld transitions: image and prompt in, the expert's command out, for DPO also a rejected command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from lavis.datasets.datasets.record_dataset import RecordDataset
from lavis.datasets.records import Record

_TEXTS = ("text_input", "text_output", "text_output_neg", "task_type", "game")


class AlfworldDataset(RecordDataset):
    """Samples with `image` (3, S, S) float32, `text_input`, `text_output`, `text_output_neg`, `task_type`, `game`.

    Texts pass through `text_processor`; by default unchanged, because a prompt's lines and punctuation carry meaning.
    """

    def sample(self, record: Record, index: int, epoch: int) -> dict[str, Any]:
        """One transition; `instance_id` is its index."""
        return {
            "image": self.process_image(record, index, epoch),
            "text_input": self.text_processor(record.text_input),
            "text_output": self.text_processor(record.text_output),
            "text_output_neg": self.text_processor(record.text_output_neg),
            "task_type": record.task_type,
            "game": record.game,
            "instance_id": index,
        }

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch: `image` (N, 3, S, S), lists of N texts and ids, `skipped` (messages); N may be 0 in evaluation.

        `image` is a list if a sample has several images, or if images have no tensor of one shape (without an image
        processor, as for a model that has its own).

        `prompt` and `text_output_pos` are `text_input` and `text_output` under the names `generate` and `dpo_forward`
        read.
        """
        # In an evaluation a bad sample has nothing but its message in `skipped`.
        good = [sample for sample in samples if "image" in sample]
        batch: dict[str, Any] = {key: [sample[key] for sample in good] for key in (*_TEXTS, "instance_id")}
        images = [sample["image"] for sample in good]
        # An episode's first states have fewer images before them, so samples of several images cannot be stacked.
        shapes = {getattr(image, "shape", None) for image in images}
        stacked = len(shapes) == 1 and None not in shapes
        batch["image"] = (default_collate(images) if stacked else images) if good else torch.empty(0)
        batch["prompt"], batch["text_output_pos"] = batch["text_input"], batch["text_output"]
        batch["skipped"] = [message for sample in samples for message in sample["skipped"]]
        return batch
