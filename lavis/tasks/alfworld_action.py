"""`alfworld_action`: how often the model writes the expert's command, and in which part of it the others differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from lavis.common.registry import registry
from lavis.tasks.captioning import CaptionTask, corpus_bleu, mean
from lavis.tasks.commands import Lemmatizer, parse


@registry.register_task("alfworld_action")
class AlfworldActionTask(CaptionTask):
    """Action prediction on stored transitions; the label is one right answer of several, so figures are pessimistic."""

    packages = ("sacrebleu", "spacy")

    def report(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Figures over all samples, `per_task_type`, and `verb_confusion` (label's verb -> predicted verb -> number).

        Rates are 0 to 1: `exact_match` (also `agg_metrics`) after normalisation, `lemma_match` of base forms,
        `verb`, `object` and `receptacle` over the labels that have one; `bleu` is 0 to 100, `loss` the mean `nll`.
        """
        rows, lemmatizer = self._compared(results)
        confusion: dict[str, Counter] = defaultdict(Counter)
        for row in rows:
            confusion[row["label_verb"]][row["verb"]] += 1
        types = sorted({row["task_type"] for row in rows} - {""})
        overall = _figures(rows)
        return {
            "agg_metrics": overall["exact_match"],
            **overall,
            "lemmatizer": lemmatizer,
            "per_task_type": {kind: _figures([row for row in rows if row["task_type"] == kind]) for kind in types},
            "verb_confusion": {verb: dict(row.most_common()) for verb, row in sorted(confusion.items())},
        }

    def _compared(self, results: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """Each result with its comparisons, and the lemmatizer's name.

        A comparison is True, False, or None if the label has no such part.
        """
        captions = [self.normalise(row["caption"]) for row in results]
        labels = [self.normalise(row["label"]) for row in results]
        # The labels' words are the lookup table's vocabulary; predictions may hold anything.
        lemmatizer = Lemmatizer({word for label in labels for word in label.split()})
        rows = []
        for row, caption, label, base, wanted in zip(
            results, captions, labels, lemmatizer(captions), lemmatizer(labels), strict=True
        ):
            said, asked = parse(caption), parse(label)
            # Compared with their numbers ("apple 1"): another apple is another object in ALFWorld.
            parts = {part: getattr(said, part) == getattr(asked, part) for part in ("object", "receptacle")}
            rows.append(
                {
                    "task_type": row["task_type"],
                    "nll": row["nll"],
                    "caption": caption,
                    "label": label,
                    "verb": said.verb,
                    "label_verb": asked.verb,
                    "exact_match": caption == label,
                    "lemma_match": base == wanted,
                    **{part: same if getattr(asked, part) else None for part, same in parts.items()},
                }
            )
        return rows, lemmatizer.name


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    rates = {key: mean([row[key] for row in rows]) for key in ("exact_match", "lemma_match")}
    # Every command has a verb; an object or receptacle is compared only if the label has one.
    rates["verb"] = mean([row["verb"] == row["label_verb"] for row in rows])
    for part in ("object", "receptacle"):
        rates[part] = mean([row[part] for row in rows if row[part] is not None])
    bleu = corpus_bleu([row["caption"] for row in rows], [row["label"] for row in rows])
    return {"samples": len(rows), **rates, "bleu": bleu, "loss": mean([row["nll"] for row in rows])}
