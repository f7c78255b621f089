// Topics: found by a part of their name, the first of an order; the node searches and sorts.

import { html, useEffect, useState } from "../vendor/preact.js";
import * as format from "../format.js";
import { useLive } from "../live.js";
import { Badge, Card, Choice, Failure, Field, Loading, Page, Table } from "../parts.js";
import { links, useTyped } from "../state.js";

const STEP = 100; // topics that are asked for, and more on demand
const MOST = 10_000; // that a node tells of
const ORDERS = [
  ["name", "Name", null],
  ["publish", "Published / s", (topic) => topic.rates.published_messages],
  ["deliver", "Delivered / s", (topic) => topic.rates.delivered_messages],
  ["lag", "Lag", (topic) => topic.lag],
  ["messages", "Messages", (topic) => topic.messages],
  ["bytes", "Size", (topic) => topic.bytes],
];
const byName = (a, b) => (a.name < b.name ? -1 : 1);

function List({ live, amount, count, onMore }) {
  const rows = [...live.topics.values()].sort((a, b) => (amount && amount(b) - amount(a)) || byName(a, b));
  return html`
    <${Table} label="Topics" rows=${rows} shown=${MOST} keyOf=${(topic) => topic.name} empty="No topic has this in its name." columns=${[
      ["Topic", (topic) => html`<a href=${links.topic(topic.name)}>${topic.name}</a>`, "any"],
      ["Partitions", (topic) => format.count(topic.partitions), "num"],
      ["Messages", (topic) => format.count(topic.messages), "num"],
      ["Size", (topic) => format.bytes(topic.bytes), "num"],
      ["Published / s", (topic) => format.compact(topic.rates.published_messages), "num"],
      ["Delivered / s", (topic) => format.compact(topic.rates.delivered_messages), "num"],
      ["Groups", (topic) => format.count(topic.group_count), "num"],
      ["Lag", (topic) => format.count(topic.lag), "num"],
      ["State", (topic) => topic.offline > 0 && html`<${Badge} tone="bad">${format.count(topic.offline)} offline</${Badge}>`],
    ]} />
    ${live.isPartial && count < MOST && html`<button class="more" onClick=${onMore}>
      Show more of ${format.count(live.totals.topics)}</button>`}`;
}

export function Topics() {
  const [text, setText] = useState("");
  const [order, setOrder] = useState("name");
  const [count, setCount] = useState(STEP);
  const search = useTyped(text.trim());
  useEffect(() => setCount(STEP), [search, order]);
  const { live, error } = useLive({ search, order, top: count });
  const note = live.totals && (live.isPartial
    ? `${format.count(live.topics.size)} of ${format.count(live.totals.topics)}` : format.count(live.totals.topics));
  return html`<${Page} title="Topics">
    <${Card} title="Topics" note=${note}>
      <div class="filters">
        <${Field} label="Part of the name" type="search" maxlength="200" value=${text} onInput=${setText} />
        <${Choice} label="First" value=${order} onInput=${setOrder} options=${ORDERS} />
      </div>
      ${live.totals ? html`<${Failure} error=${error} />
        <${List} live=${live} amount=${ORDERS.find(([name]) => name === order)[2]} count=${count} onMore=${() => setCount(count + STEP)} />`
        : html`<${Loading} data=${null} error=${error} />`}</${Card}>
  </${Page}>`;
}
