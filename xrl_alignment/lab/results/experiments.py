"""The experiments of docs/results.md, each a function of the lab and the sizes that returns its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from alfworld_native.experts.explorer import ORDERS
from alfworld_native.household.mixture import checked_mixture, horizon_of
from lavis.common.paths import REPO_ROOT
from xrl_alignment.builders.environments import games_of
from xrl_alignment.lab.results.images import steps_by_eyes
from xrl_alignment.lab.results.lab import Lab
from xrl_alignment.lab.results.settings import ResultsConfig
from xrl_alignment.lab.results.statistics import difference, row, second_trial, steps_saved
from xrl_alignment.play.collection.plan import Plan
from xrl_alignment.settings.schema import EnvironmentConfig

# What the student is shown (docs/information.md): setting -> keys of the section `environment`.
INFORMATION = {
    "a": {"environment.show_ids": False},
    "numbers": {},
    "b": {"environment.tell_objects": False},
    "c": {"environment.blank_frames": True},
}

SHIPPED = REPO_ROOT / "lavis" / "models" / "tiny" / "student_official.safetensors"
DRIVERS = {"no round": None, "expert": 1.0, "half and half": 0.5, "student": 0.0}  # who drives in a round -> run.beta
AS_IT_SHIPS = {"policy.skip_rejected": True, "policy.skip_visited": True}  # how `student_official` is decoded

Options = Mapping[str, Any]
NONE: Options = {}


class Arm(NamedTuple):
    """A way to continue from the cloned student: the keys in which it differs from the others."""

    name: str
    options: dict[str, Any]


# With mean log-probabilities of a token and β 0.1, the original's preference term has a tenth of the gradient of the
# cloning term that it is added to (`mix_ratio`). So two arms have β 1: one beside that term; one without it, which
# learns only from states in which the answers of expert and student differ.
ARMS = (
    Arm("bc", {}),
    Arm("dpo", {"run.enable_dpo": True}),
    Arm("dpo, β 1", {"run.enable_dpo": True, "run.dpo_beta": 1.0}),
    Arm(
        "dpo, β 1, disagreements, no cloning term",
        {"run.enable_dpo": True, "run.dpo_beta": 1.0, "run.learn_from": "disagreements", "model.mix_ratio": 0.0},
    ),
)

# DAgger with all its data (Ross et al. 2011): the expert's games stay in the training, and the learning rate falls.
POOLED: dict[str, dict[str, Any]] = {"bc": {}, "dpo, β 1": {"objective": "dpo", "dpo_beta": 1.0}}


def student(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """The student of each seed, judged in every information setting: after cloning, and after its DAgger rounds."""

    def one(seed: int) -> dict[str, dict[str, Any]]:
        if sizes.cloned:
            name, cloned = "cloned/given", Path(sizes.cloned).absolute()
        else:
            name, games, reader = f"cloned/seed{seed}", _collections(lab, sizes), _reader(lab, sizes)
            cloned = _trained(lab, f"seed{seed}", games, sizes.batches, seed, falls=20, language_model=reader)
        found = {"cloned": _judged(lab, sizes, name, cloned)}
        keys = {"run.seed": seed} | _games(sizes, sizes.round_games) | {"reflexion.enabled": False}
        own = []
        for number, (short, shown) in enumerate(INFORMATION.items()):
            # The cloned student plays in every information setting, and the expert labels what it meets (DAgger).
            # As in cloning, labels hold notes only in (b); elsewhere notes would contradict what the student knows.
            notes = {"run.enable_tc": short == "b", "environment.seed": 100 * (seed + 1) + number}
            own.append(lab.label(f"labelled/seed{seed}-{short}", cloned, keys | shown | notes))
        storages = [*_collections(lab, sizes), *own * 3]  # the expert's games stay; the student's own count three times
        weights = _trained(
            lab, f"dagger-seed{seed}", storages, sizes.dagger_batches, seed, cloned, falls=20, init_lr=3e-4
        )
        found["student"] = _judged(lab, sizes, f"student/seed{seed}", weights)
        found["as it ships"] = _judged(lab, sizes, f"student-as-it-ships/seed{seed}", weights, AS_IT_SHIPS)
        return found

    by_seed = lab.all(partial(one, seed) for seed in sizes.seeds)
    return {
        phase: {name: row([found[phase][name] for found in by_seed]) for name in INFORMATION}
        for phase in ("cloned", "student", "as it ships")
    }


def shipped(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """`student_official` in every information setting: greedy, and with no useless command."""
    ways = {"greedy": _judged(lab, sizes, "shipped", None)}
    ways["as it ships"] = _judged(lab, sizes, "shipped-as-it-ships", None, AS_IT_SHIPS)
    return {way: {name: row([evaluation]) for name, evaluation in found.items()} for way, found in ways.items()}


def reflexion(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """A second trial of the games that `student_official` failed: with their memories, without, with other games'.

    In setting (a), in which the student fails most, and decoded as it ships. Decoded so, the student repeats no useless
    command anyway; a memory helps only if it says more about the game.
    """
    games = sizes.second_trial_games
    keys = INFORMATION["a"] | AS_IT_SHIPS | {"environment.num_heldout": games, "run.num_envs": games}
    ways = {
        "with its memory": {"reflexion.enabled": True},
        "without a memory": {"reflexion.enabled": False},
        "with another game's memory": {"reflexion.enabled": True, "run.swap_memories": True},
    }

    def one(way: str) -> dict[str, Any]:
        return _heldout(lab, sizes, f"reflexion/{way.replace(' ', '-')}", None, keys | ways[way], trials=2)

    found = dict(zip(ways, lab.all(partial(one, way) for way in ways), strict=True))
    without = found["without a memory"]
    return {way: second_trial(evaluation, without) for way, evaluation in found.items()}


def images(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """Steps that an explorer saves which sees: on `valid_seen` and on generated games, in either order of search."""
    household = EnvironmentConfig(
        name="household", split="household_heldout", num_train=1, num_heldout=sizes.heldout_games
    )
    sets = {
        "valid_seen": games_of(EnvironmentConfig(split="valid_seen"), sizes.valid_games),
        "generated": games_of(household, sizes.heldout_games),
    }
    return {name: {order: steps_by_eyes(games, order=order) for order in ORDERS} for name, games in sets.items()}


def looking(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """Students of explorers that know what the labels of their frames name, and of one that does not, on black frames.

    One sees what is before it, one all four directions. All begin with `student_official`, which reads frames and
    black ones, and search in the order of the text, where looking helps most. The vision encoder trains, too.
    """
    taught = {
        "black": ("--blank-frames",),
        "frames": ("--eyes", "labels"),
        "around": ("--eyes", "labels-around", "--camera", "around"),
    }
    black, vision = {"environment.blank_frames": True}, {"freeze_vit": False, "freeze_qformer": False}
    shown: dict[str, dict[str, Options]] = {
        "black": {"black": black},
        "frames": {"frames": {}, "the same, black": black},
        "around": {"around": {"environment.camera": "around"}},
    }
    games = {"environment.split": "valid_seen", "run.num_envs": sizes.valid_games} | AS_IT_SHIPS

    def one(kind: str, seed: int) -> dict[str, dict[str, Any]]:
        name = f"looking-{kind}-seed{seed}"
        flags = ("--order", "listing", *taught[kind])
        data = _collection(lab, sizes, name, sizes.looking_games, 20 + seed, *flags)
        weights = _trained(lab, name, [data], sizes.looking_batches, seed, SHIPPED, model=vision, init_lr=3e-4)
        return {
            way: lab.evaluate(f"looking/{_slug(way)}-seed{seed}", weights, games | dict(keys))
            for way, keys in shown[kind].items()
        }

    chains = [(kind, seed) for seed in sizes.seeds for kind in taught]
    found = lab.all(partial(one, *chain) for chain in chains)
    ways: dict[str, list[dict]] = {}
    for evaluations in found:
        for way, evaluation in evaluations.items():
            ways.setdefault(way, []).append(evaluation)
    return {way: row(each) | {"steps_saved": steps_saved(each, ways["black"])} for way, each in ways.items()}


class Variant(NamedTuple):
    """How a student of the ablations is made and judged. `name` begins the names of its steps in the lab."""

    name: str
    games: int  # that the expert plays for it
    batches: int  # that it is cloned on
    collect: tuple[str, ...] = ()  # further flags of the collection
    judged: Options = NONE  # further keys of the evaluation
    beta: float | None = None  # a DAgger round follows, and the expert drives in this share of its games


def variants(sizes: ResultsConfig) -> dict[str, dict[str, Variant]]:
    """Switch -> value -> variant, the one that the others of its switch are compared with first.

    Each differs in one thing from `explorer`, which is cloned from the explorer's games; so it stands in most switches.
    """
    explorer = Variant("explorer", sizes.ablation_games, sizes.ablation_batches)

    def but(name: str, collect: tuple[str, ...] = (), judged: Options = NONE) -> Variant:
        return explorer._replace(name=name, collect=collect, judged=judged)

    # What the text does not name, the student must see; with notes it writes down what it sees.
    unnamed, no_notes, notes = INFORMATION["b"], {"run.enable_tc": False}, {"run.enable_tc": True}
    return {
        "expert": {"explorer": explorer} | {name: but(name, ("--expert", name)) for name in ("handcoded", "planner")},
        "history": {str(Plan.budget): explorer}
        | {n: but(f"history{n}", ("--budget", n), {"model.max_txt_len": int(n) + 1}) for n in ("255", "127")},
        "notes": {
            "without": but("notes-without", ("--hide-objects",), unnamed | no_notes),
            "with": but("notes-with", ("--hide-objects", "--thoughts"), unnamed | notes),
        },
        "driver": {
            who: explorer if beta is None else explorer._replace(name=f"beta{beta}", beta=beta)
            for who, beta in DRIVERS.items()
        },
        "games": {
            str(n): explorer if n == explorer.games else explorer._replace(name=f"games{n}", games=n)
            for n in sizes.curve
        },
        "batches": {
            str(n): explorer if n == explorer.batches else explorer._replace(name=f"batches{n}", batches=n)
            for n in sizes.batch_curve
        },
    }


def ablations(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """One switch at a time: cloned from the demo's model, on the same number of games and batches.

    `over_first` of a row is its paired difference against the first row of its table. The table over batches also says
    the mean minutes of a training.
    """
    switches = {switch: variants(sizes)[switch] for switch in sizes.switches}

    def one(variant: Variant, seed: int) -> dict[str, Any]:
        # Students that are cloned for longer see the same games; those of every driver begin with the same weights.
        own = "explorer" if variant.beta is not None else variant.name
        data = "explorer" if variant.batches != sizes.ablation_batches else own
        shown = _collection(lab, sizes, f"{data}-seed{seed}", variant.games, 10 + seed, *variant.collect)
        weights = _trained(lab, f"{own}-seed{seed}", [shown], variant.batches, seed)
        if variant.beta is not None:
            keys = {"run.beta": f"[{variant.beta}]", "run.seed": seed, "environment.seed": 10 + seed}
            keys |= _games(sizes, sizes.ablation_games)
            weights = lab.round(f"{variant.name}-seed{seed}", weights, keys)
        return _heldout(lab, sizes, f"ablations/{variant.name}-seed{seed}", weights, variant.judged)

    chains = [(variant, seed) for values in switches.values() for variant in values.values() for seed in sizes.seeds]
    results = iter(lab.all(partial(one, *chain) for chain in chains))
    table: dict[str, Any] = {}
    for switch, values in switches.items():
        found = {value: [next(results) for _ in sizes.seeds] for value in values}
        first = next(iter(found.values()))
        table[switch] = {value: row(each) | {"over_first": difference(each, first)} for value, each in found.items()}
    for value, variant in switches.get("batches", {}).items():
        minutes = [lab.seconds()[f"students/{variant.name}-seed{seed}"] / 60 for seed in sizes.seeds]
        table["batches"][value]["minutes"] = sum(minutes) / len(minutes)
    return table


def phase_two(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """What DPO adds to cloning: each of ARMS, from the same weights, with the same games and updates."""

    def one(games: int, seed: int) -> dict[str, dict[str, Any]]:
        name = f"regime{games}-seed{seed}"
        start = _start(lab, sizes, games, seed)
        found = {"start": _heldout(lab, sizes, f"{name}/start", start)}
        for arm in ARMS:
            keys = _phase_keys(sizes, games, seed)
            weights = lab.round(f"{name}-{_slug(arm.name)}", start, {**keys, **arm.options})
            found[arm.name] = _heldout(lab, sizes, f"{name}/{_slug(arm.name)}", weights)
        return found

    return _by_regime(lab, sizes, one)


def pooled(lab: Lab, sizes: ResultsConfig) -> dict[str, Any]:
    """Phase 2 on the student's own games and the expert's together: each of POOLED, from the same weights.

    Where the expert played, the rejected answer is a random other command.
    """

    def one(games: int, seed: int) -> dict[str, dict[str, Any]]:
        name = f"regime{games}-seed{seed}"
        start = _start(lab, sizes, games, seed)
        pairs = _collection(lab, sizes, f"{name}-pairs", games, 10 + seed, "--negatives")
        own = lab.label(f"{name}-labelled", start, _phase_keys(sizes, games, seed))
        found = {"start": _heldout(lab, sizes, f"{name}/start", start)}
        for arm, options in POOLED.items():
            label = f"{name}-pooled-{_slug(arm)}"
            # The student's own states count three times beside the expert's, as in `student`.
            weights = _trained(
                lab, label, [pairs, own, own, own], sizes.pooled_batches, seed, start, init_lr=3e-4, **options
            )
            found[arm] = _heldout(lab, sizes, f"{name}/pooled-{_slug(arm)}", weights)
        return found

    return _by_regime(lab, sizes, one)


def _start(lab: Lab, sizes: ResultsConfig, games: int, seed: int) -> Path:
    """The cloned student that phase 2 begins with."""
    name = f"regime{games}-seed{seed}"
    shown = _collection(lab, sizes, name, games, 10 + seed)
    return _trained(lab, name, [shown], sizes.regime_batches, seed)


def _phase_keys(sizes: ResultsConfig, games: int, seed: int) -> Options:
    """The games of a round of phase 2."""
    return {"run.seed": seed} | _games(sizes, min(games, sizes.phase_games)) | {"environment.seed": 10 + seed}


def _games(sizes: ResultsConfig, number: int) -> dict[str, Any]:
    """The keys of a round's `number` games; without a mixture of levels its settings file says which."""
    household = {"environment.name": "household", "environment.split": "household_train"}
    household |= {"environment.num_train": number, "environment.num_heldout": 1} | _mixture(sizes)
    return {"run.num_envs": number} | (household if sizes.levels else {})


def _mixture(sizes: ResultsConfig) -> dict[str, Any]:
    """The keys of the mixture of levels, for generated games; empty without one."""
    if not sizes.levels:
        return {}
    weights = ", ".join(f"{level}: {weight}" for level, weight in sizes.levels.items())
    return {"environment.levels": f"{{{weights}}}", "run.max_steps": horizon_of(checked_mixture(sizes.levels))}


def _by_regime(lab: Lab, sizes: ResultsConfig, one: Callable[[int, int], dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """For each number of training games the rows of all arms, compared with `bc` and with the start."""
    chains = [(games, seed) for games in sizes.regimes for seed in sizes.seeds]
    found = dict(zip(chains, lab.all(partial(one, *chain) for chain in chains), strict=True))
    table: dict[str, Any] = {}
    for games in sizes.regimes:
        seeds = [found[games, seed] for seed in sizes.seeds]
        arms = {name: [each[name] for each in seeds] for name in seeds[0]}
        table[str(games)] = {
            name: row(each) | {"over_bc": difference(each, arms["bc"]), "over_start": difference(each, arms["start"])}
            for name, each in arms.items()
        }
    return table


def _slug(arm: str) -> str:
    return arm.replace("β", "beta").replace(",", "").replace(" ", "-")


def _collections(lab: Lab, sizes: ResultsConfig) -> list[Path]:
    """The explorer's games, shown in every way.

    A student that is unsure whether the newest list names what it looks for walks on, and searches the whole room for
    nothing; a wrong `take` costs one step. So states in which something is taken count more.
    """
    # Seeds differ, so that the ways show different games, in another order.
    told = partial(_collection, lab, sizes)
    taken = told("taken", sizes.taken_games, 6, "--no-show-ids", "--only", "take")
    return [
        told("told", sizes.told_games, 1),
        told("plain", sizes.plain_games, 2, "--no-show-ids"),
        told("blank", sizes.blank_games, 3, "--blank-frames"),
        told("hidden", sizes.hidden_games, 4, "--hide-objects", "--thoughts"),
        told("remembered", sizes.remembered_games, 5, "--memories"),
        *(taken,) * 3,
    ]


def _reader(lab: Lab, sizes: ResultsConfig) -> Path:
    """The demo's language model after reading whole episodes, whose text tells what lies where.

    The demo's frozen one plays by pictures: told everything in words, without a useful picture, it solves 0.70.
    """
    games = lab.generate("read-games", "--num-train", str(sizes.read_games), "--seed", "11", "--max-receptacles", "40")
    reading = {
        "tokens": sizes.read_tokens,
        "lr": 1.5e-3,
        "told": 0.85,
        "skilled": 0.95,
        "renamed": 0.5,
        "max-tokens": 1024,
        "feedback": 0.02,
    }
    flags = [text for key, value in reading.items() for text in (f"--{key}", str(value))]
    start = REPO_ROOT / "lavis" / "models" / "tiny" / "backbone.safetensors"
    return lab.read("language-model", "--games", str(games), "--official", "--start", str(start), *flags)


def _trained(
    lab: Lab,
    name: str,
    storages: Sequence[Path],
    batches: int,
    seed: int,
    start: Path | None = None,
    *,
    falls: int = 8,
    **options: Any,
) -> Path:
    """A student trained on so many batches; the learning rate falls in `falls` steps, more of them if it is long."""
    inner = max(1, batches // falls)
    return lab.train(name, storages, start, seed=seed, max_iters=batches, iters_per_inner_epoch=inner, **options)


def _collection(lab: Lab, sizes: ResultsConfig, name: str, games: int, seed: int, *flags: str) -> Path:
    drawn = ["--split", "train"]
    if sizes.levels:
        weights = (f"{level}={weight}" for level, weight in sizes.levels.items())
        drawn = ["--env", "household", "--split", "household_train", "--levels", *weights]
    arguments = ["--num-games", str(games), "--seed", str(seed), "--noise", str(sizes.noise)]
    return lab.collect(name, *drawn, *arguments, *flags)


def _judged(
    lab: Lab, sizes: ResultsConfig, name: str, weights: Path | None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One evaluation on `valid_seen` for each information setting."""
    games = {"environment.split": "valid_seen", "run.num_envs": sizes.valid_games} | dict(options or {})
    return {
        setting: lab.evaluate(f"{name}-{setting}", weights, games | shown) for setting, shown in INFORMATION.items()
    }


def _heldout(
    lab: Lab,
    sizes: ResultsConfig,
    name: str,
    weights: Path | None,
    options: Mapping[str, Any] | None = None,
    trials: int = 1,
) -> dict[str, Any]:
    """An evaluation on generated games in rooms that no training game has."""
    keys = {"environment.name": "household", "environment.split": "household_heldout", "environment.num_train": 1}
    keys |= {"environment.num_heldout": sizes.heldout_games, "run.num_envs": sizes.heldout_games}
    return lab.evaluate(name, weights, keys | _mixture(sizes) | dict(options or {}), trials)


RUN: dict[str, Callable[[Lab, ResultsConfig], dict[str, Any]]] = {
    "shipped": shipped,
    "student": student,
    "phase_two": phase_two,
    "pooled": pooled,
    "reflexion": reflexion,
    "images": images,
    "looking": looking,
    "ablations": ablations,
}
