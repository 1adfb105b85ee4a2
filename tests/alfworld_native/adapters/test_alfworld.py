"""The adapter for alfworld's programs, compared with the installed alfworld on official games."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from functools import partial
from io import StringIO

import pytest
from alfworld.agents.environment import get_environment as get_alfworlds

from alfworld_native.adapters.alfworld import AlfredTWEnv, get_environment
from alfworld_native.adapters.alfworld_batch import _experts
from alfworld_native.errors import EnvironmentFault
from lavis.common.errors import ConfigError, MissingFileError

EVAL = "eval_in_distribution"


def both(config, split, batch_size):
    """alfworld's environment and ours, with the same random state at their start."""
    environments = []
    for get in (get_alfworlds, get_environment):
        random.seed(3)
        environments.append(get("AlfredTWEnv")(config, split).init_env(batch_size))
    return environments


def same(first, second):
    """What both calls return, made from one state of Python's random generator; they draw the same, too."""
    state = random.getstate()
    expected, drawn = first(), random.getstate()
    expected[-1].pop("facts", None)  # TextWorld's objects, which alfworld's expert leaves in the infos
    random.setstate(state)
    assert second() == expected
    assert random.getstate() == drawn
    return expected


def play(theirs, ours, choose, steps):
    """Reset both and play the same commands; every answer must be the same. Returns the last."""
    answer = same(theirs.reset, ours.reset)
    for _ in range(steps):
        commands = choose(answer[-1])
        answer = same(partial(theirs.step, commands), partial(ours.step, commands))
        if all(answer[2]):
            break
    return answer


def any_command(seed):
    """A rule that takes admissible commands by chance, among them some that are not."""
    rng = random.Random(seed)
    return lambda infos: [
        rng.choice([*commands, "put mug 1 in/on desk 1", " look "]) for commands in infos["admissible_commands"]
    ]


def as_the_expert_says(infos):
    return [plan[0] for plan in infos["extra.expert_plan"]]


def test_the_games_are_alfworlds_in_its_order(config):
    for split, numbers in ((EVAL, {}), ("train", {"num_train_games": 2}), ("eval_out_of_distribution", {})):
        config["dataset"] |= numbers
        theirs, ours = (get("AlfredTWEnv")(config, split) for get in (get_alfworlds, get_environment))
        assert ours.game_files == theirs.game_files and ours.num_games == theirs.num_games > 0


def test_the_games_come_in_alfworlds_order_for_every_seed(config):
    theirs, ours = both(config, EVAL, 1)
    for seed in (None, 8, 0):
        if seed is not None:
            assert theirs.seed(seed) == ours.seed(seed) == [seed]
        coming = [next(theirs._gamefiles_iterator) for _ in range(9)]  # loading them would take seconds
        assert [next(ours._order) for _ in range(9)] == coming


def test_one_game_at_a_time_answers_as_alfworlds(config):
    config["env"]["task_types"] = [2]  # a bedroom, which TextWorld loads in a second
    config["dagger"]["training"]["max_nb_steps_per_episode"] = 3
    theirs, ours = both(config, EVAL, 1)
    _, _, dones, infos = play(theirs, ours, any_command(1), 9)
    assert dones == (True,) and "extra.expert_plan" not in infos
    assert ours.step(["look"]) == theirs.step(["look"])  # nothing happens after the end


@pytest.mark.slow
def test_whole_episodes_with_the_experts_plan_answer_as_alfworlds(config):
    theirs, ours = both(config, "train", 1)
    assert any(play(theirs, ours, as_the_expert_says, 50)[3]["won"])
    for environment in (theirs, ours):
        environment.seed(8)
        environment.skip(2)
    play(theirs, ours, any_command(2), 6)
    theirs.close()


@pytest.mark.slow
def test_several_games_at_a_time_answer_as_alfworlds(config):
    config["dagger"]["training"]["max_nb_steps_per_episode"] = 9
    theirs, ours = both(config, EVAL, 3)
    answer = play(theirs, ours, any_command(4), 12)
    assert answer[2] == (True, True, True)
    theirs.close()


def test_the_experts_of_a_batch_draw_from_a_copy_of_pythons_generator():
    drawn = []
    for _ in range(2):
        random.seed(3)
        drawn.append(_experts(apart=True).keywords["draws"].random())
    assert drawn == [random.random()] * 2, "a seed repeats the run, and what the experts draw is not drawn outside"
    assert _experts(apart=False).keywords["draws"] is None


@pytest.fixture
def ours(config):
    return get_environment("AlfredTWEnv")(config, EVAL)


def test_either_dialect_may_be_spoken(config):
    config["env"]["task_types"] = [1]
    for dialect, own, other in (("put", "put ", "move "), ("move", "move ", "put ")):
        batch = get_environment("AlfredTWEnv")(config, "train", dialect=dialect).init_env(1)
        texts, infos = batch.reset()
        seen = set(infos["admissible_commands"][0])
        while not infos["won"][0]:
            (command,) = infos["extra.expert_plan"][0]
            said = command.replace("put ", "move ").replace(" in/on ", " to ") if dialect == "put" else command
            texts, scores, dones, infos = batch.step([said if command.startswith(own) else command])
            seen |= set(infos["admissible_commands"][0])
            assert "Nothing happens" not in texts[0]
        assert scores == (1,) and dones == (True,)
        assert texts[0].startswith(f"You {own}the ")
        assert any(command.startswith(own) for command in seen)
        assert not any(command.startswith(other) for command in seen)


def test_help_speaks_the_dialect(config):
    batch = get_environment("AlfredTWEnv")(config, EVAL, dialect="put").init_env(1)
    batch.reset()
    (text,), _, _, _ = batch.step(["help"])
    assert "put (object) in/on (receptacle)" in text and "move (object)" not in text


def test_alfworlds_other_environments_are_its_own():
    with pytest.raises(ConfigError, match=r"unknown environment 'AlfredTWenv': did you mean 'AlfredTWEnv'\?"):
        get_environment("AlfredTWenv")


def test_a_config_that_cannot_be_used_is_told_in_one_line(config, tmp_path, monkeypatch):
    make = get_environment("AlfredTWEnv")
    with pytest.raises(ConfigError, match="train_eval: unknown split 'valid_seen'"):
        make(config, "valid_seen")
    with pytest.raises(ConfigError, match="config is None; give alfworld's, a dictionary"):
        make(None, "train")
    with pytest.raises(ConfigError, match="dialect: unknown dialect 'puts'"):
        make(config, dialect="puts")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    config["dataset"]["eval_id_data_path"] = "$ALFWORLD_DATA/json_2.1.1/valid_seen"
    with pytest.raises(MissingFileError, match=rf"dataset.eval_id_data_path: folder {tmp_path}/json_2.1.1/valid_seen "):
        make(config, EVAL)
    config["env"]["task_types"] = [4]
    with pytest.raises(EnvironmentFault, match=r"no solvable games of task types \[4\]"):
        make(config)
    del config["env"]["task_types"]
    with pytest.raises(ConfigError, match="alfworld's config lacks env.task_types"):
        make(config)
    config["env"]["task_types"] = 1
    with pytest.raises(ConfigError, match="env.task_types: 1 is no list of numbers from 1 to 6"):
        make(config)
    config["env"] |= {"task_types": [1], "goal_desc_human_anns_prob": None}
    with pytest.raises(ConfigError, match="env.goal_desc_human_anns_prob: None, which is no number"):
        make(config)


def test_settings_of_the_play_are_checked(config, ours):
    with pytest.raises(EnvironmentFault, match="batch_size is 0"):
        ours.init_env(0)
    games, ours.game_files = ours.game_files, []
    with pytest.raises(EnvironmentFault, match="game_files is empty"):
        ours.init_env(1)
    ours.game_files = games
    config["general"]["training_method"] = "ppo"
    with pytest.raises(ConfigError, match="general.training_method: unknown method 'ppo'"):
        ours.init_env(1)
    config["env"]["domain_randomization"] = True
    with pytest.raises(ConfigError, match="env.domain_randomization"):
        get_environment("AlfredTWEnv")(config, "train").init_env(1)


def test_steps_that_make_no_sense_are_told_in_one_line(ours):
    batch = ours.init_env(2)
    with pytest.raises(EnvironmentFault, match="call reset"):
        batch.step(["look", "look"])
    batch.reset()
    for commands in ("look", ["look"], None):
        with pytest.raises(EnvironmentFault, match="a list of 2 commands"):
            batch.step(commands)
    with pytest.raises(EnvironmentFault, match="a command is a string"):
        batch.step(["look", 3])
    assert [slot._steps for slot in batch._slots] == [0, 0], "no game moved"


def test_a_game_file_of_an_unknown_version_is_named(ours, tmp_path):
    strange = tmp_path / "game.tw-pddl"
    with open(ours.game_files[0]) as file:
        strange.write_text(file.read().replace("gotolocation", "gotoplace", 1).replace("GotoLocation", "GotoPlace", 1))
    ours.game_files = [str(strange)]
    with pytest.raises(EnvironmentFault, match=rf"game file {strange}: its PDDL \w+ \(fingerprint"):
        ours.init_env(1).reset()


def test_two_threads_in_one_environment_are_told(ours):
    batch = ours.init_env(4)
    faults, go_on = [], threading.Event()

    def use():
        while not go_on.is_set():
            try:
                batch.reset()
            except EnvironmentFault as fault:
                faults.append(str(fault))
                go_on.set()

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        go_on.set()
    assert faults and "two threads use one environment at once" in faults[0]
    assert len(batch.reset()[0]) == 4  # alone again


def test_a_batch_that_is_larger_than_the_list_repeats_games_in_alfworlds_order(config, ours):
    theirs = get_alfworlds("AlfredTWEnv")(config, EVAL)
    assert theirs.game_files == ours.game_files and len(ours.game_files) == 4
    order = theirs.init_env(1)  # a batch of ten starts ten processes; the order is that of a single one
    batch = ours.init_env(10)
    coming = [next(order._gamefiles_iterator) for _ in range(20)]
    for games in (coming[:10], coming[10:]):
        texts, infos = batch.reset()
        assert len(texts) == 10 and infos["extra.gamefile"] == games
    assert len(batch.step(["look"] * 10)[0]) == 10


class OneGame(AlfredTWEnv):
    """As AgentBench's and AgentGym's environments: an `__init__` that calls nothing of ours but `get_game_logic`."""

    def __init__(self, config, game_file, train_eval="eval_out_of_distribution"):
        self.config = config
        self.train_eval = train_eval
        self.goal_desc_human_anns_prob = self.config["env"]["goal_desc_human_anns_prob"]
        self.get_game_logic()
        self.random_seed = 42
        self.game_files = [game_file]
        self.num_games = 1


@pytest.fixture
def logic(config, tmp_path):
    """The two files that `alfworld-download` brings, as far as anything here reads them."""
    config["logic"] = {"domain": str(tmp_path / "alfred.pddl"), "grammar": str(tmp_path / "alfred.twl2")}
    (tmp_path / "alfred.pddl").write_text("(define (domain alfred))")
    (tmp_path / "alfred.twl2").write_text("grammar :: {}")


def test_subclasses_with_an_init_of_their_own_play(config, ours, logic):
    game = ours.game_files[0]
    source = OneGame(config, game)
    assert source.game_logic == {"pddl_domain": "(define (domain alfred))", "grammar": "grammar :: {}"}
    env = source.init_env(batch_size=1)
    observations, info = env.reset()
    assert "Your task is to" in observations[0] and "\n".join(observations[0].split("\n\n")[1:])
    assert info["extra.gamefile"] == [game] and info.get("admissible_commands", [[]])[0]
    observations, reward, done, info = env.step([info["admissible_commands"][0][0]])
    assert (reward[0], done[0], info["won"][0]) == (0, False, False)
    source.game_files = [ours.game_files[1]]  # AgentGym's `reset` to another game
    assert source.init_env(batch_size=1).reset()[1]["extra.gamefile"] == [ours.game_files[1]]
    env.close()


def test_logic_files_that_are_not_there_are_named(config, ours, logic):
    config["logic"]["grammar"] = "/nowhere/alfred.twl2"
    with pytest.raises(MissingFileError, match="logic.grammar: file /nowhere/alfred.twl2 cannot be read"):
        ours.get_game_logic()
    del config["logic"]["domain"]
    with pytest.raises(ConfigError, match="alfworld's config lacks logic.domain"):
        ours.get_game_logic()


def test_peoples_descriptions_of_goals_are_warned_of(config):
    config["env"]["goal_desc_human_anns_prob"] = 0.5
    with pytest.warns(UserWarning, match="goal_desc_human_anns_prob has no effect"):
        get_environment("AlfredTWEnv")(config, EVAL)


def test_render_shows_commands_and_texts_as_alfworld(config, capsys):
    config["env"]["task_types"] = [2]
    theirs, ours = both(config, EVAL, 1)
    with pytest.raises(EnvironmentFault, match="call reset"):
        ours.render("text")
    for turn in (lambda env: env.reset(), lambda env: env.step(["go to desk 1"])):
        turn(theirs), turn(ours)
        assert ours.render(mode="text") == theirs.render(mode="text")
    drawn = ours.render(mode="ansi")
    assert isinstance(drawn, StringIO) and "\x1b[33m> go to desk 1\x1b[0m\n" in drawn.getvalue()
    capsys.readouterr()
    assert ours.render() is None and capsys.readouterr().out == drawn.getvalue()
    with pytest.raises(EnvironmentFault, match="render: unknown mode 'rgb_array'"):
        ours.render("rgb_array")


def test_facts_on_request_are_alfworlds(config):
    config["env"]["task_types"] = [2]
    theirs, ours = both(config, EVAL, 1)
    assert (ours.request_infos.extras, ours.request_infos.won) == (theirs.request_infos.extras, True)
    assert "facts" not in ours.reset()[1]
    config["general"]["training_method"] = "dagger"
    theirs = get_alfworlds("AlfredTWEnv")(config, "train").init_env(1)  # whose expert asks for facts
    ours.request_infos.facts = True
    ours.seed(1234)
    expected, answered = theirs.reset(), ours.reset()
    while True:
        (wanted,), (given,) = expected[-1]["facts"], answered[-1]["facts"]
        assert set(given) == set(wanted) and len(given) == len(set(wanted))
        ((command,),) = expected[-1]["extra.expert_plan"]
        if command.startswith("use"):
            break
        expected, answered = theirs.step([command]), ours.step([command])
    assert any(fact.name == "holds" for fact in given)


def test_a_batch_can_be_pickled_and_copied_in_the_middle_of_its_games(config):
    batch = get_environment("AlfredTWEnv")(config, "train").init_env(3)
    batch.request_infos.facts = True
    batch.reset()
    step = batch.step(["look"] * 3)
    sent = pickle.dumps(batch)
    for made in (copy.deepcopy(batch), pickle.loads(sent)):  # noqa: S301 - what was pickled a line above
        assert made.obs == step[0] and made.last_commands == ["look"] * 3
        here = copy.deepcopy(batch)
        for commands in (["inventory"] * 3, as_the_expert_says(step[-1])):
            assert made.step(commands) == here.step(commands)
        made.request_infos.facts = False
        assert "facts" not in made.step(["look"] * 3)[-1] and "facts" in here.step(["look"] * 3)[-1]
        assert made.reset()[1]["extra.gamefile"] == here.reset()[1]["extra.gamefile"]
    assert batch.step(["look"] * 3)[0] == step[0]  # what the copies did changed nothing
