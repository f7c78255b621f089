// All topics: found by a part of their name, 100 at a time.

import { html, useState } from "../vendor/preact.js";
import * as format from "../format.js";
import { useLive } from "../live.js";
import { Badge, Card, Failure, Field, Loading, Page, Table } from "../parts.js";
import { links } from "../state.js";

export function Topics() {
  const { live, error } = useLive();
  const [text, setText] = useState("");
  if (!live.totals) return html`<${Page} title="Topics"><${Loading} data=${null} error=${error} /></${Page}>`;
  const all = [...live.topics.values()];
  const rows = all.filter((topic) => topic.name.includes(text.trim())).sort((a, b) => (a.name < b.name ? -1 : 1));
  const note = rows.length === live.totals.topics ? format.count(rows.length)
    : `${format.count(rows.length)} of ${format.count(live.totals.topics)}`;
  return html`<${Page} title="Topics">
    <${Card} title="Topics" note=${note}>
      <${Failure} error=${error} />
      <${Field} label="Part of the name" type="search" value=${text} onInput=${setText} />
      ${live.isPartial && html`<p class="warning">Only the first ${format.count(all.length)} by name are listed.
        Any other opens by its name in the field at the top.</p>`}
      <${Table} key=${text} label="Topics" rows=${rows} keyOf=${(topic) => topic.name} empty="No topic has this in its name." columns=${[
        ["Topic", (topic) => html`<a href=${links.topic(topic.name)}>${topic.name}</a>`, "any"],
        ["Partitions", (topic) => format.count(topic.partitions), "num"],
        ["Messages", (topic) => format.count(topic.messages), "num"],
        ["Size", (topic) => format.bytes(topic.bytes), "num"],
        ["Published / s", (topic) => format.compact(topic.rates.published_messages), "num"],
        ["Delivered / s", (topic) => format.compact(topic.rates.delivered_messages), "num"],
        ["Groups", (topic) => format.count(topic.group_count), "num"],
        ["State", (topic) => topic.offline > 0 && html`<${Badge} tone="bad">${format.count(topic.offline)} offline</${Badge}>`],
      ]} /></${Card}>
  </${Page}>`;
}
