// The first page: what is wrong, in words; what goes on; the groups with the most waiting.

import { html } from "../vendor/preact.js";
import { health } from "../api.js";
import { Sparkline } from "../charts.js";
import * as format from "../format.js";
import { useLive } from "../live.js";
import { Badge, Card, Failure, Loading, Page, Stats, Table } from "../parts.js";
import { groupProblems, healthProblems, liveProblems } from "../problems.js";
import { links, useData } from "../state.js";

const HEALTH_MS = 15000; // the live lines tell of nodes and topics at once
const SHOWN = 300; // moments of the small graph
const TOPICS = 100; // whose groups are listed

function Problems({ found }) {
  if (!found.length) return html`<p class="fine">Nothing is wrong.</p>`;
  return html`<ul class="problems">${found.map((one) => html`
    <li class=${one.tone}><a href=${one.href}>${one.text}</a></li>`)}</ul>`;
}

export function Overview() {
  const { live, error } = useLive({ order: "lag", top: TOPICS });
  const state = useData((signal) => health(signal), [], HEALTH_MS);
  if (!live.totals) return html`<${Page} title="Overview"><${Loading} data=${null} error=${error} /></${Page}>`;
  const groups = live.groups().sort((a, b) => b.lag - a.lag);
  const up = live.nodes.filter((node) => node.status === "up" && !node.problem).length;
  const found = [...liveProblems(live), ...healthProblems(state.data), ...groupProblems(live.waits.map((one) => live.aged(one)))];
  return html`<${Page} title="Overview">
    <${Failure} error=${error} />
    <${Card} title="What is wrong"><${Problems} found=${found} /></${Card}>
    <${Stats} items=${[
      ["Topics", html`<a href=${links.topics()}>${format.count(live.totals.topics)}</a>`],
      ["Published / s", format.compact(live.rates.published_messages)],
      ["Delivered / s", format.compact(live.rates.delivered_messages)],
      ["Lag", format.compact(live.totals.lag)],
      ["In flight", format.compact(live.totals.leased)],
      ["Scheduled", format.compact(live.totals.scheduled)],
      ["Nodes up", `${up} of ${live.nodes.length}`, up < live.nodes.length ? "bad" : ""],
    ]} />
    <div class="grid">
      <${Card} wide title="Published a second" note="since this page was opened">
        <${Sparkline} label="Published a second" values=${live.moments.slice(-SHOWN).map((one) => one.rates.published_messages ?? 0)} /></${Card}>
      <${Card} wide title="Groups" note="the most waiting first">
        <${Table} label="Groups" rows=${groups} empty="No group reads anything yet." keyOf=${(one) => `${one.topic}/${one.group}`} columns=${[
          ["Topic", (one) => html`<a href=${links.topic(one.topic)}>${one.topic}</a>`, "any"],
          ["Group", (one) => html`<a href=${links.group(one.topic, one.group)}>${one.group}</a>`, "any"],
          ["Lag", (one) => format.count(one.lag), "num"],
          ["In flight", (one) => format.count(one.leased), "num"],
          ["Acked / s", (one) => format.compact(one.rates.acked_messages), "num"],
          ["Oldest waits", (one) => format.duration(one.oldest_ready_age_ms), "num"],
        ]} />
        ${live.isPartial && html`<p class="quiet">Of the ${format.count(live.topics.size)} topics with the most lag.</p>`}</${Card}>
      <${Card} wide title="Nodes">
        <${Table} label="Nodes" rows=${live.nodes} keyOf=${(node) => node.node} columns=${[
          ["Node", (node) => html`<a href=${links.cluster()}>${node.node}</a>`],
          ["Status", (node) => html`<${Badge} tone=${node.status === "up" && !node.problem ? "good" : "bad"}>${node.status}</${Badge}>`],
          ["Version", (node) => node.version ?? ""],
          ["Memory", (node) => format.bytes(node.rss_bytes), "num"],
          ["Disk free", (node) => format.bytes(node.disk_free_bytes), "num"],
          ["Requests", (node) => format.count(node.requests ?? 0), "num"],
        ]} /></${Card}>
    </div>
  </${Page}>`;
}
