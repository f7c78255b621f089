// Requests to the node. The token lives in this tab only (sessionStorage) and in no URL.

const TOKEN = "goq-token";
const listeners = new Set();

export const connection = { isUp: true, needsToken: false, reason: "" };

export function onConnection(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function setConnection(change) {
  const before = JSON.stringify(connection);
  Object.assign(connection, change);
  if (JSON.stringify(connection) !== before) listeners.forEach((listener) => listener());
}

export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function setToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
  setConnection({ needsToken: false, reason: "" });
}

/** A refusal of the node, as its problem document says it. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `the node answered ${status}`);
    this.status = status;
    this.code = document.code ?? "";
    this.field = document.field ?? "";
  }
}

/** The node did not answer at all. */
export class NoAnswer extends Error {
  constructor() {
    super("The node does not answer.");
  }
}

async function send(method, path, body, signal) {
  const headers = {};
  const held = token();
  if (held) headers.Authorization = `Bearer ${held}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, body: sent, signal, cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    setConnection({ isUp: false });
    throw new NoAnswer();
  }
  setConnection({ isUp: true });
  return answer;
}

async function problem(answer) {
  let document = {};
  try {
    document = await answer.json();
  } catch {
    // not a problem document: a proxy answered
  }
  if (answer.status === 401) setConnection({ needsToken: true, reason: document.detail ?? "" });
  return new Problem(answer.status, document);
}

/** Returns the JSON of an answer, null for an empty one; throws Problem or NoAnswer. */
export async function call(method, path, body, signal) {
  const answer = await send(method, path, body, signal);
  if (!answer.ok) throw await problem(answer);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

export const get = (path, signal) => call("GET", path, undefined, signal);

/** Health is 503 with a document when something is wrong: both are answers. */
export async function health(signal) {
  const answer = await send("GET", "/healthz", undefined, signal);
  return answer.json();
}

/** Calls onLine with each line of a stream until it ends; throws as call does. */
export async function lines(path, onLine, signal) {
  const answer = await send("GET", path, undefined, signal);
  if (!answer.ok) throw await problem(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (signal?.aborted) throw error;
      setConnection({ isUp: false });
      throw new NoAnswer();
    });
    if (done) return;
    const found = (rest + value).split("\n");
    rest = found.pop();
    for (const line of found) if (line.trim()) onLine(JSON.parse(line));
  }
}

export const part = encodeURIComponent;
export const topicPath = (topic) => `/v1/topics/${part(topic)}`;
export const groupPath = (topic, group) => `${topicPath(topic)}/groups/${part(group)}`;
export const messagePath = (id) => `/v1/messages/${part(id)}`;

const EMPTY_ASKS = ["reason_is"]; // empty, it asks for what has none

/** The path with the fields that are given; an empty text is none, but where the API asks for it. */
export function query(path, fields) {
  const given = Object.entries(fields).filter(([name, value]) => value != null && (value !== "" || EMPTY_ASKS.includes(name)));
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}
