"""Noise on frames and reports: its strength by severity, and that it depends on seed, game and step alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from alfworld_native import make_environment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.noise import NoisyEnvironment, image_noise, word_noise, words_replaced
from lavis.common.errors import ConfigError
from xrl_alignment.common.choices import IMAGE_NOISE_NAMES

FRAME = np.random.default_rng(0).integers(60, 200, (64, 48, 3), dtype=np.uint8)


def damage(kind: str, severity: int) -> float:
    """Mean absolute change of `FRAME` over many draws."""
    draws = [image_noise(FRAME, kind, severity, np.random.default_rng(i)) for i in range(40)]
    return float(np.mean([np.abs(frame.astype(int) - FRAME).mean() for frame in draws]))


def test_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="fog"):
        image_noise(FRAME, "fog", 1, np.random.default_rng(0))


@pytest.mark.parametrize("kind", IMAGE_NOISE_NAMES)
def test_a_higher_severity_changes_more_and_zero_nothing(kind: str) -> None:
    levels = [damage(kind, severity) for severity in range(5)]
    assert levels[0] == 0 and levels == sorted(levels) and len(set(levels)) == 5
    noisy = image_noise(FRAME, kind, 4, np.random.default_rng(1))
    assert noisy.dtype == np.uint8 and noisy.shape == FRAME.shape


@pytest.mark.parametrize(("severity", "share"), [(1, 0.1), (2, 0.2), (3, 0.35), (4, 0.5)])
def test_occlusion_covers_the_share_of_the_area_that_docs_say(severity: int, share: float) -> None:
    covered = (image_noise(FRAME, "occlusion", severity, np.random.default_rng(0)) == 127).all(axis=2)
    assert covered.mean() == pytest.approx(share, abs=0.01)


def test_noise_depends_on_seed_game_and_step_alone(games) -> None:
    def frames(seed: int, game: int = 0) -> list[np.ndarray]:
        environment = make_environment("native", image_noise="gaussian", image_severity=2, seed=seed)
        environment.reset(games[game])
        first = [environment.render(), environment.render()]
        environment.step("look")
        return [*first, environment.render()]

    one, again, other = frames(1), frames(1), frames(2)
    assert (one[0] == one[1]).all() and (one[0] != one[2]).any()  # `look` changes the step, not the state
    assert all((a == b).all() for a, b in zip(one, again, strict=True)) and (one[0] != other[0]).any()


def test_all_but_the_frames_is_the_environments_own(games) -> None:
    plain, noisy = make_environment("native"), make_environment("native", image_noise="dropped", image_severity=4)
    assert isinstance(noisy, NoisyEnvironment) and noisy.name == "native"
    assert noisy.reset(games[0]) == plain.reset(games[0])
    assert noisy.step("inventory") == plain.step("inventory") and noisy.facts() == plain.facts()
    noisy.close()


def test_severity_zero_makes_the_plain_environment() -> None:
    assert not isinstance(make_environment("native", image_noise="occlusion", image_severity=0), NoisyEnvironment)


@pytest.mark.parametrize(("kind", "severity", "text"), [("fog", 1, "unknown image noise"), ("dropped", 5, "is not a")])
def test_an_impossible_noise_is_named(kind: str, severity: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_environment("native", image_noise=kind, image_severity=severity)


def test_a_report_loses_words() -> None:
    text = "On the desk 1, you see a pen 1, and a cup 2.\nNothing happens. " * 20
    kept = [len(word_noise(text, severity, random.Random(0)).split()) for severity in range(5)]
    assert kept[0] == len(text.split()) and kept == sorted(kept, reverse=True) and len(set(kept)) == 5
    assert word_noise(text, 4, random.Random(0)) == word_noise(text, 4, random.Random(0))


def test_a_segment_is_cropped_enlarged_or_moved() -> None:
    frames = [image_noise(FRAME, "segments", 4, np.random.default_rng(i)) for i in range(60)]
    changed = [frame for frame in frames if (frame != FRAME).any()]
    assert 0.3 < len(changed) / len(frames) < 0.7  # half of the frames
    cropped = [frame for frame in changed if (frame == 0).any()]  # `FRAME` itself has no black pixel
    kept = [(frame == FRAME).all(axis=2).mean() for frame in changed if not (frame == 0).any()]
    # A moved segment leaves the rest of the frame as it was; an enlarged one moves nearly every pixel.
    assert cropped and any(share > 0.15 for share in kept) and any(share < 0.1 for share in kept)


def test_words_of_an_answer_are_exchanged_at_a_rate() -> None:
    text = "On the desk 1, you see a pen 1, and a cup 2.\nYou take it from there.\n" * 30
    noisy = words_replaced(text, 0.3, random.Random(0))
    before, after = text.split(), noisy.split()
    assert len(before) == len(after) and noisy.count("\n") == text.strip().count("\n") and set(after) <= set(before)
    assert 0.2 < np.mean([one != other for one, other in zip(before, after, strict=True)]) < 0.3
    assert words_replaced(text, 0.0, random.Random(0)) == text.strip()


def test_text_noise_changes_answers_alone(games) -> None:
    plain, noisy = make_environment("native"), make_environment("native", text_noise=0.5)
    assert noisy.reset(games[0]) == plain.reset(games[0])  # the room and the task can be read
    told = [(plain.step("look"), noisy.step("look")) for _ in range(3)]
    assert all(p[1:4] == n[1:4] and p.text != n.text and n.true_text == p.text for p, n in told)
    again = make_environment("native", text_noise=0.5)
    again.reset(games[0])
    assert again.step("look") == told[0][1] and (noisy.render() == plain.render()).all()
    with pytest.raises(ConfigError, match=r"environment.text_noise: 1.5 is not a share"):
        make_environment("native", text_noise=1.5)


def test_an_action_that_is_refused_with_an_error_is_no_step(games) -> None:
    one, other = (make_environment("native", image_severity=2, text_noise=0.5) for _ in range(2))
    for environment in (one, other):
        environment.reset(games[0])
    with pytest.raises(EnvironmentFault, match="an action is a string"):
        one.step(3)
    assert (one.render() == other.render()).all()
    assert one.step("look") == other.step("look") and (one.render() == other.render()).all()


def test_each_episode_of_a_game_has_the_same_noise(games) -> None:
    environment = make_environment("native", image_severity=2, text_noise=0.5)
    for _ in range(2):
        environment.reset(games[0])
        seen = environment.render()
        answer = environment.step("look")
    again = make_environment("native", image_severity=2, text_noise=0.5)
    again.reset(games[0])
    assert (again.render() == seen).all() and again.step("look") == answer
