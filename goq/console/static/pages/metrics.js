// Graphs of what went on since the page was opened, at most an hour; the page keeps them, not the node.

import { html, useEffect, useRef } from "../vendor/preact.js";
import uPlot from "../vendor/uplot.js";
import * as format from "../format.js";
import { useLive } from "../live.js";
import { Card, Failure, Loading, Page, Stats } from "../parts.js";

const HIGH = 200;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900]; // between two times of the axis
const COLORS = ["--bar", "--busy", "--warn"];
const numbers = (count, numberOf) => Array.from({ length: count }, (_, at) => numberOf(at));
const decimals = (power) => numbers(48, (at) => Number(`${[1, 2, 5][at % 3]}e${power + Math.floor(at / 3)}`));
const latency = (seconds) => format.duration(seconds == null ? null : seconds * 1000);
const STEPS = new Map([ // of values, that their words do not round
  [format.compact, decimals(-1)],
  [format.bytes, numbers(50, (power) => 2 ** power).filter((_, power) => power % 10 !== 8)], // of 256 KiB, 5 are 1.25 MiB
  [latency, decimals(-3)],
]);
const GRAPHS = [
  ["Messages a second", format.compact, [
    ["published", (one) => one.rates.published_messages], ["delivered", (one) => one.rates.delivered_messages],
    ["acknowledged", (one) => one.rates.acked_messages]]],
  ["Bytes published a second", format.bytes, [["bytes", (one) => one.rates.published_bytes]]],
  ["Waiting", format.compact, [["lag", (one) => one.lag], ["in flight", (one) => one.leased]]],
  ["Failed a second", format.compact, [
    ["nacked", (one) => one.rates.nacked_messages], ["expired", (one) => one.rates.expired_messages]]],
  ["99 % are done within", latency, [
    ["publish", (one) => finite(one.latencies.publish)], ["settle", (one) => finite(one.latencies.settle)],
    ["commit to disk", (one) => finite(one.latencies.commit)]]],
  ["Memory of the nodes", format.bytes, [["memory", (one) => one.rss]]],
];

const finite = (value) => (Number.isFinite(value) ? value : null);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function Graph({ title, words, lines, moments }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [moments.map((one) => one.timeS), ...lines.map(([, value]) => moments.map((one) => value(one) ?? null))];
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const build = () => {
      plot.current?.destroy();
      const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
      plot.current = new uPlot({
        width: place.current.clientWidth, height: HIGH, cursor: { drag: { x: false, y: false } }, legend: { live: false, show: lines.length > 1 },
        scales: { y: { range: (_plot, low, high) => [Math.min(0, low ?? 0), (high ?? 0) * 1.1 || (words === format.bytes ? 1024 : 1)] } },
        axes: [{ ...axis, incrs: STEPS_S, values: (_plot, ticks) => ticks.map((second) => format.clock(new Date(second * 1000))) }, { ...axis, size: 78, incrs: STEPS.get(words), values: (_plot, ticks) => ticks.map((tick) => words(tick)) }],
        series: [{}, ...lines.map(([label], at) => ({
          label, stroke: color(COLORS[at]), width: 2, value: (_plot, value) => words(value), points: { show: false } }))],
      }, plot.current?.data ?? data, place.current);
    };
    build();
    const resized = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: HIGH }));
    resized.observe(place.current);
    dark.addEventListener("change", build);
    return () => {
      resized.disconnect();
      dark.removeEventListener("change", build);
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current.setData(data), [moments.length, moments.at(-1)?.timeS]);
  const last = moments.at(-1);
  const now = lines.map(([label, value]) => `${label} ${last ? words(value(last)) : "–"}`).join(", ");
  return html`<${Card} title=${title} note=${now}><div class="graph" ref=${place} role="img" aria-label=${`${title}: ${now}`}></div></${Card}>`;
}

export function Metrics() {
  const { live, error } = useLive({ top: 1 }); // the totals are of all
  if (!live.totals) return html`<${Page} title="Metrics"><${Loading} data=${null} error=${error} /></${Page}>`;
  return html`<${Page} title="Metrics">
    <${Failure} error=${error} />
    <${Stats} items=${[
      ["Messages", format.compact(live.totals.messages)],
      ["Size", format.bytes(live.totals.bytes)],
      ["Published / s", format.compact(live.rates.published_messages)],
      ["Acknowledged / s", format.compact(live.rates.acked_messages)],
    ]} />
    <p class="quiet">Since this page was opened, at most an hour. For longer, let Prometheus read the node's /metrics.</p>
    <div class="grid">${GRAPHS.map(([title, words, lines]) => html`
      <${Graph} key=${title} title=${title} words=${words} lines=${lines} moments=${live.moments} />`)}</div>
  </${Page}>`;
}
