// Polls the daemon's cached facts once a second and wires the page's controls.
import { ApiError, events, getJson, key, postJson, setKey } from "/page/http.js";
import * as chat from "/page/chat.js";
import { deviceCard, duration, make, modelCard, requestRow, show, tone } from "/page/view.js";

const POLL_MS = 1000;
const $ = (id) => document.getElementById(id);
let askedForKey = false;

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function overall(state) {
  $("overall").textContent = state;
  $("overall").className = `badge ${tone(state)}`;
}

function activation(facts) {
  const parts = [];
  if (facts.in_progress) parts.push(`loading ${facts.in_progress}`);
  if (facts.pending.length) parts.push(`next: ${facts.pending.join(", ")}`);
  for (const failure of facts.failed) parts.push(`${failure.model_id} could not be loaded: ${failure.error}`);
  const text = parts.join("; ");
  if ($("activation").textContent !== text) $("activation").textContent = text;
}

async function refresh() {
  const [health, models, requests] = await Promise.all(["/health", "/models?all=true", "/requests"].map(getJson));
  overall(health.status);
  $("host").textContent = `${location.host}, version ${health.version}, up ${duration(health.uptime_secs)}`;
  activation(health.activation);
  show($("devices"), health.devices.map(deviceCard));
  const loads = new Map(health.models.map((load) => [load.id, load]));
  const cards = models.map((model) => modelCard(model, loads.get(model.id), load, unload));
  show($("models"), cards.length ? cards : [make("p", { class: "quiet" }, "No model is loaded.")]);
  const rows = requests.requests.slice(0, 20).map(requestRow);
  show($("requests"), rows.length ? rows : [make("tr", {}, make("td", { colspan: 7, class: "quiet" }, "None yet."))]);
  chat.setModels(models.filter((model) => model.state === "ready"));
  notice("");
}

function failed(error) {
  if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
    notice(error.message);
    if (!askedForKey) openKeyDialog();
    return;
  }
  if (!(error instanceof ApiError)) overall("lost");
  notice(error instanceof ApiError ? `${error.message} ${error.suggestion}` : "The daemon does not answer.");
}

async function poll() {
  if (!document.hidden && !$("key-dialog").open) await refresh().catch(failed);
  setTimeout(poll, POLL_MS);
}

function openKeyDialog() {
  askedForKey = true;
  $("key").value = key();
  $("key-dialog").showModal();
}

async function load(modelId) {
  const place = $("load-progress");
  const bar = make("progress", { max: 1, value: 0, "aria-label": `Loading ${modelId}` });
  const text = make("p", { class: "quiet" }, `loading ${modelId}`);
  place.replaceChildren(bar, text);
  try {
    for await (const step of events("/models/load?stream=true", { model_id: modelId })) {
      if (step.stage) {
        bar.value = step.fraction;
        text.textContent = `${modelId}: ${step.stage}, ${Math.round(step.fraction * 100)} %`;
      } else {
        place.replaceChildren(make("p", { class: "quiet" }, `${modelId} is ${step.status}.`));
      }
    }
  } catch (error) {
    place.replaceChildren(make("p", { class: "problem" }, `${error.message} ${error.suggestion ?? ""}`));
  }
  await refresh().catch(failed);
}

async function unload(modelId) {
  try {
    await postJson("/models/unload", { model_id: modelId });
    await refresh();
  } catch (error) {
    $("load-progress").replaceChildren(make("p", { class: "problem" }, error.message));
  }
}

$("load-form").addEventListener("submit", (event) => {
  event.preventDefault();
  load($("load-id").value.trim());
});
$("key-button").addEventListener("click", openKeyDialog);
$("key-cancel").addEventListener("click", () => $("key-dialog").close("cancel"));
$("key-dialog").addEventListener("close", () => {
  if ($("key-dialog").returnValue === "save") setKey($("key").value.trim());
  refresh().catch(failed);
});
chat.start();
poll();
