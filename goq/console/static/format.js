// Numbers, sizes, durations and times as people read them.

const grouped = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n == null ? "–" : grouped.format(n));
export const compact = (n) => (n == null ? "–" : Math.abs(n) < 10000 ? grouped.format(Math.round(n * 10) / 10) : short.format(n));
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

export function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${unit && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

/** A duration in at most two units: 12 min, 3 h 20 min, 1.2 s. */
export function duration(ms) {
  if (ms == null) return "–";
  if (ms < 1) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
  const steps = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
  const first = steps.findIndex(([, size]) => ms >= size);
  const [unit, size] = steps[first];
  const whole = Math.floor(ms / size);
  const next = steps[first + 1];
  const rest = next && whole < 10 ? Math.floor((ms - whole * size) / next[1]) : 0;
  return rest ? `${whole} ${unit} ${rest} ${next[0]}` : `${whole} ${unit}`;
}

const two = (n) => String(n).padStart(2, "0");

/** Microseconds since 1970 of a time of the API. */
export function microseconds(text) {
  const [, second, fraction = ""] = /^(.*?)(?:\.(\d+))?Z$/.exec(text) ?? [];
  return second ? Date.parse(`${second}Z`) * 1000 + Number(fraction.padEnd(6, "0").slice(0, 6)) : NaN;
}

export const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;

export const milliseconds = (text) => microseconds(text) / 1000;

let aheadMs = 0; // of the browser's clock, the node's

/** Milliseconds since 1970 by the node's clock: the browser's may be wrong. */
export const now = () => Date.now() + aheadMs;

/** Learn the node's time, asked for at askedMs and answered now. */
export function setNow(text, askedMs) {
  const ms = milliseconds(text);
  aheadMs += Math.min(0, ms - askedMs) + Math.max(0, ms - now());
}

/** A time in the reader's zone: the clock today, otherwise with the date. */
export function time(text, { precise = false } = {}) {
  if (!text) return "–";
  const at = new Date(milliseconds(text));
  const part = precise ? `.${(/\.(\d+)Z$/.exec(text)?.[1] ?? "0").padEnd(6, "0").slice(0, 3)}` : "";
  if (at.toDateString() === new Date(now()).toDateString()) return clock(at) + part;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(at)}${part}`;
}

/** How long ago, or in how long. */
export function since(text) {
  if (!text) return "–";
  const ms = now() - milliseconds(text);
  return ms >= 0 ? `${duration(ms)} ago` : `in ${duration(-ms)}`;
}

/** The value of an input of type datetime-local. */
export function localInput(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export const iso = (ms) => new Date(ms).toISOString();
