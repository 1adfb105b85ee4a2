// Shows the last steps. Their texts come from models and clients, so the page inserts them as text nodes only.
"use strict";

const EVERY_MS = 1000;
const byId = (id) => document.getElementById(id);
let key = "";

function actionText(action) {
  if (typeof action.command === "string") return action.command;
  const pressed = Object.keys(action).filter((name) => name !== "camera" && action[name]);
  const [pitch, yaw] = action.camera || [0, 0];
  if (pitch || yaw) pressed.push(`camera ${pitch}°, ${yaw}°`);
  return pressed.join(" + ") || "nothing";
}

function stepElement(step) {
  const element = byId("step").content.cloneNode(true);
  const set = (selector, text) => { element.querySelector(selector).textContent = text; };
  element.querySelector("img").src = step.image;
  set("h2", `${step.task}, step ${step.step}`);
  set(".action", actionText(step.action));
  set(".reasoning", step.reasoning);
  const facts = [new Date(1000 * step.when).toLocaleTimeString(), step.model, `${step.milliseconds} ms`];
  if (step.cached) facts.push("from the cache");
  if (step.session) facts.push(`session ${step.session}`);
  set(".facts", facts.join(" · "));
  return element;
}

async function refresh() {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const [health, recent] = await Promise.all([fetch("/health"), fetch("/ui/recent", { headers })]);
  const state = await health.json();
  byId("health").textContent = `${state.status} · ${state.model} on ${state.device || "no device"}`;
  byId("access").hidden = recent.status !== 401;
  const steps = recent.ok ? await recent.json() : [];
  const none = Object.assign(document.createElement("p"), { textContent: "No steps yet." });
  byId("steps").replaceChildren(...(steps.length ? steps.map(stepElement) : [none]));
}

async function refreshAlways() {
  try {
    await refresh();
  } catch (error) {
    byId("health").textContent = `no answer from the server (${error.message})`;
  }
  setTimeout(refreshAlways, EVERY_MS);
}

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
});
refreshAlways();
