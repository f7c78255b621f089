// All topics: found by a part of their name, 100 at a time.

import { html, useState } from "../vendor/preact.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { Badge, Card, Failure, Field, Loading, Page, Table } from "../parts.js";
import { links, useData } from "../state.js";

const sum = (topic, value) => topic.partitions.reduce((total, one) => total + value(one), 0);

export function Topics() {
  const { data, error } = useData((signal) => get("/v1/topics", signal), [], 10000);
  const [text, setText] = useState("");
  const all = data?.topics ?? [];
  const rows = all.filter((topic) => topic.name.includes(text.trim()));
  return html`<${Page} title="Topics">
    ${!data && html`<${Loading} data=${data} error=${error} />`}
    ${data && html`<${Card} title="Topics" note=${rows.length === all.length ? format.count(all.length) : `${format.count(rows.length)} of ${format.count(all.length)}`}>
      <${Failure} error=${error} />
      <${Field} label="Part of the name" type="search" value=${text} onInput=${setText} />
      <${Table} key=${text} label="Topics" rows=${rows} keyOf=${(topic) => topic.name} empty="No topic has this in its name." columns=${[
        ["Topic", (topic) => html`<a href=${links.topic(topic.name)}>${topic.name}</a>`, "any"],
        ["Partitions", (topic) => format.count(topic.partitions.length), "num"],
        ["Messages", (topic) => format.count(sum(topic, (one) => one.end_offset - one.start_offset)), "num"],
        ["Size", (topic) => format.bytes(sum(topic, (one) => one.bytes)), "num"],
        ["State", (topic) => topic.partitions.some((one) => one.online === false) && html`<${Badge} tone="bad">offline</${Badge}>`],
      ]} /></${Card}>`}
  </${Page}>`;
}
