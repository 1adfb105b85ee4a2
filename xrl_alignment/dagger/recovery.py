"""The beginning of a run: it is brought to where its journal ends, if it has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from xrl_alignment.dagger.rounds import Rounds
from xrl_alignment.dagger.training import Trainer
from xrl_alignment.runs.journal import check_journal


def recover(rounds: Rounds, training: Trainer, on_progress: Callable[[], None] = lambda: None) -> None:
    """Begin the run, or repeat what its journal holds and its saved state lacks.

    Raises CheckpointError if that state is damaged, of another frozen base, or ahead of the journal, and
    RunDirectoryError if journal, games and memories are not of one run.
    """
    directory = rounds.directory
    journal = directory.episodes()
    rounds.games = directory.games()
    rounds.left = dict.fromkeys(rounds.games, "")  # until the journal says which were played
    rounds.environments = directory.environments()
    check_journal(directory, journal, num_rounds=rounds.num_rounds)
    memories_round, memories = directory.memories()

    # Shards that a power loss took. An episode of the round that is being played is cut off the journal, and so played
    # again. One of an earlier round stays, because that round has ended; nothing more is learned from it.
    lost = directory.lost_shards(journal) if training.keeps_transitions else {}
    now = max(memories_round, journal[-1].round) if journal else 0
    cut = {number for number in lost if journal[number].round == now}
    for number, why in lost.items():
        record = journal[number]
        what = "it is played again" if number in cut else "nothing more is learned from it"
        directory.logger.error(f"Task: [{record.env}] of round {record.round} is lost, {what}: {why}")
    training.restore(len(journal), cut)  # before the journal is cut: the saved state must never be ahead of it
    if lost:
        journal = [
            replace(record, shard="") if number in lost else record
            for number, record in enumerate(journal)
            if number not in cut
        ]
        directory.rewrite_episodes(journal)

    # The same steps as when these episodes were played; the trainer repeats the updates that its state lacks.
    for record in journal:
        while rounds.round < record.round:
            rounds.begin_next()
        rounds.count(record)
        training.learn(record)
        on_progress()

    # Saved memories say that the rounds before theirs are over. The log of the round in progress is written anew: a
    # kill can come between journal and log.
    while rounds.round < memories_round:
        rounds.begin_next()
    rounds.memories = memories
    directory.trial_log(rounds.round).unlink(missing_ok=True)
    for record in rounds.records:
        directory.write_trial(record, memories.get(record.game, []))
    if journal:
        directory.logger.info(f"Resumed after {len(journal)} episodes, in round {rounds.round}")
