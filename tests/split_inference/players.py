"""Models that need no weights, and the player that asks them."""

import json
from functools import partial

from split_inference.batch_player import BatchPlayer
from split_inference.trajectories import TrajectoryFolder
from xrl_alignment.agents.language.prompt import build_prompt, opening


class Planner:
    """A model that knows every game's walkthrough; it tells from the prompt which game it plays, and at which step."""

    write_prompt = staticmethod(build_prompt)

    def __init__(self, data):
        self.plans = {}
        for file in data.glob("json_2.1.1/*/*/*/game.tw-pddl"):
            game = json.loads(file.read_text())
            self.plans[f"{file.parent.parent.name}/{file.parent.name}"] = game["walkthrough"]
        self.games, self.batches, self.prompts = {}, [], []

    def learn(self, connection, games):
        """Read each game's opening, by which a prompt shows its game."""
        for game in games:
            intro = connection.send_request({"command": "init", "traj_file": game["traj_file"]})["intro"]
            self.games[opening(intro)] = self.plans[game["game"]]
        connection.send_request({"command": "reset_task"})

    def answer(self, turns):
        self.batches.append(len(turns))
        self.prompts += [turn.prompt for turn in turns]
        return [self.next(turn.prompt) for turn in turns]

    def next(self, prompt):
        plan = next(plan for intro, plan in self.games.items() if intro in prompt)
        return f"Action: {plan[prompt.count(chr(10) + '> ') - 1]}\nbecause it helps"


class Says:
    """A model that always writes the same."""

    def __init__(self, text, budget=None):
        self.text, self.turns = text, []
        self.write_prompt = partial(build_prompt, budget=budget)

    def answer(self, turns):
        self.turns += turns
        return [self.text] * len(turns)


def make_player(connections, model, folder, **changes):
    options = {"max_turns": 50, "show_commands": False, "reconnect": None, **changes}
    trajectories = TrajectoryFolder(folder, {"a": 1})
    return BatchPlayer(connections=connections, model=model, trajectories=trajectories, **options)
