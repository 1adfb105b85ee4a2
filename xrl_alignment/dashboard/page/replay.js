// A finished episode, step by step.
import { get } from "./connection.js";
import { byId, fillTerms, gameName, make, saidPairs, setText, showVerdict } from "./elements.js";

const PLAY_MS = 700;
let episode = null, at = 0, timer = 0, frames = [], opened = 0;

export async function openEpisode(round, env) {
  const mine = ++opened;
  close(false);
  byId("replay").hidden = false;
  setText(byId("replay-title"), `Replay of game ${env + 1}, round ${round + 1}`);
  setText(byId("replay-notice"), "");
  try {
    const found = await (await get(`/episodes/${round}/${env}`)).json();
    if (mine === opened) show(found);
  } catch (error) {
    if (error.status === 401) return void (byId("replay").hidden = true); // the page asks for a token, and then opens the link again
    if (mine === opened) setText(byId("replay-notice"), `This episode cannot be shown: ${error.message}`);
  }
  byId("replay").scrollIntoView({ block: "start" });
  byId(episode ? "replay-step" : "replay-title").focus({ preventScroll: true });
  history.replaceState(null, "", `#episode=${round}/${env}`);
}

function show(found) {
  episode = found;
  at = 0;
  setText(byId("replay-title"), `${gameName(found.game, found.env)}, round ${found.round + 1}`);
  const end = found.won ? (found.assisted ? "won with the expert's help" : "solved by the agent") : "failed";
  const facts = [end];
  if (typeof found.actions === "number") facts.push(`${found.actions} actions`);
  if (typeof found.seconds === "number") facts.push(`${found.seconds.toFixed(1)} s`);
  setText(byId("replay-facts"), facts.join(" · "));
  setText(byId("replay-notice"), found.notice);
  const slider = byId("replay-step");
  slider.max = Math.max(1, found.steps.length);
  slider.disabled = found.steps.length < 2;
  byId("replay-all").replaceChildren(...found.steps.map((step) =>
    make("li", {}, make("b", { text: step.executed }), ` ${step.feedback}`)));
  showStep(0);
  loadFrames(opened);
}

function showStep(wanted) {
  if (!episode) return;
  at = Math.max(0, Math.min(wanted, episode.steps.length - 1));
  const step = episode.steps[at];
  const slider = byId("replay-step");
  slider.value = at + 1;
  slider.setAttribute("aria-valuetext", step ? `step ${at + 1}: ${step.executed}` : "no steps");
  setText(byId("replay-count"), `Step ${step ? at + 1 : 0} of ${episode.steps.length}`);
  setText(byId("replay-heard"), step ? step.heard : episode.opening);
  fillTerms(byId("replay-said"), step ? saidPairs(step) : []);
  showVerdict(byId("replay-verdict"), step || { agent: null, expert: null });
  setText(byId("replay-feedback"), step ? `→ ${step.feedback}` : "");
  showFrame();
  if (at >= episode.steps.length - 1) pause();
}

function showFrame() {
  const image = byId("replay-frame");
  image.hidden = !frames[at];
  if (!frames[at]) return;
  if (image.src !== frames[at]) image.src = frames[at];
  image.alt = `Frame of step ${at + 1}`;
}

// The frames in their order, the one that is looked at first; each is asked for once.
async function loadFrames(mine) {
  const left = new Set(Array.from({ length: Math.min(episode.frames, episode.steps.length) }, (_, number) => number));
  while (left.size && mine === opened) {
    const number = left.has(at) ? at : Math.min(...left);
    left.delete(number);
    try {
      const blob = await (await get(`/frames/${episode.round}/${episode.env}/${number}`)).blob();
      if (mine !== opened) return;
      frames[number] = URL.createObjectURL(blob);
      if (number === at) showFrame();
    } catch (error) {
      if (mine === opened) setText(byId("replay-notice"), `Frames are missing: ${error.message}`);
      return;
    }
  }
}

function pause() {
  clearInterval(timer);
  timer = 0;
  setText(byId("replay-play"), "Play");
}

function togglePlay() {
  if (timer) return pause();
  if (at >= episode.steps.length - 1) showStep(0);
  timer = setInterval(() => showStep(at + 1), PLAY_MS);
  setText(byId("replay-play"), "Pause");
}

function close(hide = true) {
  pause();
  frames.forEach((url) => URL.revokeObjectURL(url));
  [episode, frames] = [null, []];
  byId("replay-frame").hidden = true;
  byId("replay-all").replaceChildren();
  fillTerms(byId("replay-said"), []);
  for (const part of ["facts", "heard", "feedback"]) setText(byId(`replay-${part}`), "");
  if (hide) {
    opened++;
    byId("replay").hidden = true;
    history.replaceState(null, "", location.pathname);
  }
}

const KEYS = {
  ArrowLeft: () => showStep(at - 1),
  ArrowRight: () => showStep(at + 1),
  Home: () => showStep(0),
  End: () => showStep(episode.steps.length - 1),
  " ": togglePlay,
};

byId("replay").addEventListener("keydown", (event) => {
  const plain = !(event.ctrlKey || event.altKey || event.metaKey);
  const own = event.key === " " && event.target.closest("button, summary");
  if (!episode || !plain || own || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
byId("replay-step").addEventListener("input", (event) => showStep(Number(event.target.value) - 1));
byId("replay-back").addEventListener("click", () => showStep(at - 1));
byId("replay-on").addEventListener("click", () => showStep(at + 1));
byId("replay-play").addEventListener("click", () => episode && togglePlay());
byId("replay-close").addEventListener("click", () => close());
