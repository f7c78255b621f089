// One topic: its rates, groups, partitions, days and settings.

import { html, useRef, useState } from "../vendor/preact.js";
import { get, topicPath } from "../api.js";
import { BarChart, Sparkline } from "../charts.js";
import * as format from "../format.js";
import { useLive } from "../live.js";
import { Badge, Card, Failure, Field, Loading, Page, Stats, Table, Tabs } from "../parts.js";
import { links, useData, useTyped } from "../state.js";

const TOPIC_MS = 5000;
const HISTORY_MS = 10000; // it reads the disk
const GROUPS_MAX = 10;
const GROUPS_LISTED = 100; // by the node
const TENANTS_MAX = 10;
const SHOWN = 300; // moments of the small graph

function Groups({ topic, groups, part, setPart }) {
  const count = topic?.group_count ?? 0;
  const areMany = useRef(false); // the field stays, once shown
  areMany.current ||= count > groups.length && count > GROUPS_LISTED;
  return html`${areMany.current && html`
    <${Field} label="Part of the group's name" type="search" maxlength="200" value=${part} onInput=${setPart}
      hint=${groups.length < GROUPS_LISTED ? null : `The ${GROUPS_LISTED} with the most lag, of ${format.count(count)}.`} />`}
    <${Table} label="Groups" rows=${groups} empty=${part ? "No group has this in its name." : "No group has read this topic."}
    keyOf=${(one) => one.group} columns=${[
      ["Group", (one) => html`<a href=${links.group(one.topic, one.group)}>${one.group}</a>`, "any"],
      ["Lag", (one) => format.count(one.lag), "num"],
      ["Ready", (one) => format.count(one.ready), "num"],
      ["In flight", (one) => format.count(one.leased), "num"],
      ["Retry", (one) => format.count(one.retry), "num"],
      ["Delivered / s", (one) => format.compact(one.rates.delivered_messages), "num"],
      ["Acked / s", (one) => format.compact(one.rates.acked_messages), "num"],
      ["Oldest waits", (one) => format.duration(one.oldest_ready_age_ms), "num"],
    ]} />`;
}

/** Whether a group's lanes are known: the node says none of a group whose queues it has not read. */
const isKnown = (one) => one.lanes?.length > 0 || (one.lanes && !one.ready && !one.leased);

/** What waits, by lane as a bar and by tenant, for each group. */
function Waiting({ topic, groups }) {
  const shown = groups.filter((one) => !isKnown(one) || one.lanes.some((lane) => lane.waiting || lane.leased)).slice(0, GROUPS_MAX);
  if (!topic) return html`<p class="quiet">Loading …</p>`;
  if (!shown.length) {
    const where = groups.length < topic.group_count ? "In the groups that are listed, nothing" : "Nothing";
    return html`<p class="quiet">${where} waits for its first delivery or is in flight.</p>`;
  }
  const words = (queues) => queues.map((one) => `${one.name || "(none)"} ${format.count(one.waiting)}${
    one.leased ? ` (${format.count(one.leased)} in flight)` : ""}`).join(", ");
  return shown.map((one) => {
    if (!isKnown(one)) {
      return html`<div key=${one.group}><h3>${one.group}</h3><p class="quiet">${format.count(one.ready)} ready,
        ${" "}${format.count(one.leased)} in flight: of which lanes and tenants is not known.</p></div>`;
    }
    const whole = one.lanes.reduce((sum, lane) => sum + lane.waiting, 0) || 1;
    return html`<div key=${one.group}><h3>${one.group}</h3>
      <div class="share" role="img" aria-label=${`Waiting by lane: ${words(one.lanes)}`}>${one.lanes.map((lane) => html`
        <span style=${{ width: `${(100 * lane.waiting) / whole}%` }} title=${`${lane.name} ${format.count(lane.waiting)}`}></span>`)}</div>
      <dl class="pairs"><div><dt>By lane</dt><dd>${words(one.lanes)}</dd></div>
        ${!one.tenants ? html`<div><dt>By tenant</dt><dd>not known</dd></div>`
          : one.tenants.length > 0 && html`<div><dt>By tenant</dt><dd>${words(one.tenants.slice(0, TENANTS_MAX))}</dd></div>`}</dl></div>`;
  });
}

/** Compaction leaves offsets without a message, and the node counts offsets. */
const messagesWords = (topic) => (topic.settings.cleanup === "compact" ? "Messages, at most" : "Messages");

function Partitions({ topic }) {
  return html`<${Table} label="Partitions" rows=${topic.partitions} keyOf=${(one) => one.partition} columns=${[
    ["Partition", (one) => one.partition, "num"],
    ["Leader", (one) => one.leader ?? "none", "nowrap"],
    [messagesWords(topic), (one) => format.count(one.end_offset - one.start_offset), "num"],
    ["Offsets", (one) => `${format.count(one.start_offset)} – ${format.count(one.end_offset)}`, "nowrap"],
    ["Unreplicated", (one) => format.count(Math.max(0, one.end_offset - one.high_watermark)), "num"],
    ["Size", (one) => format.bytes(one.bytes), "num"],
    ["State", (one) => html`${one.online === false && html`<${Badge} tone="bad">offline</${Badge}>`}
      ${one.damaged?.length > 0 && html`<${Badge} tone="bad">damaged</${Badge}>`}`],
  ]} />`;
}

export function Topic({ topic }) {
  const shown = useData((signal) => get(topicPath(topic), signal), [topic], TOPIC_MS);
  const [part, setPart] = useState("");
  const groupsPart = useTyped(part.trim());
  const { live, error } = useLive({ topics: topic, groups: groupsPart });
  const now = live.topics.get(topic);
  const groups = live.groups();
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
        [messagesWords(found), format.compact(messages)],
        ["Size", format.bytes(size)],
        ["Published / s", now ? format.compact(now.rates.published_messages) : "–"],
        ["Delivered / s", now ? format.compact(now.rates.delivered_messages) : "–"],
        ["Scheduled", over ? html`<a href=${links.scheduled(topic)}>${format.compact(over.scheduled.count)}</a>` : "–"],
        ["Last message", over?.last_time ? format.since(over.last_time) : "–"],
      ]} />
      <div class="grid">
        <${Card} wide title="Groups"><${Failure} error=${error} /><${Groups} topic=${now} groups=${groups} part=${part} setPart=${setPart} /></${Card}>
        <${Card} title="Lanes and tenants" note="waiting for a first delivery, and in flight"><${Waiting} topic=${now} groups=${groups} /></${Card}>
        <${Card} title="Published a second" note="since this page was opened">
          <${Sparkline} label="Published a second" values=${live.moments.slice(-SHOWN).map((one) => one.rates.published_messages ?? 0)} /></${Card}>
        <${Card} title="Partitions" note=${format.count(found.partitions.length)}><${Partitions} topic=${found} /></${Card}>
        <${Card} title="Messages by day" note=${found.settings.cleanup === "compact" ? "UTC, at most: compaction may have removed some" : "UTC, still kept"}>
          ${over ? html`<${BarChart} label="Messages by day" bars=${over.days.map((day) => [day.date, day.messages])} />`
            : html`<${Loading} data=${over} error=${history.error} />`}</${Card}>
        <${Card} wide title="Settings"><dl class="pairs columns">
          ${Object.entries(found.settings).map(([name, value]) => html`<div><dt>${name}</dt><dd class="mono">${value}</dd></div>`)}
        </dl></${Card}>
      </div>`}
  </${Page}>`;
}
