// One topic: its rates, groups, partitions, days and settings.

import { html } from "../vendor/preact.js";
import { get, topicPath } from "../api.js";
import { BarChart } from "../charts.js";
import * as format from "../format.js";
import { Badge, Card, Failure, Loading, Page, Stats, Table, Tabs } from "../parts.js";
import { links, useData } from "../state.js";

const GROUPS_MS = 2000;
const HISTORY_MS = 10000; // it reads the disk

function Groups({ topic }) {
  const { data, error } = useData((signal) => get(`${topicPath(topic)}/groups`, signal), [topic], GROUPS_MS);
  if (!data) return html`<${Loading} data=${data} error=${error} />`;
  return html`<${Failure} error=${error} /><${Table} label="Groups" rows=${data.groups} empty="No group has read this topic."
    keyOf=${(one) => one.group} columns=${[
      ["Group", (one) => html`<a href=${links.group(topic, one.group)}>${one.group}</a>`, "any"],
      ["Lag", (one) => format.count(one.lag), "num"],
      ["Ready", (one) => format.count(one.ready), "num"],
      ["In flight", (one) => format.count(one.leased), "num"],
      ["Retry", (one) => format.count(one.retry), "num"],
      ["Dead", (one) => format.count(one.dead), "num"],
      ["Oldest waits", (one) => format.duration(one.oldest_ready_age_ms), "num"],
    ]} />`;
}

function Partitions({ topic }) {
  return html`<${Table} label="Partitions" rows=${topic.partitions} keyOf=${(one) => one.partition} columns=${[
    ["Partition", (one) => one.partition, "num"],
    ["Leader", (one) => one.leader ?? "none", "nowrap"],
    ["Messages", (one) => format.count(one.end_offset - one.start_offset), "num"],
    ["Offsets", (one) => `${format.count(one.start_offset)} – ${format.count(one.end_offset)}`, "nowrap"],
    ["Unreplicated", (one) => format.count(Math.max(0, one.end_offset - one.high_watermark)), "num"],
    ["Size", (one) => format.bytes(one.bytes), "num"],
    ["State", (one) => html`${one.online === false && html`<${Badge} tone="bad">offline</${Badge}>`}
      ${one.damaged?.length > 0 && html`<${Badge} tone="bad">damaged</${Badge}>`}`],
  ]} />`;
}

export function Topic({ topic }) {
  const shown = useData((signal) => get(topicPath(topic), signal), [topic], GROUPS_MS);
  const history = useData((signal) => get(`${topicPath(topic)}/history`, signal), [topic], HISTORY_MS);
  const found = shown.data;
  const over = history.data;
  const messages = found?.partitions.reduce((sum, one) => sum + one.end_offset - one.start_offset, 0);
  const size = found?.partitions.reduce((sum, one) => sum + one.bytes, 0);
  return html`<${Page} title=${topic} crumbs=${[["topics", links.topics()]]}>
    <${Tabs} topic=${topic} page="topic" />
    ${!found && html`<${Loading} data=${found} error=${shown.error} />`}
    ${found && html`
      <${Failure} error=${shown.error} />
      <${Stats} items=${[
        ["Messages", format.compact(messages)],
        ["Size", format.bytes(size)],
        ["Published / s", over ? format.compact(over.rates.published_per_s) : "–"],
        ["Delivered / s", over ? format.compact(over.rates.delivered_per_s) : "–"],
        ["Scheduled", over ? html`<a href=${links.scheduled(topic)}>${format.compact(over.scheduled.count)}</a>` : "–"],
        ["Last message", over?.last_time ? format.since(over.last_time) : "–"],
      ]} />
      <div class="grid">
        <${Card} wide title="Groups"><${Groups} topic=${topic} /></${Card}>
        <${Card} title="Partitions" note=${format.count(found.partitions.length)}><${Partitions} topic=${found} /></${Card}>
        <${Card} title="Messages by day" note="UTC, still kept">
          ${over ? html`<${BarChart} label="Messages by day" bars=${over.days.map((day) => [day.date, day.messages])} />`
            : html`<${Loading} data=${over} error=${history.error} />`}</${Card}>
        <${Card} wide title="Settings"><dl class="pairs columns">
          ${Object.entries(found.settings).map(([name, value]) => html`<div><dt>${name}</dt><dd class="mono">${value}</dd></div>`)}
        </dl></${Card}>
      </div>`}
  </${Page}>`;
}
