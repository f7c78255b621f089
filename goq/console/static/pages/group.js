// A group: its progress now or at a moment of the past, what is in flight, and a reset.

import { html, useEffect, useState } from "../vendor/preact.js";
import { NoAnswer, get, groupPath, query, topicPath } from "../api.js";
import * as format from "../format.js";
import { Badge, Card, Failure, Loading, MessageLink, Page, Stats, Table, Time } from "../parts.js";
import { ResetDialog } from "../reset.js";
import { links, useData } from "../state.js";
import { keyText, preview } from "../value.js";

const LIVE_MS = 2000;
const SETTLE_MS = 250; // the slider rests before the node is asked
const STEPS = 1000;
const EPOCH = "1970-01-01T00:00:00Z";
const KEPT_FROM = /(\S+Z) is not kept/; // as the node says it
const UNKNOWN_MS = 7 * 86400000; // how far back to choose where the first moment is not known

/**
 * The first moment that the node answers: { first, isEmpty, reason }. What was before the beginning of the logs is refused
 * with the time of that; logs that lack nothing begin with the topic's first message.
 */
async function moments(topic, group, signal) {
  const [kept, history] = await Promise.allSettled([
    get(query(groupPath(topic, group), { as_of: EPOCH }), signal), get(`${topicPath(topic)}/history`, signal),
  ]);
  for (const { reason } of [kept, history]) if (reason instanceof NoAnswer || signal.aborted) throw reason;
  const first = KEPT_FROM.exec(kept.reason?.message)?.[1] ?? history.value?.first_time ?? null;
  const isEmpty = !first && history.status === "fulfilled" && kept.reason?.code === "group_not_found";
  return { first, isEmpty, reason: history.reason?.message ?? kept.reason?.message ?? "" };
}

function rangeWords({ data, error }) {
  if (!data) return error ? error.message : "Loading …";
  if (data.isEmpty) return "The topic has no message yet.";
  if (data.first) return `from ${format.time(data.first)} until now`;
  return `the last 7 days; the first moment is not known: ${data.reason}`;
}

/** Chooses a time between the first moment that the node answers and now; "" is now. */
function Moment({ topic, group, onChoose }) {
  const [{ at, toMs }, setChosen] = useState({ at: STEPS, toMs: 0 });
  const found = useData((signal) => moments(topic, group, signal), [topic, group], (data) => (data.isEmpty ? LIVE_MS : undefined));
  const first = found.data?.first;
  const fromMs = first ? Math.ceil(format.milliseconds(first)) : toMs - UNKNOWN_MS;
  const ms = fromMs + ((toMs - fromMs) * at) / STEPS;
  const isNow = at >= STEPS;
  useEffect(() => {
    const timer = setTimeout(() => onChoose(isNow ? "" : format.iso(ms)), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [at, first]);
  const choose = (step) => setChosen({ at: step, toMs: isNow ? format.now() : toMs });
  const words = isNow ? "now" : format.time(format.iso(ms));
  return html`<div class="field"><label for="moment">Moment: ${words}</label>
    <input id="moment" type="range" min="0" max=${STEPS} value=${at} disabled=${!found.data || found.data.isEmpty} aria-valuetext=${words}
      onInput=${(event) => choose(Number(event.target.value))} />
    <small>${rangeWords(found)}</small></div>`;
}

function InFlight({ topic, group }) {
  const path = query(`${groupPath(topic, group)}/peek`, { state: "leased", limit: 50 });
  const { data, error } = useData((signal) => get(path, signal), [topic, group], LIVE_MS);
  if (!data) return html`<${Loading} data=${data} error=${error} />`;
  return html`<${Failure} error=${error} /><${Table} label="In flight" rows=${data.messages} empty="Nothing is in flight."
    keyOf=${(message) => message.id} columns=${[
      ["Message", (message) => html`<${MessageLink} id=${message.id} />`, "nowrap"],
      ["Lease ends", (message) => (message.lease_until ? html`<${Time} at=${message.lease_until} />, ${format.since(message.lease_until)}` : "–"), "nowrap"],
      ["Attempt", (message) => message.attempt ?? "", "num"],
      ["Key", (message) => keyText(message), "any mono"],
      ["Value", (message) => preview(message), "clip"],
    ]} />${data.next && html`<p class="quiet">Only the first 50 are shown.</p>`}`;
}

function Members({ topic, group }) {
  const { data } = useData((signal) => get(`${groupPath(topic, group)}/members`, signal), [topic, group], 5000);
  if (!data?.members.length) return null;
  return html`<${Card} title="Members" note=${`generation ${data.generation}`}>
    <${Table} label="Members" rows=${data.members} columns=${[
      ["Consumer", (one) => one.consumer, "any"],
      ["Partitions", (one) => one.partitions.join(", ") || "none", "any"],
      ["Gives up", (one) => one.revoking.join(", ")],
      ["Last seen", (one) => format.since(one.last_seen)],
    ]} /></${Card}>`;
}

function Progress({ data }) {
  return html`
    <${Stats} items=${[
      ["Lag", format.count(data.lag)],
      ["Ready", format.count(data.ready)],
      ["In flight", format.count(data.leased)],
      ["Retry", format.count(data.retry)],
      ["Behind their key", data.blocked == null ? "not known" : format.count(data.blocked)],
      ["Scheduled", format.count(data.scheduled)],
      ["Dead so far", format.count(data.dead), data.dead ? "warn" : ""],
      ["Oldest waits", format.duration(data.oldest_ready_age_ms)],
    ]} />
    ${(data.incomplete ?? []).map((gap) => html`<p class="warning">Partition ${gap.partition}: the history may lack
      something${gap.from && ` from ${format.time(gap.from)}`}${gap.to && ` to ${format.time(gap.to)}`}: ${gap.reason}</p>`)}
    <${Card} title="Partitions">
      <${Table} label="Partitions" rows=${data.partitions} keyOf=${(one) => one.partition} columns=${[
        ["Partition", (one) => one.partition, "num"],
        ["Delivered or done up to", (one) => format.count(one.cursor), "num"],
        ["Lag", (one) => format.count(one.lag), "num"],
        ["Ready", (one) => format.count(one.ready), "num"],
        ["In flight", (one) => format.count(one.leased), "num"],
        ["Retry", (one) => format.count(one.retry), "num"],
        ["Dead", (one) => format.count(one.dead), "num"],
        ["Ends", (one) => one.end !== undefined && html`<${Badge}>until ${format.count(one.end)}</${Badge}>`],
      ]} /></${Card}>`;
}

export function Group({ topic, group }) {
  const [asOf, setAsOf] = useState("");
  const [isResetting, setResetting] = useState(false);
  const path = query(groupPath(topic, group), { as_of: asOf });
  const { data, error, reload } = useData((signal) => get(path, signal), [path], asOf ? undefined : LIVE_MS);
  const actions = html`
    <a class="button" href=${links.dead(topic)}>Dead letters</a>
    <button onClick=${() => setResetting(true)}>Reset</button>`;
  return html`<${Page} title=${group} crumbs=${[["topics", links.topics()], [topic, links.topic(topic)], ["groups", links.topic(topic)]]} actions=${actions}>
    <${Card} title="Progress" note=${asOf ? "as it was then" : "now"}><${Moment} topic=${topic} group=${group} onChoose=${setAsOf} /></${Card}>
    ${!data && html`<${Loading} data=${data} error=${error} />`}
    ${data && html`<${Failure} error=${error} /><${Progress} data=${data} />`}
    ${data && !asOf && html`
      <div class="grid">
        <${Card} wide title="In flight" note=${format.count(data.leased)}><${InFlight} topic=${topic} group=${group} /></${Card}>
        <${Card} title="Consumers with leases">
          <${Table} label="Consumers" rows=${data.members} empty="None." columns=${[
            ["Consumer", (one) => one.consumer || "(no name)", "any"],
            ["In flight", (one) => format.count(one.leased), "num"],
          ]} /></${Card}>
        <${Members} topic=${topic} group=${group} />
        <${Card} title="Settings"><dl class="pairs">${Object.entries(data.settings ?? {}).map(([name, value]) => html`
          <div><dt>${name}</dt><dd class="mono">${value}</dd></div>`)}</dl></${Card}>
      </div>`}
    ${isResetting && html`<${ResetDialog} topic=${topic} group=${group} onClose=${() => setResetting(false)}
      onDone=${() => { setResetting(false); reload(); }} />`}
  </${Page}>`;
}
