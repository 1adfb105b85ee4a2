"""The student's updates on the real tiny model: what moves, what is reported, what a restore continues."""

import contextlib
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from lavis.common.devices import DEVICE_LOST
from lavis.common.errors import DivergedError
from lavis.common.paths import REPO_ROOT
from lavis.models.blip2_models.emac_config import PARTS
from lavis.models.student import BcParts
from tests import warm
from tests.colour_student import ColourStudent
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger.learner import TrainingMetrics
from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint, restore_model, save_checkpoint
from xrl_alignment.runs.transitions import Transition, shard_name, write_shard

CPU = torch.device("cpu")
FROZEN = {"freeze_llm": True, "freeze_vit": True, "freeze_qformer": True, "allow_random": list(PARTS)}


@pytest.fixture
def stored(tmp_path):
    """A buffer folder with one shard of four transitions."""
    rng = np.random.default_rng(0)
    steps = [
        Transition(
            rng.integers(0, 255, (112, 112, 3), dtype=np.uint8), f"go to desk {i}\n> ", f"take mug {i}", "look", "", ""
        )
        for i in range(4)
    ]
    write_shard(tmp_path / shard_name(0, 0, 4), steps, {})
    return tmp_path


@pytest.fixture
def make(stored, learner_maker):
    def maker(preferences=False, settings=None, reference=False, **options):
        model, vis_processor = load_student(settings or {}, CPU)
        if preferences or reference:
            model.set_reference()
        learner = learner_maker(model, vis_processor, stored, preferences=preferences, **options)
        learner.buffer.add_shard(shard_name(0, 0, 4))
        return learner

    return maker


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("preferences", [False, True])
def test_what_trains_moves_and_nothing_else(make, preferences):
    learner = make(preferences, FROZEN, updates=2)
    before = weights(learner.model)
    learner.learn(1)
    after = weights(learner.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"llm_proj.weight", "llm_proj.bias"}
    assert not learner.model.training and learner.training_step == 2


def test_loss_falls_on_what_is_repeated(make):
    learner = make(updates=12)
    metrics: list[TrainingMetrics] = []
    learner.learn(1, metrics.append)
    losses = [m.loss for m in metrics]
    assert len(losses) == 12 and sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_dpo_prefers_the_experts_action_more_and_more(make):
    learner = make(True, updates=10)
    metrics: list[TrainingMetrics] = []
    learner.learn(1, metrics.append)
    assert abs(metrics[0].chosen_reward) < 1e-3 and abs(metrics[0].rejected_reward) < 1e-3  # policy = reference
    assert metrics[-1].chosen_reward > metrics[-1].rejected_reward


def saved(learner, path: Path) -> Path:
    """The learner's checkpoint, with what the reference has said where there is one."""
    return save_checkpoint(
        path,
        model=learner.model,
        optimizer=learner.optimizer,
        scaler=learner.updater.scaler,
        training_step=learner.training_step,
        random=learner.random_state(),
        references=learner.references.state() if learner.preferences else None,
    )


@pytest.mark.parametrize("preferences", [False, True])
def test_any_student_learns_and_continues_from_its_checkpoint(stored, learner_maker, preferences):
    """One without tokenizer, image processor and LAVIS parts; a resume gives the same bits as going on."""

    def made():
        student = ColourStudent()
        student.set_reference()
        learner = learner_maker(student, lambda frame: frame, stored, preferences=preferences, updates=20, lr=0.05)
        learner.buffer.add_shard(shard_name(0, 0, 4))
        return learner

    whole, resumed = made(), made()
    metrics: list[TrainingMetrics] = []
    whole.learn(0, metrics.append)
    assert sum(m.loss for m in metrics[-3:]) < 0.8 * sum(m.loss for m in metrics[:3])
    path = saved(whole, stored / "student.pth")
    assert len(whole.references) == (4 if preferences else 0)
    checkpoint = load_checkpoint(path)
    restore_model(resumed.model, checkpoint, path)
    resumed.restore(checkpoint)
    for learner in (whole, resumed):
        learner.learn(1)
    ends = weights(whole.model), weights(resumed.model)
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    with pytest.raises(CheckpointError, match="frozen base"):
        restore_model(ColourStudent(seed=1), checkpoint, path)


def test_an_episode_that_is_played_again_is_a_new_one_under_the_old_name(stored, learner_maker):
    """Its shard was lost: neither that it was refused holds any more, nor what the reference said of the old one."""

    def made():
        student = ColourStudent()
        student.set_reference()
        return learner_maker(student, lambda frame: frame, stored, preferences=True, updates=4)

    before, again, fresh = made(), made(), made()
    name = shard_name(0, 0, 4)
    before.add_shard(name)
    before.learn(0)
    before.buffer.refuse(name)
    path = saved(before, stored / "student.pth")
    other = Transition(np.zeros((112, 112, 3), np.uint8), "go to desk 9\n> ", "inventory", "open safe 1", "", "")
    write_shard(stored / name, [other] * 4, {})
    again.restore(load_checkpoint(path))
    for learner in (again, fresh):
        learner.add_shard(name)
        learner.learn(1)
    said, expected = ({tuple(logps) for logps in it.references.state()["logps"].tolist()} for it in (again, fresh))
    assert said == expected and len(said) == 1


def test_the_original_warms_up_in_the_first_round_and_falls_along_a_cosine(make):
    learner = make(updates=3, lr=1e-3, num_rounds=2)
    rates = []
    for round in range(2):
        learner.learn(round, lambda metrics: rates.append(metrics.lr))
    assert rates == pytest.approx([1e-8, 5e-4, 1e-3, 5e-4, 5e-4, 5e-4], rel=1e-3)


def test_accumulated_batches_make_one_update(make):
    one, four = make(updates=1), make(updates=1)
    four.accum_grad_steps, four.batch_size, one.batch_size = 2, 2, 4
    steps, gradients = [], []
    four.optimizer.register_step_post_hook(lambda *_: steps.append(four.training_step))
    for learner in (four, one):
        first = next(learner.model.llm_proj.parameters())
        learner.optimizer.register_step_pre_hook(lambda *_, first=first: gradients.append(first.grad.clone()))
        learner.learn(1)
    torch.testing.assert_close(*gradients)  # the mean of the batches' gradients: AdamW hardly shows a sum
    assert steps == [1] and (four.training_step, one.training_step) == (2, 1)
    assert all(p.grad is None for p in four.model.parameters())


def test_loss_scaling_changes_no_update_and_skips_one_that_overflows(make):
    """On a GPU in half precision; the scaler computes on a CPU, too."""
    plain, scaled = make(updates=1), make(updates=1)
    scaled.updater.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    plain.learn(1)
    scaled.learn(1)
    after = weights(scaled.model)
    assert all(torch.allclose(after[name], value, atol=1e-6) for name, value in weights(plain.model).items())
    kept = scaled.updater.scaler.state_dict()
    scaled.updater.scaler.load_state_dict({**kept, "scale": 1e38})  # gradients of infinity
    scaled.learn(1)
    assert all(torch.equal(after[name], value) for name, value in weights(scaled.model).items())
    assert scaled.updater.scaler.get_scale() == pytest.approx(5e37)


def test_a_run_that_did_not_scale_continues_on_a_device_that_has_to(make):
    """Begun in bfloat16, continued on an older GPU, which has float16 alone."""
    first, second = make(updates=1), make(updates=1)
    first.learn(1)
    second.updater.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    saved = {"optimizer": first.optimizer.state_dict(), "scaler": first.updater.scaler.state_dict()}
    second.restore({**saved, "training_step": 1, "random": first.random_state()})
    assert saved["scaler"] == {} and second.updater.scaler.get_scale() == 2.0**14


@pytest.mark.parametrize("preferences", [False, True])
def test_a_restored_learner_continues_to_the_same_weights(make, preferences):
    straight = make(preferences, updates=4)
    straight.learn(1)
    first = make(preferences, updates=2)
    first.learn(1)
    saved = {
        "optimizer": first.optimizer.state_dict(),
        "scaler": first.updater.scaler.state_dict(),
        "training_step": first.training_step,
        "random": first.random_state(),
        "references": first.references.state(),
    }
    second = make(preferences, updates=2)
    second.model.load_trainable(first.model.trainable_state_dict())
    second.restore(saved)
    second.learn(1)
    ends = weights(straight.model), weights(second.model)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0]) and second.training_step == 4


def test_the_reference_is_asked_once_for_each_transition(make, monkeypatch):
    asked, found = [], {}
    for remembers in (True, False):
        learner = make(True, {**FROZEN, "amp": ""}, updates=12)
        torch.manual_seed(0)
        torch.nn.init.normal_(learner.model.llm_proj.weight, std=0.05)
        if not remembers:
            monkeypatch.setattr(learner.references, "add_to", lambda samples, places: None)
        plain = learner.model.answer_logps

        def counted(questions, answers, plain=plain, model=learner.model, **options):
            asked.extend(questions if model._as_reference else ())
            return plain(questions, answers, **options)

        monkeypatch.setattr(learner.model, "answer_logps", counted)
        metrics: list[TrainingMetrics] = []
        learner.learn(1, metrics.append)
        found[remembers] = [m.loss for m in metrics]
        assert len(asked) == (4 if remembers else 24)  # transitions, draws
        asked.clear()
    assert found[True] == pytest.approx(found[False], rel=1e-4)


def test_remembered_answers_are_dropped_when_the_reference_changes(make):
    learner = make(True, FROZEN)
    samples = learner.buffer.sample(3)
    samples["image"] = torch.stack([learner.vis_processor(image) for image in samples["image"]])
    learner.references.add_to(first := dict(samples), learner.buffer.drawn)
    assert torch.allclose(first["ref_logps_pos"], learner.model.reference_logps(samples)[0], atol=1e-5)
    with torch.no_grad():
        learner.model.llm_proj.weight.normal_(std=0.1)
    learner.references.add_to(second := dict(samples), learner.buffer.drawn)
    assert torch.equal(first["ref_logps_pos"], second["ref_logps_pos"])  # the policy moved, the reference did not
    learner.model.set_reference()
    learner.references.add_to(third := dict(samples), learner.buffer.drawn)
    assert torch.allclose(third["ref_logps_neg"], learner.model.reference_logps(samples)[1], atol=1e-5)
    assert not torch.allclose(third["ref_logps_pos"], first["ref_logps_pos"])
    state = learner.references.state()
    again = make(True, FROZEN).references
    again.restore(state)
    assert again.state()["places"].equal(state["places"]) and again.state()["logps"].equal(state["logps"])


def test_the_first_loss_that_is_not_finite_stops_before_it_does_harm(make):
    learner = make(updates=3)
    learner.model.llm_proj.bias.data[0] = float("inf")
    before = weights(learner.model)
    with pytest.raises(DivergedError, match="training step 0: lower run.init_lr.*round000_env0000_steps004.h5 step"):
        learner.learn(0)
    after = weights(learner.model)
    assert all(torch.equal(before[name], after[name]) for name in before if "llm_proj" not in name)
    assert not learner.model.training


class InfiniteGradient(torch.autograd.Function):
    """Leaves the loss as it is and makes its gradient infinite."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * float("inf")


def test_a_finite_loss_with_an_infinite_gradient_leaves_the_weights_as_they_were(make):
    learner = make(updates=3)
    learner.learn(0)
    before, losses = weights(learner.model), learner.model.losses
    learner.model.losses = lambda *given: BcParts(InfiniteGradient.apply(losses(*given).loss))
    with pytest.raises(
        DivergedError, match="the gradient's norm is .* training step 3: lower run.init_lr.*steps004.h5"
    ):
        learner.learn(1)
    after = weights(learner.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in learner.model.parameters()) and not learner.model.training


def test_a_transition_at_which_the_model_fails_is_drawn_no_more(make, stored, caplog):
    learner, losses = make(updates=4), None
    steps = [Transition(np.zeros((8, 8, 3), np.uint8), "poison", "look", "look", "", "")]
    write_shard(stored / shard_name(0, 1, 1), steps, {})
    learner.buffer.add_shard(shard_name(0, 1, 1))
    losses = learner.model.losses

    def failing(samples, objective):
        if "poison" in samples["text_input"]:
            raise ValueError("cannot be read")
        return losses(samples, objective)

    learner.model.losses = failing
    learner.learn(0)
    learner.learn(0)
    assert learner.buffer.refused == {shard_name(0, 1, 1)} and learner.training_step == 8
    assert "round000_env0001_steps001.h5: nothing more is learned from it: ValueError: cannot be read" in caplog.text
    again = make()
    again.restore({"optimizer": learner.optimizer.state_dict(), "scaler": {}, "training_step": 8, "references": None,
                   "random": learner.random_state()})  # fmt: skip
    assert again.buffer.refused == learner.buffer.refused


DEVICES_FAULTS = [
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    *(lost("CUDA error: the launch failed") for lost in DEVICE_LOST),
]


@pytest.mark.parametrize("error", DEVICES_FAULTS)
def test_a_devices_fault_is_no_shards_fault(make, stored, error):
    learner = make(updates=8)
    write_shard(stored / shard_name(0, 1, 1), [Transition(np.zeros((8, 8, 3), np.uint8), "long", "a", "a", "", "")], {})
    learner.buffer.add_shard(shard_name(0, 1, 1))
    losses = learner.model.losses

    def failing(samples, objective):
        if "long" in samples["text_input"]:
            raise error
        return losses(samples, objective)

    learner.model.losses = failing
    with pytest.raises(type(error)):
        learner.learn(0)
    assert not learner.buffer.refused


def test_the_random_state_holds_the_gpus_generator(make, monkeypatch):
    learner = make()
    assert "cuda" not in learner.random_state()
    generator = torch.Generator().manual_seed(1)  # in place of the GPU's, which may not be here
    monkeypatch.setattr(type(learner.model), "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: generator.get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: generator.set_state(state))
    state = {"optimizer": learner.optimizer.state_dict(), "scaler": None, "training_step": 0}
    state["random"] = learner.random_state()
    drawn = torch.rand(3, generator=generator)
    learner.restore(state)
    assert torch.equal(torch.rand(3, generator=generator), drawn)


def test_a_model_that_fails_at_everything_is_no_transitions_fault(make):
    learner = make()

    def failing(samples, objective):
        raise ValueError("broken")

    learner.model.losses = failing
    with pytest.raises(ValueError, match="broken"):
        learner.learn(0)


def test_log_lines_have_the_originals_form():
    cloning = TrainingMetrics(step=3, lr=1e-5, loss=0.25)
    assert cloning.line(0) == "Epoch: [0], Iter: [3], Lr: [0.000010], Loss: [0.2500]"
    assert cloning.scalars() == [("loss", 0.25), ("lr", 1e-5)]
    pairs = TrainingMetrics(step=3, lr=1e-5, loss=0.25, chosen_reward=0.1, rejected_reward=-0.1, nll=2.0)
    assert pairs.line(0).endswith("Loss: [0.2500], W_reward: [0.1000], L_reward: [-0.1000], NLL: [2.0000]")
    assert [name for name, _ in pairs.scalars()] == ["loss", "lr", "chosen_reward", "rejected_reward", "nll"]


GROUP = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")


def run_script(launcher, *paths):
    """`grouped_learner.py` alone, or in a group."""
    command = [*launcher, Path(__file__).with_name("grouped_learner.py"), *paths]
    return warm.run(command, more={"PYTHONPATH": str(REPO_ROOT)})


@pytest.fixture
def group_of_one():
    """A process group of this process alone, in which a model can be sharded."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("preferences", [False, True])
def test_whole_and_sharded_models_continue_from_each_others_state(make, group_of_one, monkeypatch, preferences):
    """float32; the shards' language model runs on Transformers' code, so equal means up to rounding."""
    monkeypatch.setattr("xrl_alignment.dagger.learner.autocast", lambda device: contextlib.nullcontext())
    settings = {**FROZEN, "freeze_llm": False, "amp": ""}
    ends = []
    for fsdp in (False, True):
        first, second = make(preferences, settings, updates=2, fsdp=fsdp), make(preferences, settings, fsdp=not fsdp)
        begin = {name: value.clone() for name, value in first.replicas.trainable_state().items()}
        first.learn(1)
        saved = {
            "optimizer": first.replicas.optimizer_state(first.optimizer),
            "scaler": None,
            "training_step": first.training_step,
            "random": first.random_state(),
            "references": first.references.state(),
        }
        assert not isinstance(saved["optimizer"]["state"][0]["exp_avg"], DTensor)
        second.replicas.load_trainable(first.replicas.trainable_state())
        second.restore(saved)
        second.learn(1)
        assert second.training_step == 3
        ends.append(second.replicas.trainable_state())
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=2e-4)  # see the two processes below
        assert "weight" not in name or (value - begin[name]).abs().max() > 1e-3


def test_a_transition_that_cannot_be_read_is_drawn_no_more_with_shards(make, stored, group_of_one, caplog):
    learner = make(updates=4, fsdp=True)
    (stored / shard_name(0, 1, 1)).write_bytes(b"damaged")
    learner.buffer.add_shard(shard_name(0, 1, 1))
    learner.learn(0)
    learner.learn(0)
    assert learner.buffer.refused == {shard_name(0, 1, 1)} and learner.training_step == 8


def test_an_infinite_gradient_of_a_shard_leaves_the_weights_as_they_were(make, group_of_one):
    learner = make(updates=1, fsdp=True)
    before, losses = learner.replicas.trainable_state(), learner.model.losses
    before = {name: value.clone() for name, value in before.items()}
    learner.model.losses = lambda *given: BcParts(InfiniteGradient.apply(losses(*given).loss))
    with pytest.raises(DivergedError, match="the gradient's norm is .* training step 0"):
        learner.learn(1)
    after = learner.replicas.trainable_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_two_processes_make_the_updates_of_one(stored, tmp_path):
    """Two real processes (Gloo), float32, the same global batches.

    Figures agree within 1e-5, weights within 3e-5: 1 % of what AdamW's three updates (lr 1e-3) move one at most. Where
    the language model trains, the two processes share its weights (FSDP); there one weight in two million, with a
    gradient close to 0, differs by 7e-5, for AdamW divides by the gradient's size.
    """
    steps = [
        Transition(np.full((56, 56, 3), 40 * i, np.uint8), f"shelf {i}\n> ", "look" + " around" * i, "look", "", "")
        for i in range(5)
    ]
    write_shard(stored / shard_name(0, 1, 5), steps, {})
    found = []
    for name, launcher in (("one.pt", []), ("two.pt", GROUP)):
        done = run_script(launcher, stored, tmp_path / name)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(torch.load(tmp_path / name, weights_only=True))
    assert [results["resumed"] for results in found] == [True, True]
    for method in ("bc", "dpo", "bc llm", "dpo llm"):
        one, two = (results[method] for results in found)
        assert [f.keys() for f in one["figures"]] == [f.keys() for f in two["figures"]] and len(one["figures"]) == 6
        for alone, together in zip(one["figures"], two["figures"], strict=True):
            assert together == pytest.approx(alone, abs=1e-5)
        assert two["references"] == (0 if "llm" in method else one["references"])  # shards: computed with each batch
        for name, value in one["weights"].items():
            atol = 2e-4 if "llm" in method else 3e-5
            torch.testing.assert_close(two["weights"][name], value, rtol=0, atol=atol)
        for number, state in one["moments"].items():
            torch.testing.assert_close(two["moments"][number]["exp_avg"], state["exp_avg"], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_process_that_fails_alone_with_a_sharded_model_ends_the_group(stored):
    began = time.monotonic()
    done = run_script(GROUP, stored)
    assert done.returncode != 0 and "the last process fails alone" in done.stderr
    assert time.monotonic() - began < 120  # and not the half hour for which processes wait for each other
