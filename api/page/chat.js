// The chat box: one conversation, streamed, with thinking apart from the answer.
import { events } from "/page/http.js";
import { make } from "/page/view.js";

const $ = (id) => document.getElementById(id);
const turns = [];
let running = null;
let image = null;
let models = new Map();

export function setModels(ready) {
  models = new Map(ready.map((model) => [model.id, model]));
  const select = $("chat-model");
  const ids = [...models.keys()];
  if (ids.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...ids.map((id) => make("option", { value: id }, id)));
    if (ids.includes(chosen)) select.value = chosen;
  }
  refresh();
}

function refresh() {
  const model = models.get($("chat-model").value);
  $("chat-model").disabled = models.size === 0;
  $("send").disabled = !model || running !== null;
  $("stop").hidden = running === null;
  $("think-label").hidden = !model?.reasoning;
  $("image-place").hidden = !model?.capabilities.includes("vision");
  if (turns.length === 0 && running === null) {
    const text = model ? `Ask ${model.id} something.` : "No model is loaded. Load one on the left to talk to it.";
    if ($("conversation").textContent !== text) $("conversation").replaceChildren(make("p", { class: "empty quiet" }, text));
  }
}

function add(element) {
  const log = $("conversation");
  log.querySelector(".empty")?.remove();
  log.append(element);
  log.scrollTop = log.scrollHeight;
}

function follow() {
  const log = $("conversation");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
}

// One answer on the page: a thinking part that folds away when the answer begins, the text, and its figures.
class Answer {
  constructor() {
    this.summary = make("summary", {}, "Thinking…");
    this.thought = make("span");
    this.details = make("details", { open: true, hidden: true }, this.summary, this.thought);
    this.text = make("span", { class: "text" });
    this.note = make("span", { class: "note" }, "waiting…");
    this.element = make("div", { class: "turn assistant" }, this.details, this.text, this.note);
    this.content = "";
    this.thinkingSince = 0;
  }

  take(event) {
    for (const choice of event.choices ?? []) {
      const delta = choice.delta ?? {};
      if (delta.reasoning_content) this.think(delta.reasoning_content);
      if (delta.content) this.say(delta.content);
    }
    const timings = event.timings;
    if (timings) this.note.textContent = `${timings.prompt_n} tokens in, ${timings.predicted_n} out at ${timings.predicted_per_second.toFixed(1)} tokens/s`;
  }

  think(text) {
    if (this.details.hidden) this.thinkingSince = performance.now();
    this.details.hidden = false;
    this.note.textContent = "";
    this.thought.append(text);
  }

  say(text) {
    if (this.content === "") {
      this.note.textContent = "";
      this.fold();
      text = text.trimStart();
    }
    this.content += text;
    this.text.append(text);
  }

  fold() {
    if (this.details.hidden || this.summary.textContent !== "Thinking…") return;
    this.summary.textContent = `Thought for ${((performance.now() - this.thinkingSince) / 1000).toFixed(1)} s`;
    this.details.open = false;
  }
}

function body(model) {
  const request = { model: model.id, messages: turns, stream: true };
  if (model.reasoning) request.chat_template_kwargs = { enable_thinking: $("think").checked };
  return request;
}

function userTurn(text) {
  const bubble = make("div", { class: "turn user" });
  if (image) bubble.append(make("img", { src: image, alt: "Attached image" }));
  bubble.append(text);
  const content = image ? [{ type: "image_url", image_url: { url: image } }, { type: "text", text }] : text;
  return [bubble, { role: "user", content }];
}

export async function ask(text) {
  const model = models.get($("chat-model").value);
  if (!model || running !== null || !text.trim()) return;
  const [bubble, turn] = userTurn(text);
  add(bubble);
  turns.push(turn);
  attach(null, "");
  const answer = new Answer();
  add(answer.element);
  running = new AbortController();
  refresh();
  try {
    for await (const event of events("/v1/chat/completions", body(model), running.signal)) {
      answer.take(event);
      follow();
    }
  } catch (error) {
    if (error.name !== "AbortError") answer.element.append(make("p", { class: "problem" }, error.message));
    else answer.note.textContent = "stopped";
    if (answer.note.textContent === "waiting…") answer.note.textContent = "";
  }
  answer.fold();
  if (answer.content) turns.push({ role: "assistant", content: answer.content });
  else turns.pop();
  running = null;
  refresh();
  follow();
}

function attach(url, name) {
  image = url;
  $("image").value = "";
  $("attached").textContent = name;
}

export function start() {
  const prompt = $("prompt");
  const send = () => {
    if ($("send").disabled || !prompt.value.trim()) return;
    ask(prompt.value);
    prompt.value = "";
  };
  $("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("clear").addEventListener("click", () => {
    running?.abort();
    turns.length = 0;
    $("conversation").replaceChildren();
    refresh();
    prompt.focus();
  });
  $("chat-model").addEventListener("change", refresh);
  $("image").addEventListener("change", () => {
    const file = $("image").files[0];
    if (!file) return;
    const reader = new FileReader();
    reader.onload = () => attach(reader.result, file.name);
    reader.readAsDataURL(file);
  });
  refresh();
}
