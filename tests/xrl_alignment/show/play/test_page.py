"""The page of a game, and a recording, in a real browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, axe_script, running_browser, violations
from xrl_alignment.show.play.recording import write_recording
from xrl_alignment.show.play.web import PlayPages
from xrl_alignment.wire.http_server import PageServer

ATTACK = "<img src=x onerror=\"document.title='taken'\"></script><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def url(new_game) -> Iterator[str]:
    server = PageServer("127.0.0.1", 0).start()
    server.mount(PlayPages(lambda: new_game(suggest=lambda question: ATTACK)))
    yield f"http://127.0.0.1:{server.port}/"
    server.stop()


def test_you_play_the_expert_plays_and_another_game_begins(browser: Browser, url: str):
    with browser.page() as page:
        page.open(url)
        page.wait("document.getElementById('frame').naturalWidth === 448")
        assert page.text("#task").startswith("Your task is to") and page.text("#state") == "step 1"
        page.evaluate(
            "document.getElementById('action').value = 'look'; document.querySelector('#move button').click()"
        )
        page.wait("document.getElementById('state').innerText === 'step 2'")
        assert page.text("#last") == "> look" and page.text("#verdict").startswith("✗ differs")
        assert page.text("#suggestions").count(ATTACK[:20]) == 1
        page.click("#choices button")
        page.wait("document.getElementById('state').innerText === 'step 3'")
        for _ in range(60):
            if "step" not in page.text("#state") or page.text("#state").startswith("solved"):
                break
            before = page.text("#state")
            page.click("#suggestions button")
            page.wait(f"document.getElementById('state').innerText !== {before!r}")
        assert page.text("#state").startswith("solved in") and not page.text("#choices")
        page.click("#new")
        page.wait("document.getElementById('state').innerText === 'step 1'")
        page.click("#suggestions button:nth-child(2)")  # let the expert play
        page.wait("document.getElementById('state').innerText === 'step 3'")
        assert page.errors() == []


@pytest.mark.parametrize(("width", "height"), [(360, 640), (1200, 600)], ids=["phone", "low"])
def test_after_a_move_the_page_stays_and_the_keyboard_goes_on(browser: Browser, url: str, width: int, height: int):
    focused = "document.activeElement.innerText || document.activeElement.id"
    with browser.page(width=width, height=height) as page:
        page.open(url)
        page.wait("document.getElementById('state').innerText === 'step 1'")
        for number in (2, 3, 4):  # by the expert's suggestion, as the Enter key presses it
            page.evaluate("scrollTo(0, 0); document.querySelector('#suggestions button').focus({preventScroll: true})")
            page.evaluate("document.activeElement.click()")
            page.wait(f"document.getElementById('state').innerText === 'step {number}'")
            assert page.evaluate("scrollY") == 0 and page.evaluate(focused).startswith("expert: ")
        page.evaluate("document.querySelector('#choices button:last-child').focus()")
        page.evaluate("document.activeElement.click()")
        page.wait("document.getElementById('state').innerText === 'step 5'")
        assert page.evaluate("document.activeElement.parentElement.id") == "choices"
        page.evaluate("document.getElementById('action').focus()")
        page.click("#suggestions button:nth-child(2)")  # the expert plays to the end
        page.wait("document.getElementById('state').innerText.startsWith('solved')")
        assert page.evaluate(focused) == "Another game"


def test_two_windows_play_one_game(browser: Browser, url: str):
    state = "document.getElementById('state').innerText === 'step {}'"
    with browser.page() as one, browser.page() as other:
        for page in (one, other):
            page.open(url)
            page.wait(state.format(1))
        one.click("#choices button")
        one.wait(state.format(2))
        other.click("#choices button:last-child")  # it is told of the move, and shows the game as it is
        other.wait(state.format(2))
        assert other.text("#refused") == "Another window has played: this is the game now."
        other.click("#choices button")
        other.wait(state.format(3))
        assert other.text("#refused") == ""


def test_what_the_agent_is_not_shown_is_marked(browser: Browser, new_game, played, tmp_path: Path):
    """Sentences that list objects, where only the frame tells them; and frames that are black for the agent."""
    game = new_game()
    game.tell_objects, game.blank_frames = False, True
    server = PageServer("127.0.0.1", 0).start()
    server.mount(PlayPages(lambda: game))
    played.tell_objects, played.blank_frames = False, True
    recording = write_recording(tmp_path / "episode.html", played)
    told = next(at for at, move in enumerate(played.moves) if at and ", you see a " in move.moment.heard)
    with browser.page() as page:
        page.open(f"http://127.0.0.1:{server.port}/")
        page.wait("document.getElementById('frame').className === 'unseen'")
        assert not page.evaluate("document.querySelectorAll('.untold').length")  # receptacles are told
        while not (heard := page.text("#heard")).count(", you see a ") or "room" in heard:
            before = page.text("#state")
            page.click("#suggestions button")
            page.wait(f"document.getElementById('state').innerText !== {before!r}")
        marked = page.text("#heard .untold")
        assert marked.startswith(("On the ", "In it, ")) and heard.startswith("You ") and heard.endswith(marked)
        assert page.text("#history .untold") == marked and "black frames" in page.text("#notice")
        assert page.errors() == []
        page.open(recording.as_uri())
        page.wait("document.getElementById('replay-frame').className === 'unseen'")
        for _ in range(told):
            page.click("#replay-on")
        assert page.text("#replay-heard .untold").startswith(("On the ", "In it, "))
        assert "not shown to it" in page.text("#replay-notice") and page.errors() == []
    server.stop()


def test_a_recording_is_replayed_from_a_file(browser: Browser, played, tmp_path: Path):
    played.moves[0] = dataclasses.replace(played.moves[0], feedback=ATTACK)
    path = write_recording(tmp_path / "episode.html", played)
    with browser.page() as page:
        page.open(path.as_uri())
        page.wait("document.getElementById('replay-frame').naturalWidth === 448")
        steps = len(played.moves) + 1
        assert page.text("#replay-count") == f"Step 1 of {steps}" and "solved" in page.text("#replay-facts")
        assert page.text("#replay-feedback") == f"→ {ATTACK}" and page.evaluate("document.title") == "EMAC+ episode"
        assert page.text("#replay-verdict") == "✗ differs, the agent's is executed"
        page.evaluate("document.getElementById('replay-step').focus()")
        first = page.evaluate("document.getElementById('replay-frame').src")
        page.press("End")
        assert page.text("#replay-count") == f"Step {steps} of {steps}"
        assert page.evaluate("document.getElementById('replay-frame').src") != first
        page.press("ArrowLeft")
        assert played.moves[-1].action in page.text("#replay-said")
        assert page.errors() == []


def test_it_fits_a_phone(browser: Browser, url: str, played, tmp_path: Path):
    with browser.page(width=360) as page:
        for address in (url, write_recording(tmp_path / "episode.html", played).as_uri()):
            page.open(address)
            page.wait("[...document.images].some((image) => image.naturalWidth === 448)")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize(("width", "dark"), [(1200, True), (360, False)], ids=["desktop, dark", "phone, light"])
def test_names_and_contrast(browser: Browser, url: str, axe: str, played, tmp_path: Path, width: int, dark: bool):
    with browser.page(width=width, dark=dark) as page:
        for address in (url, write_recording(tmp_path / "episode.html", played).as_uri()):
            page.open(address)
            page.wait("[...document.images].some((image) => image.naturalWidth === 448)")
            assert violations(page, axe) == []


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_script(tmp_path_factory.mktemp("axe"))
