// The messages of a topic that wait for their time, the next to be due first.

import { html, useState } from "../vendor/preact.js";
import { get, query, topicPath } from "../api.js";
import { ChangeDialog } from "../changes.js";
import { BarChart } from "../charts.js";
import * as format from "../format.js";
import { Card, Failure, Loading, MessageLink, Page, Stats, Table, Tabs, Time, useAction } from "../parts.js";
import { links, useData } from "../state.js";
import { keyText, preview } from "../value.js";

const PAGE = 200;
const BARS = 12;
const STEPS_MS = [60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400].map((s) => s * 1000);

/** Counts messages by when they are due, in at most about a dozen steps of even length. */
export function byTime(messages, nowMs) {
  if (!messages.length) return [];
  const dues = messages.map((message) => Math.max(nowMs, format.milliseconds(message.deliver_at)));
  const span = Math.max(...dues) - nowMs;
  const step = STEPS_MS.find((size) => span / size <= BARS) ?? Math.ceil(span / BARS);
  const bars = Array.from({ length: Math.floor(span / step) + 1 }, (_, at) => [`within ${format.duration((at + 1) * step)}`, 0]);
  for (const due of dues) bars[Math.floor((due - nowMs) / step)][1] += 1;
  return bars;
}

const path = (topic, after) => query(`${topicPath(topic)}/scheduled`, { limit: PAGE, after });

export function Scheduled({ topic }) {
  const first = useData((signal) => get(path(topic), signal), [topic], 5000);
  const history = useData((signal) => get(`${topicPath(topic)}/history`, signal), [topic], 10000);
  const [more, setMore] = useState(null);
  const [asked, setAsked] = useState(null);
  const page = more ?? first.data;
  const [load, isBusy, failure] = useAction(async () => {
    const next = await get(path(topic, page.next));
    setMore({ ...next, messages: [...page.messages, ...next.messages] });
    return next;
  });
  const summary = history.data?.scheduled;
  const changed = () => {
    setMore(null);
    first.reload();
    history.reload();
  };
  const ask = (kind, message) => () => setAsked({ kind, message });
  return html`<${Page} title=${topic} crumbs=${[["topics", links.topics()]]}>
    <${Tabs} topic=${topic} page="scheduled" />
    ${!page && html`<${Loading} data=${page} error=${first.error} />`}
    ${page && html`
      <${Stats} items=${[
        ["Scheduled", summary ? format.count(summary.count) : "–"],
        ["Next is due", summary?.next_due ? format.since(summary.next_due) : "–"],
      ]} />
      <${Card} title="When they are due" note=${page.next ? `the first ${format.count(page.messages.length)}` : ""}>
        <${BarChart} label="Messages by when they are due" bars=${byTime(page.messages, format.now())} /></${Card}>
      <${Card} title="Messages">
        <${Failure} error=${failure ?? first.error} />
        <${Table} label="Scheduled messages" rows=${page.messages} empty="No message waits for its time." keyOf=${(message) => message.id} columns=${[
          ["Due", (message) => html`<${Time} at=${message.deliver_at} />`, "nowrap"],
          ["When", (message) => format.since(message.deliver_at), "nowrap"],
          ["Message", (message) => html`<${MessageLink} id=${message.id} />`, "nowrap"],
          ["Key", (message) => keyText(message), "any mono"],
          ["Value", (message) => preview(message), "clip"],
          ["Change", (message) => html`<button aria-label=${`Reschedule ${message.id}`} onClick=${ask("reschedule", message)}>Reschedule</button>${" "}
            <button aria-label=${`Cancel ${message.id}`} onClick=${ask("cancel", message)}>Cancel</button>`, "nowrap"],
        ]} />
        ${page.next && html`<button disabled=${isBusy} onClick=${load}>Later messages</button>`}
      </${Card}>`}
    <${ChangeDialog} asked=${asked} onClose=${() => setAsked(null)} onDone=${changed} />
  </${Page}>`;
}
