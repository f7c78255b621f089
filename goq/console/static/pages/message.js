// One message: its life, what it is for each group, its value, and what can be changed.

import { html, useState } from "../vendor/preact.js";
import { get, messagePath } from "../api.js";
import { ChangeDialog } from "../changes.js";
import * as format from "../format.js";
import { Badge, Card, Failure, Loading, MessageLink, Page, State, Stats, Table, Time, say } from "../parts.js";
import { links, useData } from "../state.js";
import { Timeline } from "../timeline.js";
import { Headers, Value, keyText } from "../value.js";

const GOOD = ["ACKNOWLEDGED"];
const BAD = ["REJECTED", "EXPIRED", "DEAD_LETTERED", "CANCELLED", "CORRUPTED", "DELETED"];
const tone = (event) => (GOOD.includes(event) ? "good" : BAD.includes(event) ? "bad" : event === "NACKED" ? "warn" : "");

/** What can be read of a message: its status may be gone while its trace is kept. */
async function load(id, signal) {
  const [status, trace] = await Promise.allSettled([
    get(messagePath(id), signal), get(`${messagePath(id)}/trace`, signal),
  ]);
  if (status.status === "rejected" && trace.status === "rejected") throw trace.reason;
  return { status: status.value ?? null, trace: trace.value ?? null, error: status.reason ?? trace.reason ?? null };
}

function Steps({ trace }) {
  const firstUs = trace.events.length ? format.microseconds(trace.events[0].time) : 0;
  const details = (step) => [
    ...["producer", "node", "durability", "lane"].filter((name) => step[name]).map((name) => html`<span>${name} ${step[name]} </span>`),
    step.until && html`<span>visible until ${format.time(step.until)} </span>`,
    step.due && html`<span>due ${format.time(step.due, { precise: true })} </span>`,
    step.reason && html`<span class="mono">${step.reason} </span>`,
    step.to && html`<span>to <${MessageLink} id=${step.to} /> </span>`,
    step.from && html`<span>from <${MessageLink} id=${step.from} /> </span>`,
  ];
  return html`<${Table} label="Steps" rows=${trace.events} columns=${[
    ["Time", (step) => html`<${Time} at=${step.time} precise=${true} />`, "nowrap"],
    ["After", (step) => `+${format.duration((format.microseconds(step.time) - firstUs) / 1000)}`, "num"],
    ["Step", (step) => html`<${Badge} tone=${tone(step.event)}>${step.event}</${Badge}>`],
    ["Message", (step) => html`<${MessageLink} id=${step.id} />`],
    ["Group", (step) => step.group ?? ""],
    ["Consumer", (step) => step.consumer ?? "", "any"],
    ["Attempt", (step) => step.attempt ?? "", "num"],
    ["Details", details, "any"],
  ]} />`;
}

function Groups({ topic, groups }) {
  return html`<${Table} label="Groups" rows=${groups} empty="The topic has no group." columns=${[
    ["Group", (one) => html`<a href=${links.group(topic, one.group)}>${one.group}</a>`],
    ["State", (one) => html`<${State} state=${one.state} />`],
    ["Attempt", (one) => one.attempt ?? "", "num"],
    ["Consumer", (one) => one.consumer ?? "", "any"],
    ["Until", (one) => (one.lease_until ?? one.due ? html`<${Time} at=${one.lease_until ?? one.due} />` : "")],
  ]} />`;
}

export function Message({ id }) {
  const { data, error, reload } = useData((signal) => load(id, signal), [id], 2000);
  const [asked, setAsked] = useState(null);
  const topic = id.split(":")[0];
  const crumbs = [[topic, links.topic(topic)], ["messages", links.messages(topic)]];
  if (!data) return html`<${Page} title=${id} crumbs=${crumbs}><${Loading} data=${data} error=${error} /></${Page}>`;
  const { status, trace } = data;
  const message = status ?? trace.message;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link to this message is copied.");
    } catch {
      say(`The link: ${location.href}`);
    }
  };
  const ask = (kind) => () => setAsked({ kind, message: status });
  const isScheduled = status?.state === "scheduled";
  const actions = html`
    <button onClick=${copy}>Copy link</button>
    ${status && status.state !== "cancelled" && html`
      <button onClick=${ask("priority")}>Priority</button>
      ${isScheduled && html`<button onClick=${ask("reschedule")}>Reschedule</button>`}
      <button onClick=${ask("cancel")}>Cancel</button>`}`;
  return html`<${Page} title=${id} crumbs=${crumbs} actions=${actions}>
    <${Failure} error=${error ?? data.error} />
    <${Stats} items=${[
      ["State", html`<${State} state=${status?.state ?? trace.message.state} />`],
      ["Attempts", trace ? format.count(trace.attempts) : "–"],
      ["Publish to ack", trace?.publish_to_ack_ms == null ? "not yet" : format.duration(trace.publish_to_ack_ms)],
      ["Published", html`<${Time} at=${message.timestamp} />`],
    ]} />
    <div class="grid">
      ${trace && html`<${Card} wide title="Life" note=${format.plural(trace.attempts, "attempt")}>
        ${trace.incomplete.map((gap) => html`<p class="warning">Steps may be missing: ${gap.reason}</p>`)}
        <${Timeline} trace=${trace} /><${Steps} trace=${trace} /></${Card}>`}
      ${status && html`<${Card} title="Value"><${Value} message=${status} /><${Headers} message=${status} /></${Card}>`}
      <${Card} title="Groups"><${Groups} topic=${topic} groups=${status?.groups ?? []} /></${Card}>
      <${Card} title="About"><dl class="pairs">
        ${[
          ["Key", keyText(message) || "none"], ["Lane", status?.priority ?? trace?.message.lane], ["Tenant", message.tenant],
          ["Published", message.timestamp], ["Deliver at", message.deliver_at], ["Expires", message.expires_at],
          ["Producer", trace?.message.producer], ["Trace parent", trace?.message.traceparent],
          ["Retained until", trace?.message.retained_until], ["On nodes", trace?.message.nodes?.join(", ")],
        ].filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd class="mono">${value}</dd></div>`)}
      </dl></${Card}>
    </div>
    <${ChangeDialog} asked=${asked} onClose=${() => setAsked(null)} onDone=${reload} />
  </${Page}>`;
}
