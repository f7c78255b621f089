// What goes on now: the lines of /v1/live, kept as topics by name, with rates made of two lines.

import { useRef, useState } from "./vendor/preact.js";
import { query } from "./api.js";
import * as format from "./format.js";
import { useLines } from "./state.js";

const KEPT = 3600; // moments, for graphs: an hour
const COUNTERS = ["published_messages", "published_bytes", "delivered_messages", "acked_messages", "nacked_messages", "expired_messages"];

/** Counter increases a second; a counter that fell began anew with its node. */
export function rates(before, now, seconds) {
  const found = {};
  for (const name of COUNTERS) {
    if (now[name] === undefined) continue;
    found[name] = before && seconds > 0 ? Math.max(0, now[name] - before[name]) / seconds : 0;
  }
  return found;
}

/** The upper bound in seconds below which a share of the durations between two histograms lies. */
export function quantile(boundsS, before, now, share) {
  const counts = now.map((count, at) => Math.max(0, count - (before?.[at] ?? 0)));
  const wanted = counts.reduce((sum, count) => sum + count, 0) * share;
  if (!wanted) return null;
  let sum = 0;
  for (const [at, count] of counts.entries()) {
    sum += count;
    if (sum >= wanted) return boundsS[at] ?? Infinity;
  }
  return null;
}

function summed(nodes, kind) {
  const all = nodes.map((node) => node[kind]?.counts).filter(Boolean);
  return all.length ? all.reduce((sums, counts) => sums.map((sum, at) => sum + counts[at])) : null;
}

export class LiveState {
  constructor() {
    this.begin();
  }

  /** Forget all: another stream begins. Graphs keep what they have. */
  begin() {
    this.topics = new Map();
    this.moving = new Set(); // topics whose rates are not 0
    this.nodes = [];
    this.fresh = [];
    this.totals = null;
    this.rates = {};
    this.timeMs = 0;
    this.isPartial = false;
    this.waits = []; // groups that have waited longest, of all topics that match
    this.offline = []; // topics with offline partitions, of all that match
    this.latencies = {};
    this.changed = [];
    this.moments ??= [];
  }

  /** Take a line; return whether its moment is complete. */
  take(line) {
    this.changed.push(...line.topics);
    if (line.nodes.length) {
      this.fresh = line.nodes; // only the first line of a moment has these
      this.offline = line.offline ?? [];
      this.waits = line.waits ?? [];
    }
    for (const name of line.removed) this.topics.delete(name);
    if (line.more) return false;
    const timeMs = format.milliseconds(line.time);
    const seconds = this.timeMs ? (timeMs - this.timeMs) / 1000 : 0;
    const still = this.moving;
    this.moving = new Set();
    for (const topic of this.changed) this.put(topic, seconds);
    for (const name of still) {
      const topic = this.topics.get(name);
      if (!topic || this.moving.has(name)) continue;
      if (!this.changed.some((one) => one.name === name)) this.put(topic, seconds);
    }
    this.changed = [];
    this.rates = rates(this.totals, line.totals, seconds);
    const durations = {};
    for (const kind of ["publish", "settle", "commit"]) {
      const counts = summed(this.fresh, kind);
      if (counts && this.totals) durations[kind] = quantile(line.bounds_s, summed(this.nodes, kind), counts, 0.99);
    }
    this.latencies = durations;
    this.nodes = this.fresh.map((node) => ({ status: "up", ...node }));
    if (this.totals) this.keep(timeMs, line.totals);
    this.totals = line.totals;
    this.timeMs = timeMs;
    this.isPartial = line.is_partial;
    return true;
  }

  put(topic, seconds) {
    const before = this.topics.get(topic.name);
    const groups = topic.groups.map((group) => ({
      ...group, topic: topic.name, rates: rates(before?.groups.find((one) => one.group === group.group), group, seconds),
    }));
    const found = { ...topic, groups, rates: rates(before, topic, seconds) };
    this.topics.set(topic.name, found);
    if (Object.values(found.rates).some((rate) => rate > 0)) this.moving.add(topic.name);
  }

  keep(timeMs, totals) {
    this.moments.push({
      timeS: timeMs / 1000, rates: this.rates, latencies: this.latencies, lag: totals.lag, leased: totals.leased,
      rss: this.nodes.reduce((sum, one) => sum + (one.rss_bytes ?? 0), 0),
    });
    if (this.moments.length > KEPT) this.moments.shift();
  }

  /** All groups, with the age of what waits longest. */
  groups() {
    return [...this.topics.values()].flatMap((topic) => topic.groups).map((group) => this.aged(group));
  }

  aged(group) {
    return { ...group, oldest_ready_age_ms: group.oldest_ready ? Math.max(0, this.timeMs - group.oldest_ready) : null };
  }
}

/** The live state of the topics that the fields of the query ask for; rerenders with each moment. */
export function useLive(fields) {
  const state = useRef(null);
  state.current ??= new LiveState();
  const [, setCount] = useState(0);
  const error = useLines(query("/v1/live", fields), (line) => {
    if (state.current.take(line)) setCount((count) => count + 1);
  }, () => state.current.begin());
  return { live: state.current, error };
}
