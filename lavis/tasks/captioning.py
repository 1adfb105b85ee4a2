"""`captioning`: the model writes a text for an image and a prompt; BLEU against the label (Papineni et al. 2002)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from lavis.common.errors import missing_extra
from lavis.common.registry import registry
from lavis.models.student import Student, questions_of
from lavis.tasks.student_task import StudentTask


@registry.register_task("captioning")
class CaptionTask(StudentTask):
    """Beam search with `run.num_beams`, `run.max_len`, `run.min_len`."""

    packages: tuple[str, ...] = ("sacrebleu",)  # of the extra `metrics`: what the report needs

    def prepare(self, model: Student, datasets: Mapping[str, Any]) -> None:
        """As every student's task; MissingExtraError if a split is evaluated without a package for its report."""
        super().prepare(model, datasets)
        if {*self.settings.valid_splits, *self.settings.test_splits} & set(datasets):
            for package in self.packages:  # now: the first evaluation may come after hours of training
                if find_spec(package) is None:
                    raise missing_extra("metrics", ModuleNotFoundError(name=package))

    def valid_step(self, model: Any, samples: Mapping[str, Any]) -> list[dict[str, Any]]:
        """For each sample `caption`, `label`, and `nll`: the label's negative log-probability under the model.

        `nll` is a mean over the label's tokens, or their sum with `model.avg_log_probs=False`.
        """
        settings = self.settings
        captions = model.write(
            questions_of(samples, samples["text_input"]),
            num_beams=settings.num_beams,
            max_length=settings.max_len,
            min_length=settings.min_len,
            repetition_penalty=settings.repetition_penalty,
            length_penalty=settings.length_penalty,
        )
        # One forward pass for the labels, beside the search: `nll` compares models whose texts differ.
        (logps,) = model.sequence_logps(samples, "text_output")
        fields = (samples["instance_id"], captions, samples["text_output"], (-logps).tolist())
        rows = zip(*fields, samples["task_type"], samples["game"], strict=True)
        names = ("instance_id", "caption", "label", "nll", "task_type", "game")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def report(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """`loss` (mean `nll`), `bleu` (0 to 100), and BLEU as `agg_metrics`."""
        bleu = corpus_bleu([row["caption"] for row in results], [row["label"] for row in results])
        return {"agg_metrics": bleu, "bleu": bleu, "loss": mean([row["nll"] for row in results])}


def corpus_bleu(predictions: Sequence[str], labels: Sequence[str]) -> float:
    """BLEU of sacrebleu (Post 2018), 0 to 100; orders longer than the texts do not count (commands are short)."""
    try:
        from sacrebleu.metrics import BLEU
    except ModuleNotFoundError as error:
        raise missing_extra("metrics", error) from None

    return BLEU(effective_order=True).corpus_score(list(predictions), [list(labels)]).score


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
