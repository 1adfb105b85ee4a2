"""Why an episode failed, by its text alone: one cause for each, the first that fits."""

from __future__ import annotations

from alfworld_native.language.commands import canonical, is_thought
from alfworld_native.language.sentences import is_refusal, type_of
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.reflexion.rule import read_episode

REJECTED, LOOP, NEVER_FOUND = "rejected command", "loop", "never found"
LOST, WRONG, OUT_OF_STEPS = "found and lost", "wrong receptacle", "out of steps"
CAUSES = {  # in the order in which they are tried
    REJECTED: "it ended with three rejected commands in a row, or at least half of its commands were rejected",
    LOOP: "it ended with the same one or two commands again and again, accepted but without effect on the task",
    NEVER_FOUND: "no object of the kind that the task names came into view",
    WRONG: "the object was put somewhere else than the task says, and stayed there",
    LOST: "the object was seen, but not taken, or put down again and not brought to its place",
    OUT_OF_STEPS: "the object was in hand, or at its place but not treated or not the only one, when the steps ended",
}
_IN_A_ROW = 3  # rejected commands, or rounds of a loop, at the end of an episode: they are its cause


def cause(trace: EpisodeTrace) -> str:
    """The cause of a failed episode, a key of `CAUSES`."""
    steps = [(canonical(action), feedback.strip()) for action, feedback in trace.steps if not is_thought(action)]
    reading = read_episode(trace)
    rejected = [is_refusal(feedback) for _, feedback in steps]
    # `max`: an episode without a command has none that was rejected.
    if all(rejected[-_IN_A_ROW:]) and len(steps) >= _IN_A_ROW or 2 * sum(rejected) >= max(len(steps), 1):
        return REJECTED
    # One command, or two in turn, three times at the end: each is what stands one or two places before it.
    actions = [action for action, _ in steps]
    for size in (1, 2):
        end = actions[-_IN_A_ROW * size :]
        if len(end) == _IN_A_ROW * size and all(a == b for a, b in zip(end, end[size:], strict=False)):
            return LOOP
    if reading.task is None or not reading.wanted():
        return NEVER_FOUND
    # The object was seen. What does the agent hold at the end, and where has it put the object last?
    held, last_put = "", ""
    for action, feedback in steps:
        verb, _, rest = action.partition(" ")
        if is_refusal(feedback):
            continue
        if verb == "take":
            held = rest.partition(" from ")[0]
        elif verb == "put":
            held, last_put = "", rest if type_of(rest.partition(" in/on ")[0]) == reading.task.object_type else last_put
    if type_of(held) == reading.task.object_type:
        return OUT_OF_STEPS
    target = last_put.partition(" in/on ")[2]
    if target and reading.task.treatment != "look" and type_of(target) != reading.task.target_type:
        return WRONG
    return OUT_OF_STEPS if reading.done.get("put") else LOST
