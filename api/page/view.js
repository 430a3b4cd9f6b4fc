// From the daemon's facts to elements. Text only ever becomes text nodes.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") element.addEventListener("click", value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const TONE = {
  ok: "good", ready: "good", loaded: "good", idle: "", degraded: "warn", loading: "warn", recovering: "warn", starting: "warn",
  draining: "warn", unloading: "warn", pre_warming: "warn", poisoned: "bad", failed: "bad", dead: "bad", lost: "bad",
};
export const tone = (state) => TONE[state] ?? "";
const badge = (state) => make("span", { class: `badge ${tone(state)}` }, state);
const fact = (name, value) => make("span", {}, `${name} `, make("b", {}, String(value)));

export function bytes(megabytes) {
  return megabytes >= 1024 ? `${(megabytes / 1024).toFixed(1)} GiB` : `${megabytes} MiB`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 10000 ? `${(value / 1000).toFixed(0)} s` : value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${Math.round(value)} ms`;
}

export function duration(seconds) {
  const days = Math.floor(seconds / 86400), hours = Math.floor(seconds / 3600) % 24, minutes = Math.floor(seconds / 60) % 60;
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

export function deviceCard(device) {
  const total = device.vram_total_mb;
  const text = total ? `${bytes(device.vram_used_mb)} of ${bytes(total)} in use` : "memory unknown";
  return make("article", { class: "card" },
    make("div", { class: "card-head" }, make("strong", {}, device.id), badge(device.state), make("span", { class: "quiet" }, device.name)),
    total ? make("meter", { min: 0, max: total, value: device.vram_used_mb, high: total * 0.9, optimum: 0, "aria-label": `${device.id}: ${text}` }) : null,
    make("div", { class: "facts" }, make("span", {}, text),
      device.utilization_pct ? fact("busy", `${device.utilization_pct} %`) : null,
      device.temp_c ? fact("at", `${device.temp_c} °C`) : null,
      device.pid ? fact("process", device.pid) : null));
}

export function modelCard(model, load, onLoad, onUnload) {
  const facts = [];
  if (model.architecture) facts.push(fact(model.architecture, model.quant ?? model.format));
  if (model.context_length) facts.push(fact("context", model.context_length.toLocaleString("en")));
  if (model.vram_used_mb) facts.push(fact("holds", bytes(model.vram_used_mb)));
  if (model.device_ids.length) facts.push(fact("on", model.device_ids.join(", ")));
  if (load) {
    facts.push(fact("waiting", `${load.queue_depth} of ${load.max_queue_depth}`));
    if (load.active_request_id) facts.push(fact("busy for", milliseconds(load.active_for_s * 1000)));
    if (load.tok_s_decode) facts.push(fact("decode", `${load.tok_s_decode.toFixed(1)} tokens/s`));
  }
  const resident = ["ready", "loading", "recovering", "poisoned"].includes(model.state);
  return make("article", { class: "card", "data-model": model.id },
    make("div", { class: "card-head" }, make("strong", {}, model.id), badge(model.state), make("span", { class: "grow" }),
      model.state === "poisoned" || model.state === "failed"
        ? make("button", { type: "button", "data-act": "load", "aria-label": `Load ${model.id} anew`, onclick: () => onLoad(model.source_id) }, "Load anew") : null,
      resident ? make("button", { type: "button", class: "plain", "data-act": "unload", "aria-label": `Unload ${model.id}`, onclick: () => onUnload(model.id) }, "Unload") : null),
    make("div", { class: "facts" }, ...facts),
    model.reason ? make("p", { class: "problem" }, model.reason) : null);
}

// The client went away: nothing of ours failed.
const LEFT = ["client_disconnected", "slow_client"];

export function requestRow(record) {
  const running = record.outcome === "running";
  const good = ["stop", "length", "tool_calls"].includes(record.outcome);
  const place = running ? record.phase : record.outcome;
  return make("tr", {},
    make("td", { title: `${record.req_id} on ${record.model}` }, record.req_id),
    make("td", { class: running ? "warn" : good ? "good" : LEFT.includes(record.outcome) ? "" : "bad" }, place),
    make("td", { class: "number" }, String(record.tokens_in)),
    make("td", { class: "number" }, String(record.tokens_out)),
    make("td", { class: "number" }, milliseconds(record.ttft_ms)),
    make("td", { class: "number" }, milliseconds(record.total_ms)),
    make("td", { class: "number" }, record.tok_s_decode ? record.tok_s_decode.toFixed(1) : "–"));
}

// Replaces children only where they differ, so that focus and screen readers are left in peace.
export function show(parent, children) {
  const focused = document.activeElement;
  const anchor = parent.contains(focused) ? [focused.closest("[data-model]")?.dataset.model, focused.dataset.act] : null;
  children.forEach((child, index) => {
    const old = parent.children[index];
    if (!old) parent.append(child);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
  if (anchor && anchor[0] && !parent.contains(document.activeElement)) {
    const card = [...parent.children].find((child) => child.dataset.model === anchor[0]);
    card?.querySelector(`[data-act="${anchor[1]}"]`)?.focus();
  }
}
