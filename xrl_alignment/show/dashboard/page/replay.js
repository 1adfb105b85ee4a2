// A finished episode of the run, shown step by step.
import { get } from "./connection.js";
import { byId, gameName, setText } from "./elements.js";
import { clearEpisode, showEpisode, showFrame, stepNow } from "./player.js";

let frames = [], opened = 0;

export async function openEpisode(round, env) {
  const mine = ++opened;
  close(false);
  byId("replay").hidden = false;
  setText(byId("replay-title"), `Replay of game ${env + 1}, round ${round + 1}`);
  setText(byId("replay-notice"), "");
  let found = null;
  try {
    found = await (await get(`/episodes/${round}/${env}`)).json();
    if (mine === opened) show(found, mine);
  } catch (error) {
    if (mine === opened && error.status === 401) return void (byId("replay").hidden = true); // the page asks for a token, and then opens the link again
    if (mine === opened) setText(byId("replay-notice"), `This episode cannot be shown: ${error.message}`);
  }
  if (mine !== opened) return; // meanwhile another one was opened, or this one closed
  byId("replay").scrollIntoView({ block: "start" });
  byId(found ? "replay-step" : "replay-title").focus({ preventScroll: true });
  history.replaceState(null, "", `#episode=${round}/${env}`);
}

function show(found, mine) {
  const end = found.won ? (found.assisted ? "won with the expert's help" : "solved by the agent") : "failed";
  const facts = [end];
  if (typeof found.actions === "number") facts.push(`${found.actions} actions`);
  if (typeof found.seconds === "number") facts.push(`${found.seconds.toFixed(1)} s`);
  showEpisode(found, `${gameName(found.game, found.env)}, round ${found.round + 1}`, facts.join(" · "), (step) => frames[step]);
  loadFrames(found, mine);
}

// The frames in their order, the one that is looked at first; each is asked for once.
async function loadFrames({ round, env, frames: stored, steps }, mine) {
  const left = new Set(Array.from({ length: Math.min(stored, steps.length) }, (_, number) => number));
  while (left.size && mine === opened) {
    const number = left.has(stepNow()) ? stepNow() : Math.min(...left);
    left.delete(number);
    try {
      const blob = await (await get(`/frames/${round}/${env}/${number}`)).blob();
      if (mine !== opened) return;
      frames[number] = URL.createObjectURL(blob);
      if (number === stepNow()) showFrame();
    } catch (error) {
      if (mine === opened) setText(byId("replay-notice"), `Frames are missing: ${error.message}`);
      return;
    }
  }
}

function close(hide = true) {
  clearEpisode();
  frames.forEach((url) => URL.revokeObjectURL(url));
  frames = [];
  if (hide) {
    opened++;
    byId("replay").hidden = true;
    history.replaceState(null, "", location.pathname);
  }
}

byId("replay-close").addEventListener("click", () => close());
