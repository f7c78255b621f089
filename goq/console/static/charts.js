// Small charts in SVG.

import { html } from "./vendor/preact.js";
import * as format from "./format.js";

const WIDTH = 600;
const HIGH = 140;
const LABELS = 8;
const LETTER = 6.5; // about the width of a letter of a label
const SPARK_HIGH = 60;

/** Bars of [name, number]; each says its number on hover, all are listed for screen readers. */
export function BarChart({ label, bars }) {
  if (!bars.length) return html`<p class="quiet">Nothing yet.</p>`;
  const most = Math.max(1, ...bars.map(([, number]) => number));
  const step = WIDTH / bars.length;
  const widest = Math.max(...bars.map(([name]) => name.length)) * LETTER;
  const every = Math.ceil(Math.max(bars.length / LABELS, widest / step));
  const words = `${label}: ${bars.map(([name, number]) => `${name} ${format.count(number)}`).join(", ")}`;
  return html`<svg class="bars" viewBox=${`0 0 ${WIDTH} ${HIGH + 20}`} role="img" aria-label=${words}>
    ${bars.map(([name, number], at) => {
      const high = number ? Math.max(2, (number / most) * (HIGH - 16)) : 0;
      return html`<g key=${name}>
        <rect x=${at * step + step * 0.1} width=${Math.min(step * 0.8, 60)} y=${HIGH - high} height=${high} rx="2"><title>${`${name}: ${format.count(number)}`}</title></rect>
        ${(bars.length - 1 - at) % every === 0 && html`<text x=${at * step + step * 0.1} y=${HIGH + 14}>${name}</text>`}
        ${bars.length <= LABELS && html`<text x=${at * step + step * 0.1} y=${HIGH - high - 4}>${format.compact(number)}</text>`}
      </g>`;
    })}
  </svg>`;
}

/** A line of the last values, from 0 up. */
export function Sparkline({ label, values }) {
  const most = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(SPARK_HIGH - 4 - (value / most) * (SPARK_HIGH - 8)).toFixed(1)}`).join(" ");
  const last = format.compact(values.at(-1));
  return html`<svg class="spark" viewBox=${`0 0 ${WIDTH} ${SPARK_HIGH}`} preserveAspectRatio="none" role="img"
    aria-label=${`${label}: now ${last}, at most ${format.compact(Math.max(0, ...values))}`}>
    ${values.length > 1 && html`<polyline points=${points} />`}</svg>`;
}
