// Calls to the daemon that served this page. The key lives in this tab's session storage.
const KEY = "neuron-key";

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error?.message ?? `The daemon answered ${status}.`);
    this.status = status;
    this.suggestion = body?.error?.suggestion ?? "";
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";
export const setKey = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));

async function call(path, body, signal) {
  const headers = key() ? { authorization: `Bearer ${key()}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  return response;
}

export const getJson = async (path) => (await call(path)).json();
export const postJson = async (path, body) => (await call(path, body)).json();

// The data objects of a server-sent stream; an error event throws.
export async function* events(path, body, signal) {
  const response = await call(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(200, event);
      yield event;
    }
  }
}
