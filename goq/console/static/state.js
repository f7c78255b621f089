// State that pages share: the route in the hash, data that stays fresh while somebody looks.

import { useEffect, useRef, useState } from "./vendor/preact.js";
import { NoAnswer, lines, onConnection } from "./api.js";

// Routes. Hashes hold names and ids only.

export const links = {
  overview: () => "#/",
  topics: () => "#/topics",
  topic: (topic) => `#/t/${encodeURIComponent(topic)}`,
  messages: (topic) => `${links.topic(topic)}/messages`,
  dead: (topic) => `${links.topic(topic)}/dead`,
  scheduled: (topic) => `${links.topic(topic)}/scheduled`,
  group: (topic, group) => `${links.topic(topic)}/g/${encodeURIComponent(group)}`,
  message: (id) => `#/m/${encodeURIComponent(id)}`,
  cluster: () => "#/cluster",
  metrics: () => "#/metrics",
};

const TOPIC_PAGES = ["messages", "dead", "scheduled"];

export function parseHash(hash) {
  let parts;
  try {
    parts = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return { page: "unknown" };
  }
  const [head, name, tab, group] = parts;
  if (head === "") return { page: "overview" };
  if (["topics", "cluster", "metrics"].includes(head) && parts.length === 1) return { page: head };
  if (head === "m" && name && parts.length === 2) return { page: "message", id: name };
  if (head !== "t" || !name) return { page: "unknown" };
  if (parts.length === 2) return { page: "topic", topic: name };
  if (parts.length === 3 && TOPIC_PAGES.includes(tab)) return { page: tab, topic: name };
  if (parts.length === 4 && tab === "g" && group) return { page: "group", topic: name, group };
  return { page: "unknown" };
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return { ...parseHash(hash), hash };
}

/** Rerenders when the node goes away, comes back, or asks for a token. */
export function useConnection() {
  const [, setCount] = useState(0);
  useEffect(() => onConnection(() => setCount((n) => n + 1)), []);
}

const RETRY_MS = 1000;
const TYPED_MS = 250;

/**
 * Loads now and again every periodMs while the tab is visible; a hidden tab asks for nothing. periodMs may be made of
 * the data: what is large is asked for less often.
 * Returns { data, error, reload }. Data of other dependencies is dropped, an error keeps old data.
 */
export function useData(load, dependencies, periodMs) {
  const [state, setState] = useState({ data: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    const aborter = new AbortController();
    let timer = 0;
    let isLoading = false;
    let isWanted = false;
    setState({ data: null, error: null });
    async function run() {
      clearTimeout(timer);
      if (document.hidden) return;
      if (isLoading) {
        isWanted = true;
        return;
      }
      isLoading = true;
      let pauseMs = typeof periodMs === "function" ? RETRY_MS : periodMs;
      try {
        const data = await load(aborter.signal);
        if (typeof periodMs === "function") pauseMs = periodMs(data);
        if (!aborter.signal.aborted) setState({ data, error: null });
      } catch (error) {
        if (aborter.signal.aborted) return;
        if (error instanceof NoAnswer) pauseMs = RETRY_MS;
        setState((before) => ({ data: before.data, error }));
      }
      isLoading = false;
      if (isWanted) pauseMs = 0;
      isWanted = false;
      if (pauseMs !== undefined && !aborter.signal.aborted) timer = setTimeout(run, pauseMs);
    }
    again.current = run;
    document.addEventListener("visibilitychange", run);
    run();
    return () => {
      aborter.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", run);
    };
  }, dependencies);
  return { ...state, reload: () => again.current() };
}

/** Reads a live stream while the tab is visible, and begins again when it ends; onBegin is called then. */
export function useLines(path, onLine, onBegin) {
  const [error, setError] = useState(null);
  const handler = useRef(onLine);
  handler.current = onLine;
  useEffect(() => {
    let aborter = null;
    let timer = 0;
    async function run() {
      clearTimeout(timer);
      aborter?.abort();
      if (document.hidden) return;
      const mine = (aborter = new AbortController());
      onBegin();
      try {
        await lines(path, (line) => {
          setError(null);
          handler.current(line);
        }, mine.signal);
      } catch (failure) {
        if (mine.signal.aborted) return;
        setError(failure);
      }
      if (!mine.signal.aborted) timer = setTimeout(run, RETRY_MS);
    }
    document.addEventListener("visibilitychange", run);
    run();
    return () => {
      clearTimeout(timer);
      aborter?.abort();
      document.removeEventListener("visibilitychange", run);
    };
  }, [path]);
  return error;
}

/** A text as it was when nobody had typed for a moment. */
export function useTyped(text) {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), TYPED_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}
