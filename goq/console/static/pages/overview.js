// The first page: what is wrong, in words; then the topics with the most waiting.

import { html } from "../vendor/preact.js";
import { get, health, topicPath } from "../api.js";
import * as format from "../format.js";
import { Badge, Card, Failure, Loading, Page, Stats, Table } from "../parts.js";
import { groupProblems, nodeProblems } from "../problems.js";
import { links, useData } from "../state.js";

const NODE_MS = 3000;
const TOPICS_MAX = 20; // whose groups are asked for

async function load(signal) {
  const [state, cluster, { topics }] = await Promise.all([
    health(signal), get("/v1/cluster", signal), get("/v1/topics", signal),
  ]);
  const some = topics.slice(0, TOPICS_MAX);
  const answers = await Promise.allSettled(some.map((topic) => get(`${topicPath(topic.name)}/groups`, signal)));
  const groups = answers.flatMap((answer, at) => (answer.value?.groups ?? []).map((one) => ({ ...one, topic: some[at].name })));
  return { health: state, cluster, topics, groups };
}

function Problems({ found }) {
  if (!found.length) return html`<p class="fine">Nothing is wrong.</p>`;
  return html`<ul class="problems">${found.map((one) => html`
    <li class=${one.tone}><a href=${one.href}>${one.text}</a></li>`)}</ul>`;
}

export function Overview() {
  const { data, error } = useData(load, [], NODE_MS);
  if (!data) return html`<${Page} title="Overview"><${Loading} data=${data} error=${error} /></${Page}>`;
  const { cluster, topics, groups } = data;
  const waiting = [...groups].sort((a, b) => b.lag - a.lag);
  const up = cluster.nodes.filter((node) => node.status === "up").length;
  return html`<${Page} title="Overview">
    <${Failure} error=${error} />
    <${Card} title="What is wrong"><${Problems} found=${[...nodeProblems(data.health, cluster), ...groupProblems(groups)]} /></${Card}>
    <${Stats} items=${[
      ["Topics", html`<a href=${links.topics()}>${format.count(topics.length)}</a>`],
      ["Lag", format.compact(groups.reduce((sum, one) => sum + one.lag, 0))],
      ["In flight", format.compact(groups.reduce((sum, one) => sum + one.leased, 0))],
      ["Dead letters", format.compact(groups.reduce((sum, one) => sum + one.dead, 0))],
      ["Nodes up", `${up} of ${cluster.nodes.length}`, up < cluster.nodes.length ? "bad" : ""],
    ]} />
    <div class="grid">
      <${Card} wide title="Groups" note="the most waiting first">
        <${Table} label="Groups" rows=${waiting} empty="No group reads anything yet." keyOf=${(one) => `${one.topic}/${one.group}`} columns=${[
          ["Topic", (one) => html`<a href=${links.topic(one.topic)}>${one.topic}</a>`, "any"],
          ["Group", (one) => html`<a href=${links.group(one.topic, one.group)}>${one.group}</a>`, "any"],
          ["Lag", (one) => format.count(one.lag), "num"],
          ["In flight", (one) => format.count(one.leased), "num"],
          ["Dead", (one) => format.count(one.dead), "num"],
          ["Oldest waits", (one) => format.duration(one.oldest_ready_age_ms), "num"],
        ]} /></${Card}>
      <${Card} wide title="Nodes">
        <${Table} label="Nodes" rows=${cluster.nodes} columns=${[
          ["Node", (node) => html`<a href=${links.cluster()}>${node.id}</a>`],
          ["Status", (node) => html`<${Badge} tone=${node.status === "up" ? "good" : "bad"}>${node.status}</${Badge}>`],
          ["Address", (node) => node.url, "any"],
        ]} /></${Card}>
    </div>
  </${Page}>`;
}
