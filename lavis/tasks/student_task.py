"""What the project's own tasks have in common: they train and measure a model that acts on stored transitions.

Tasks know nothing of processes, devices or optimisers: that is the runner's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lavis.common.config import Config
from lavis.common.dist_utils import gathered, is_main_process
from lavis.common.errors import ConfigError
from lavis.common.files import write_json
from lavis.common.progress import progress
from lavis.common.registry import registry
from lavis.common.run_settings import RunSettings
from lavis.datasets.annotations import too_many
from lavis.datasets.data_utils import to_device
from lavis.datasets.datasets.record_dataset import RecordDataset
from lavis.datasets.records import BadSampleError, Record
from lavis.models import StudentModel
from lavis.models.student import Student
from lavis.tasks.base_task import BaseTask

if TYPE_CHECKING:
    from typing_extensions import Self


class StudentTask(BaseTask):
    """Trains a `StudentModel` by `run.objective`; subclasses give `valid_step` and `report`.

    `settings` are the run's; `normalise` is what predictions and labels pass through before they are compared.
    """

    own_keys = False

    def __init__(self, *, settings: RunSettings, normalise: Callable[[str], str] | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.normalise = normalise or plain

    @classmethod
    def setup_task(cls, cfg: Config) -> Self:
        """From a config; a better `normalise` may be registered as "action_normaliser"."""
        return cls(settings=cls.settings_of(cfg), normalise=registry.get("action_normaliser"))

    def build_model(self, cfg: Config) -> StudentModel:
        """The model of the `model:` section; ConfigError if it is no student, or random where a file must be read."""
        model = super().build_model(cfg)
        if not isinstance(model, StudentModel):
            raise ConfigError(
                f"run.task={self.settings.task} trains a model that acts (lavis.models.StudentModel), and "
                f"model.arch={cfg.model_cfg.arch} is none: choose another task (docs/lavis.md)"
            )
        model.dpo_beta = self.settings.dpo_beta
        return model

    def prepare(self, model: Student, datasets: Mapping[str, Any]) -> None:
        """Datasets give as many frames as the model reads, and refuse labels that it cannot learn from.

        ConfigError if DPO lacks a reference.
        """
        preferences = self.settings.objective == "dpo"
        if preferences and self.settings.train_splits and not self.settings.evaluate and not model.has_reference:
            raise ConfigError("run.objective=dpo needs model.ref_pretrained: the checkpoint that it starts from")
        for split, dataset in datasets.items():
            if not isinstance(dataset, RecordDataset):
                raise ConfigError(
                    f"run.task={self.settings.task} reads stored transitions (datasets: alfworld_cap), split {split} "
                    f"is a {type(dataset).__name__}: choose another task (docs/lavis.md)"
                )
            dataset.source.frames = model.frames
            # Only training on pairs needs a rejected answer; an evaluation compares with the label.
            trains = split in self.settings.train_splits
            dataset.check = LabelCheck(model.encode_answer, model.max_answer_tokens, preferences and trains)

    def train_step(self, model: Any, samples: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective's loss, and all its parts by name."""
        parts = model.call("losses", samples, self.settings.objective)._asdict()
        return parts["loss"], parts

    def weight(self, model: Student, samples: Mapping[str, Any]) -> float:
        """Over how many items the loss is a mean: answer tokens for BC, pairs for DPO.

        Processes' losses are averaged with these weights, which makes two halves of a batch equal to the whole.
        """
        if self.settings.objective == "dpo":
            return float(len(samples["text_output"]))
        return float(sum(map(model.answer_tokens, samples["text_output"])))

    def evaluation(self, model: Any, data_loader: Any, cuda_enabled: bool = True) -> list[dict[str, Any]]:
        """Results of this process's batches, and what was skipped in them."""
        results: list[dict[str, Any]] = []
        quiet = not is_main_process()
        for samples in progress(data_loader, "evaluated", len(data_loader), what="batches", quiet=quiet):
            # A batch of bad samples alone is empty, and the model takes none.
            if samples["instance_id"]:
                results += self.valid_step(model, to_device(samples, model.device))
            results += [{"skipped": message} for message in samples["skipped"]]
        return results

    def add_skipped(self, results: list[dict[str, Any]], messages: Sequence[str]) -> None:
        """Tell of left-out samples among the `results`, so that nobody takes the figure for one of all samples."""
        results += [{"skipped": message} for message in messages]

    def after_evaluation(
        self, val_result: list[dict[str, Any]], split_name: str, epoch: int | str, result_dir: Path | None = None
    ) -> dict[str, Any]:
        """Figures over all processes' results, which go to `<result_dir>/<split>_epoch<epoch>.json`.

        `agg_metrics` among them is what the best checkpoint is chosen by.
        """
        merged = [result for part in gathered(val_result) for result in part]
        skipped = sorted({result["skipped"] for result in merged if "skipped" in result})
        # `EvalSampler` pads the last batches with early samples: every sample counts once.
        unique = {result["instance_id"]: result for result in merged if "instance_id" in result}
        results = [unique[key] for key in sorted(unique)]
        if len(skipped) > self.settings.skip_bad_samples:
            raise BadSampleError(too_many(skipped, self.settings.skip_bad_samples))
        if not results:
            raise ConfigError(f"split {split_name}: no sample could be evaluated; {skipped[0] if skipped else ''}")
        if is_main_process():
            write_json(Path(result_dir or registry.get_path("result_dir")) / f"{split_name}_epoch{epoch}.json", results)
        # What was skipped is told beside the figures, which are over fewer samples than the split has.
        figures = {"samples": len(results), **self.report(results)}
        return {**figures, "skipped": skipped} if skipped else figures

    def report(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Figures over results; `agg_metrics` among them."""
        raise NotImplementedError


class LabelCheck:
    """Refuses labels that the model would cut (`max_output_txt_len`), and for DPO those without a rejected answer."""

    def __init__(self, encode: Callable[[str], list[int]], limit: int, preferences: bool) -> None:
        self._limit = limit
        self._preferences = preferences
        self._encode = encode
        self._joint = len(encode(""))  # tokens that the model learns before every answer
        # Tokens with EOS. The cache is for commands, which repeat.
        self._length = lru_cache(maxsize=4096)(lambda text: len(encode(text.rstrip())) + 1)

    def __call__(self, record: Record) -> str:
        """Why the record cannot be used, or ""."""
        if self._preferences and not record.text_output_neg.strip():
            return "text_output_neg is missing or empty, and run.objective=dpo needs it"
        for field in ("text_output", "text_output_neg") if self._preferences else ("text_output",):
            text = getattr(record, field)
            # No tokenizer makes more tokens than bytes of a text: most labels need not be encoded.
            if len(text.encode()) + self._joint >= self._limit and (length := self._length(text)) > self._limit:
                return (
                    f"{field} has {length} tokens with its end, over the model's {self._limit} "
                    f"(by model.max_output_txt_len): {text[:40]!r}…"
                )
        return ""

    def __reduce__(self) -> tuple:
        # Workers of a loader that are spawned get the dataset pickled, and neither a cache nor a lambda can be.
        return LabelCheck, (self._encode, self._limit, self._preferences)


def plain(text: str) -> str:
    """Lower case and single blanks: how texts are compared if no better `normalise` is registered."""
    return " ".join(text.lower().split())
