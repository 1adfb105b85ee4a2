// A game that you play; an expert's and a policy's suggestions beside it.
import { get, send } from "/dashboard/connection.js";
import { byId, gameName, historyItem, make, setText, setTold, showVerdict, taskOf } from "/dashboard/elements.js";

const WATCH_MS = 1000;
let game = null, timer = 0, busy = false;

function show(state) {
  game = state;
  const at = game.steps.length - 1, { now } = game, before = game.steps[at - 1];
  document.title = `${gameName(game.game, 0).slice(3)}: EMAC+ play`;
  setText(byId("task"), taskOf(game.opening));
  setText(byId("last"), before ? `> ${before.executed}` : "");
  showVerdict(byId("verdict"), before || { agent: null, expert: null });
  const heard = at ? now.heard : game.opening.replace(taskOf(game.opening), "").trim(); // the task stands above
  setTold(byId("heard"), heard, game.untold);
  setText(byId("notice"), game.notice);
  setText(byId("thought"), now.thought);
  const image = byId("frame");
  image.src = `/frames/${at}?game=${game.number}`;
  image.classList.toggle("unseen", game.unseen);
  image.alt = `Frame of step ${at + 1}${game.unseen ? ", not shown to the agent" : ""}`;
  image.hidden = false;
  const end = game.won ? `solved in ${game.actions} steps` : game.over ? "not solved" : `step ${at + 1}`;
  byId("state").className = `state ${game.won ? "live" : game.over ? "lost" : ""}`;
  setText(byId("state"), end);
  const focused = focusedControl();
  byId("move").hidden = game.over;
  byId("commands").replaceChildren(...now.commands.map((value) => make("option", { value })));
  byId("choices").replaceChildren(...(game.over ? [] : now.commands.map((text) => choice(text, () => move({ action: text })))));
  byId("suggestions").replaceChildren(...(game.over ? [] : Object.entries(now.suggestions).flatMap(suggestion)));
  byId("history").replaceChildren(...game.steps.slice(0, -1).map((step) => historyItem([step.executed, step.feedback], game.untold)));
  byId("history").scrollTop = byId("history").scrollHeight; // the list alone: the page stays where it is
  if (game.over) watch(null);
  focusAgain(focused);
}

// The group of the control that has the focus, and its place among the group's buttons; null if it is elsewhere.
function focusedControl() {
  const control = document.activeElement, group = control.closest("#move, #suggestions, #choices");
  return group && [group, [...group.querySelectorAll("button")].indexOf(control)];
}

// Buttons are made anew with each move: the one in the same place gets the focus, so that the keyboard goes on there.
function focusAgain(focused) {
  if (!focused) return;
  const [group, at] = focused, buttons = group.querySelectorAll("button");
  const control = game.over ? byId("new") : buttons[Math.min(at, buttons.length - 1)] || byId("action");
  control.focus({ preventScroll: true });
}

function choice(text, chosen) {
  const button = make("button", { text, type: "button" });
  button.addEventListener("click", chosen);
  return button;
}

function suggestion([player, action]) {
  const playing = timer && byId("suggestions").dataset.player === player;
  return [
    choice(`${player}: ${action ?? "no suggestion"}`, () => move({ player })),
    choice(playing ? `Stop the ${player}` : `Let the ${player} play`, () => watch(playing ? null : player)),
  ];
}

// Let a player play by itself; null: nobody.
function watch(player) {
  clearInterval(timer);
  timer = player ? setInterval(() => move({ player }, true), WATCH_MS) : 0;
  byId("suggestions").dataset.player = player || "";
  if (player) return void move({ player }, true);
  if (game.over) return;
  const focused = focusedControl();
  byId("suggestions").replaceChildren(...Object.entries(game.now.suggestions).flatMap(suggestion));
  focusAgain(focused);
}

async function move(wanted, watched = false) {
  if (busy) return;
  if (!watched && timer) watch(null);
  await ask("/move", { game: game.number, step: game.steps.length - 1, ...wanted });
}

async function ask(path, content) {
  busy = true;
  try {
    show(await (await send(path, content)).json());
    setText(byId("refused"), "");
  } catch (error) {
    clearInterval(timer);
    timer = 0;
    setText(byId("refused"), error.message);
    if (error.status === 409) {
      // Another window has moved, or begun another game: the next move here is one in the game as it is now.
      show(await (await get("/state")).json());
      setText(byId("refused"), "Another window has played: this is the game now.");
    }
  } finally {
    busy = false;
  }
}

byId("move").addEventListener("submit", (event) => {
  event.preventDefault();
  const action = byId("action").value.trim();
  byId("action").value = "";
  if (action) move({ action });
});
byId("new").addEventListener("click", () => { if (timer) watch(null); ask("/new", {}); });
show(await (await get("/state")).json());
byId("action").focus();
