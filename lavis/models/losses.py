"""The two objectives of EMAC+, computed with any `Student`: behavioural cloning (phase 1) and DPO (phase 2).

Notation: x is a question (prompt and images), y an answer, pi the policy, pi_ref the policy at the end of phase 1.

Shapes: N samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lavis.common.run_settings import DPO_BETA
from lavis.models.student import BcParts, DpoParts, Question, Samples, Student, questions_of, texts_of


def bc(student: Student, samples: Samples) -> BcParts:
    """Behavioural cloning: -sum log pi(y_n | x_n) / tokens, over all output tokens of the batch.

    `samples`: `image`, `text_input` and `text_output`, the expert's answers, N of each.
    """
    prompts, outputs = texts_of(samples, "text_input", "text_output")
    questions = questions_of(samples, prompts)
    sums = student.answer_logps(questions, [[text] for text in outputs], mean=False)  # (N, 1)
    # A mean over tokens, not over answers: a long answer counts for more, as in the original.
    return BcParts(-sums.sum() / sum(map(student.answer_tokens, outputs)))


def dpo(student: Student, samples: Samples) -> DpoParts:
    """Direct preference optimisation with EMMA's cloning term, `dpo_loss` of log-probabilities under pi and pi_ref.

    `samples`: `image`, `text_input`, `text_output_pos` (the expert's answer), `text_output_neg` (the policy's);
    optionally `ref_logps_pos` and `ref_logps_neg` (N,), which replace the reference policy's computation.
    """
    prompts, chosen, rejected = texts_of(samples, "text_input", "text_output_pos", "text_output_neg")
    questions: Sequence[Question] = questions_of(samples, prompts)
    pairs = list(zip(chosen, rejected, strict=True))
    # log pi_ref(y | x) of chosen and rejected, (N, 2): constants, for pi_ref does not train.
    if "ref_logps_pos" in samples and "ref_logps_neg" in samples:
        known = [samples["ref_logps_pos"], samples["ref_logps_neg"]]
        reference = torch.stack(known, dim=1).float().to(student.device)
    else:
        questions = student.encoded(questions)  # the images once, for pi_ref and pi
        with torch.no_grad(), student.as_reference():
            reference = student.answer_logps(questions, pairs)

    def parts(policy: Tensor, rows: Sequence[int]) -> DpoParts:
        terms = (*policy.unbind(1), *reference[rows].unbind(1))
        return dpo_loss(*terms, beta=student.dpo_beta, mix_ratio=student.mix_ratio)

    # log pi(y | x), (N, 2). The loss is announced, so that its gradient is computed beside the values, row by row.
    policy = student.answer_logps(questions, pairs, row_loss=lambda logps, rows: parts(logps, rows).loss)
    return parts(policy, list(range(len(pairs))))


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float = DPO_BETA,
    mix_ratio: float = 0.5,
) -> DpoParts:
    """Mean over the batch of `-log sigmoid(beta * (policy - reference)) - mix_ratio * policy_chosen`.

    All four inputs are log-probabilities of shape (N,). The first term is eq. 7 of Rafailov et al. 2023
    (arXiv:2305.18290), the second EMMA's behaviour-cloning term. Rewards are `beta * (policy - reference)`;
    `chosen_entropy` is the original's name for the mean negative log-probability of the chosen answer.
    """
    # With y+ chosen and y- rejected: log pi(y+|x) / pi(y-|x), and the same for pi_ref. Their difference is eq. 7's
    # log pi(y+|x) / pi_ref(y+|x) - log pi(y-|x) / pi_ref(y-|x), in another order.
    policy = policy_chosen - policy_rejected  # (N,)
    reference = reference_chosen - reference_rejected  # (N,)
    # `logsigmoid` and not log(sigmoid(z)): the sigmoid of a large negative z is 0 in float32, and its logarithm -inf.
    # DPO alone may lower both answers' probabilities, as long as their ratio grows. The cloning term holds y+ up.
    losses = -F.logsigmoid(beta * (policy - reference)) - mix_ratio * policy_chosen
    return DpoParts(
        loss=losses.mean(),
        # The implicit rewards beta log pi / pi_ref (section 4 of the paper): figures for the log, without gradient.
        chosen_reward=beta * (policy_chosen - reference_chosen).detach().mean(),
        rejected_reward=beta * (policy_rejected - reference_rejected).detach().mean(),
        chosen_entropy=-policy_chosen.detach().mean(),
    )
