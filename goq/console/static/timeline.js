// The life of a message, drawn: a row for each copy and group, leases as bars, other steps as dots.

import { html } from "./vendor/preact.js";
import * as format from "./format.js";

const END = { // steps that end a lease, with their tone
  ACKNOWLEDGED: "done", NACKED: "lost", EXPIRED: "lost", RETURNED: "", RESET: "", GROUP_DELETED: "", SKIPPED: "",
  REJECTED: "bad", DEAD_LETTERED: "bad", DROPPED: "bad", CORRUPTED: "bad",
};
const TONE = {
  ACKNOWLEDGED: "done", REJECTED: "bad", DEAD_LETTERED: "bad", CANCELLED: "bad", EXPIRED: "bad", DROPPED: "bad", CORRUPTED: "bad",
};

const LEFT = 8;
const WIDTH = 980;
const HIGH = 46;
const MARK_APART = 110;

/**
 * A scale of moments: short pauses get more room than their share, or one long lease would leave
 * no room for the rest. Returns { x, marks }: the place of a moment, and the moments to label.
 */
export function scale(moments, left, right) {
  const sorted = [...new Set(moments)].sort((a, b) => a - b);
  const weights = sorted.slice(1).map((ms, at) => Math.log2(2 + ms - sorted[at]));
  const whole = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  const places = [left];
  for (const weight of weights) places.push(places.at(-1) + (weight / whole) * (right - left));
  const x = (ms) => {
    const after = sorted.findIndex((moment) => moment >= ms);
    if (after === 0) return left;
    if (after < 0) return right;
    const share = (ms - sorted[after - 1]) / (sorted[after] - sorted[after - 1]);
    return places[after - 1] + share * (places[after] - places[after - 1]);
  };
  const marks = [];
  for (const ms of sorted) {
    if (!marks.length || x(ms) - x(marks.at(-1)) >= MARK_APART) marks.push(ms);
  }
  return { x, marks };
}

const rowKey = (step) => `${step.id} ${step.group ?? ""}`;

/**
 * Rows in order of their first step. A row has at most one open lease: a step that ends one without naming a group ends
 * those of all groups, and where the end is missing, the next delivery ends it. All times in milliseconds.
 */
export function life(trace, nowMs) {
  const rows = new Map();
  const row = (key, id, group) => {
    if (!rows.has(key)) rows.set(key, { key, id, group, leases: [], dots: [], from: null, open: null });
    return rows.get(key);
  };
  const close = (one, endMs, end) => {
    if (one.open) Object.assign(one.open, { endMs, end });
    one.open = null;
  };
  let firstMs = Infinity;
  let lastMs = -Infinity;
  for (const step of trace.events) {
    const at = format.milliseconds(step.time);
    firstMs = Math.min(firstMs, at);
    lastMs = Math.max(lastMs, at);
    const mine = row(rowKey(step), step.id, step.group);
    if (step.event === "DELIVERED") {
      const untilMs = step.until ? format.milliseconds(step.until) : null;
      close(mine, Math.min(mine.open?.untilMs ?? at, at), "");
      mine.open = { attempt: step.attempt, consumer: step.consumer, startMs: at, endMs: null, untilMs, end: "" };
      mine.leases.push(mine.open);
    } else if (step.event === "EXTENDED" && mine.open) {
      mine.open.untilMs = step.until ? format.milliseconds(step.until) : mine.open.untilMs;
    } else if (step.event in END) {
      const ended = step.group ? [mine] : [...rows.values()].filter((one) => one.id === step.id);
      for (const one of ended) close(one, at, step.event);
    }
    if (step.event !== "DELIVERED") mine.dots.push({ ms: at, step });
    if (step.from) mine.from = step.from;
  }
  const list = [...rows.values()];
  if (list.some((one) => one.open)) lastMs = Math.max(lastMs, nowMs);
  for (const one of list) {
    for (const lease of one.leases) {
      lease.isOpen = lease.endMs === null;
      if (lease.isOpen) lease.endMs = Math.min(lease.untilMs ?? nowMs, Math.max(nowMs, lease.startMs));
    }
  }
  return { rows: list, firstMs, lastMs: Math.max(lastMs, firstMs + 1) };
}

export function Timeline({ trace }) {
  if (!trace.events.length) return null;
  const { rows, firstMs, lastMs } = life(trace, format.now());
  const span = lastMs - firstMs;
  const moments = rows.flatMap((row) => [...row.dots.map((dot) => dot.ms), ...row.leases.flatMap((lease) => [lease.startMs, lease.endMs])]);
  const { x, marks } = scale([firstMs, lastMs, ...moments], LEFT, WIDTH - LEFT);
  const high = rows.length * HIGH + 30;
  const y = (at) => 14 + at * HIGH;
  const words = `${trace.events.length} steps in ${format.duration(span)}; the table below lists them`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Timeline">
    <svg class="life" viewBox=${`0 0 ${WIDTH} ${high}`} role="img" aria-label=${words}>
      ${marks.map((ms) => html`<g key=${ms}><line class="axis" x1=${x(ms)} x2=${x(ms)} y1="4" y2=${high - 20} />
        <text class="soft" x=${x(ms)} y=${high - 5} text-anchor=${x(ms) > WIDTH - 60 ? "end" : "start"}>+${format.duration(ms - firstMs)}</text></g>`)}
      ${(trace.incomplete ?? []).map((gap) => {
        const from = gap.from ? Math.max(format.milliseconds(gap.from), firstMs) : firstMs;
        const to = gap.to ? Math.min(format.milliseconds(gap.to), lastMs) : lastMs;
        return to > from && html`<rect class="gap" x=${x(from)} width=${x(to) - x(from)} y="4" height=${high - 24}><title>${`Steps may be missing: ${gap.reason}`}</title></rect>`;
      })}
      ${rows.map((row, at) => {
        const origin = row.from ? rows.findIndex((other) => other.id === row.from) : -1;
        const start = row.dots[0]?.ms ?? row.leases[0]?.startMs;
        return html`<g key=${row.key}>
          ${origin >= 0 && html`<path class="branch" d=${`M ${x(start)} ${y(origin) + 20} V ${y(at) + 20}`} />`}
          <text x=${LEFT} y=${y(at) + 6}>${row.group ? `${row.group} · ${row.id}` : row.id}</text>
          <line class="axis" x1=${LEFT} x2=${WIDTH - LEFT} y1=${y(at) + 20} y2=${y(at) + 20} />
          ${row.leases.map((lease) => html`<rect class=${`lease ${lease.isOpen ? "open" : ""} ${END[lease.end] ?? ""}`} rx="3"
            x=${x(lease.startMs)} y=${y(at) + 13} width=${Math.max(4, x(lease.endMs) - x(lease.startMs))} height="14">
            <title>${`Attempt ${lease.attempt} by ${lease.consumer || "a consumer"}, ${format.duration(lease.endMs - lease.startMs)}, ${lease.end || (lease.isOpen ? "open" : "its end is not known")}`}</title></rect>`)}
          ${row.dots.map(({ ms, step }) => html`<circle class=${`dot ${TONE[step.event] ?? ""}`} cx=${x(ms)} cy=${y(at) + 20} r="4"><title>${`${step.event} ${step.time}`}</title></circle>`)}
        </g>`;
      })}
    </svg></div>`;
}
