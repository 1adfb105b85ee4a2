"""What an observation carries: the frame, the expert beside the environment."""

from tests.xrl_alignment.client.playing import native, quiet
from xrl_alignment.client.play import play
from xrl_alignment.experts import make_expert


def test_v2_frames_arrive_as_they_were_drawn(master, games):
    server = master(num_rounds=1)
    play(server.url, native, games[:1], report=quiet())
    environment = native()
    environment.reset(games[0])
    assert (server.observations()[0].image == environment.render()).all()


def test_blank_frames_are_black_and_of_the_same_size(master, games):
    server = master(num_rounds=1)
    play(server.url, native, games[:1], blank_frames=True, report=quiet())
    assert all(o.image.shape == (224, 224, 3) and not o.image.any() for o in server.observations())


def test_expert_beside_the_environment_travels_with_the_observation(master, games):
    server = master(num_rounds=1)
    play(server.url, native, games[:1], expert=lambda environment: make_expert("explorer"), report=quiet())
    observations = server.observations()
    advised = [o.information["expert_action"] for o in observations]
    assert all(advised[:-1]) and "expert_thought" in observations[0].information
    executed = [line[2:] for line in observations[-1].history.splitlines() if line.startswith("> ")]
    assert executed == []  # v2 leaves the text to the server
