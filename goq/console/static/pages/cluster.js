// The nodes, the partitions that are not well, and the moves.

import { html, useEffect, useState } from "../vendor/preact.js";
import { call, get, health } from "../api.js";
import * as format from "../format.js";
import { Badge, Card, Confirm, Failure, Field, Loading, Page, Stats, Table, say, useAction } from "../parts.js";
import { clusterProblems, healthProblems } from "../problems.js";
import { links, useData } from "../state.js";

const tone = (node) => (node.status === "up" ? "good" : node.status === "leaving" ? "warn" : "bad");

const LEAST_MS = 2000;
const MOST_MS = 30000;
const PER_TOPIC_MS = 5; // ten pages on any number of topics take a node about a hundredth of its time

const periodMs = ({ cluster }) => Math.min(MOST_MS, Math.max(LEAST_MS, cluster.topics.length * PER_TOPIC_MS));

async function load(signal) {
  const [state, cluster] = await Promise.all([health(signal), get("/v1/cluster", signal)]);
  return { health: state, cluster };
}

function Rebalance({ onClose, onDone }) {
  const [plan, setPlan] = useState(null);
  const [look, isLooking, refusal] = useAction(async () => setPlan(await call("POST", "/v1/cluster/rebalance", { dry_run: true })));
  useEffect(() => void look(), []);
  const done = (answer) => {
    say(`${format.plural(answer.moves.length, "move")} begun.`);
    onDone();
  };
  return html`<${Confirm} title="Rebalance" verb="Begin the moves" onClose=${onClose} onDone=${done}
    action=${() => call("POST", "/v1/cluster/rebalance", { dry_run: false })}>
    ${isLooking && html`<p class="quiet">Planning …</p>`}<${Failure} error=${refusal} />
    ${plan && html`<${Table} label="Plan" rows=${plan.moves} empty="Nothing has to move." columns=${[
      ["Partition", (move) => `${move.topic}:${move.partition}`, "any"],
      ["From", (move) => move.replicas.join(", ")],
      ["To", (move) => move.target.join(", ")],
      ["Refused", (move) => move.refusal ?? "", "any"],
    ]} />`}
  </${Confirm}>`;
}

export function Cluster() {
  const { data, error, reload } = useData(load, [], periodMs);
  const [text, setText] = useState("");
  const [isRebalancing, setRebalancing] = useState(false);
  if (!data) return html`<${Page} title="Cluster"><${Loading} data=${data} error=${error} /></${Page}>`;
  const { cluster } = data;
  const partitions = cluster.topics.flatMap((topic) => topic.partitions.map((one) => ({ ...one, topic: topic.name })));
  const leads = (node) => partitions.filter((one) => one.leader === node.id).length;
  const holds = (node) => partitions.filter((one) => one.replicas.includes(node.id)).length;
  const found = [...clusterProblems(cluster), ...healthProblems(data.health)];
  const shown = partitions.filter((one) => one.topic.includes(text.trim()));
  const isWell = (one) => !one.offline && one.in_sync.length >= one.replicas.length && !one.damaged?.length;
  return html`<${Page} title="Cluster" actions=${cluster.cluster && html`<button onClick=${() => setRebalancing(true)}>Rebalance</button>`}>
    <${Failure} error=${error} />
    ${found.length > 0 && html`<${Card} title="What is wrong"><ul class="problems">${found.map((one) => html`<li class=${one.tone}>${one.text}</li>`)}</ul></${Card}>`}
    <${Stats} items=${[
      ["Kind", cluster.cluster ? "cluster" : "one node"],
      ["Controller", cluster.controller ?? "none", cluster.controller ? "" : "bad"],
      ["Partitions", format.count(partitions.length)],
      ["Too few replicas", format.count(cluster.under_replicated.length), cluster.under_replicated.length ? "warn" : ""],
      ["Offline", format.count(cluster.offline.length), cluster.offline.length ? "bad" : ""],
      ["Moves", format.count(cluster.moves.length)],
    ]} />
    <${Card} title="Nodes"><${Table} label="Nodes" rows=${cluster.nodes} keyOf=${(node) => node.id} columns=${[
      ["Node", (node) => html`<strong>${node.id}</strong>${node.id === cluster.node && " (this one)"}`],
      ["Status", (node) => html`<${Badge} tone=${tone(node)}>${node.status}</${Badge}>`],
      ["Leads", (node) => format.count(leads(node)), "num"],
      ["Replicas", (node) => format.count(holds(node)), "num"],
      ["Address", (node) => node.url, "any"],
      ["Rack", (node) => node.rack ?? ""],
      ["Clock", (node) => (node.clock_skew_s == null ? "" : `${node.clock_skew_s.toFixed(3)} s`), "num"],
      ["Reason", (node) => node.reason ?? "", "any"],
    ]} /></${Card}>
    ${cluster.moves.length > 0 && html`<${Card} title="Moves"><${Table} label="Moves" rows=${cluster.moves} columns=${[
      ["Partition", (move) => `${move.topic}:${move.partition}`, "any"],
      ["To", (move) => move.target.join(", ")],
      ["State", (move) => move.state],
      ["Done", (move) => (move.progress == null ? "" : html`<progress max="1" value=${move.progress} aria-label=${`Move of ${move.topic}:${move.partition}`} /> ${Math.round(move.progress * 100)} %`)],
    ]} /></${Card}>`}
    <${Card} title="Partitions" note="those that are not well first">
      <${Field} label="Part of the topic's name" type="search" value=${text} onInput=${setText} />
      <${Table} key=${text} label="Partitions" rows=${[...shown].sort((a, b) => isWell(a) - isWell(b))}
        keyOf=${(one) => `${one.topic}:${one.partition}`} columns=${[
          ["Partition", (one) => html`<a href=${links.topic(one.topic)}>${one.topic}:${one.partition}</a>`, "any"],
          ["Leader", (one) => one.leader ?? html`<${Badge} tone="bad">none</${Badge}>`],
          ["Epoch", (one) => one.leader_epoch, "num"],
          ["In sync", (one) => one.in_sync.join(", ")],
          ["Replicas", (one) => one.replicas.join(", ")],
          ["State", (one) => html`${one.offline && html`<${Badge} tone="bad">offline</${Badge}>`}
            ${one.in_sync.length < one.replicas.length && html`<${Badge} tone="warn">not all in sync</${Badge}>`}
            ${one.damaged?.length > 0 && html`<${Badge} tone="bad">damaged</${Badge}>`}`],
        ]} /></${Card}>
    ${isRebalancing && html`<${Rebalance} onClose=${() => setRebalancing(false)} onDone=${() => { setRebalancing(false); reload(); }} />`}
  </${Page}>`;
}
