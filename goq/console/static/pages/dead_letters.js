// The dead letters of a topic by cause and reason: put back or taken away, after a dry run.

import { html, useState } from "../vendor/preact.js";
import { get, query, topicPath } from "../api.js";
import * as format from "../format.js";
import { Badge, Card, Failure, Field, Loading, MessageLink, Page, Table, Tabs, Time, useAction } from "../parts.js";
import { PurgeDialog, RedriveDialog } from "../redrive.js";
import { links, useData } from "../state.js";
import { keyText, preview } from "../value.js";

const PAGE = 200;
const NONE = { group: "", cause: "", reason: "", reason_is: null }; // reason_is: all of it, "" for none given

const path = (topic, filter, after) => query(`${topicPath(topic)}/dead`, { ...filter, limit: PAGE, after });

/** The fields that narrow, as the node takes them. */
const filterOf = (wanted) => Object.fromEntries(
  Object.entries(wanted).filter(([name, value]) => (name === "reason_is" ? value !== null : value !== "")));

const inWords = ({ group, cause, reason, reason_is: all }) => [
  group && `of ${group}`, cause && `of the cause ${cause}`, reason && `with “${reason}” in the reason`,
  all === "" ? "without a reason" : all && `with the reason “${all}”`,
].filter(Boolean).join(", ");

/** Dead letters by group, cause and reason, the most first. */
export function byCause(letters) {
  const found = new Map();
  for (const letter of letters) {
    const { group = "", cause = "", reason = "" } = letter;
    const key = JSON.stringify([group, cause, reason]);
    const one = found.get(key) ?? { group, cause, reason, count: 0 };
    one.count += 1;
    found.set(key, one);
  }
  return [...found.values()].sort((a, b) => b.count - a.count);
}

function Causes({ letters, isAll, onChoose }) {
  return html`<${Card} title="By cause" note=${isAll ? "" : `of the first ${format.count(letters.length)}`}>
    <${Table} label="Causes" rows=${byCause(letters)} empty="No dead letters." columns=${[
      ["Count", (one) => format.count(one.count), "num"],
      ["Cause", (one) => html`<${Badge} tone="bad">${one.cause || "unknown"}</${Badge}>`],
      ["Group", (one) => one.group, "any"],
      ["Reason", (one) => one.reason || "none given", "any"],
      ["Show", (one) => one.group && html`<button aria-label=${`Only ${one.cause} ${one.reason || "without a reason"} of ${one.group}`}
        onClick=${() => onChoose({ ...NONE, group: one.group, cause: one.cause, reason_is: one.reason })}>Only these</button>`],
    ]} /></${Card}>`;
}

export function DeadLetters({ topic }) {
  const [wanted, setWanted] = useState(NONE);
  const [more, setMore] = useState(null);
  const [chosen, setChosen] = useState(new Set());
  const [dialog, setDialog] = useState(null);
  const filter = filterOf(wanted);
  const isNarrow = Object.keys(filter).length > 0;
  const first = useData((signal) => get(path(topic, filter), signal), [topic, wanted], 5000);
  const page = more ?? first.data;
  const [load, isBusy, failure] = useAction(async () => {
    const next = await get(path(topic, filter, page.next));
    setMore({ ...next, messages: [...page.messages, ...next.messages] });
    return next;
  });
  const narrow = (fields) => {
    setMore(null);
    setChosen(new Set());
    setWanted(fields);
  };
  const toggle = (id) => () => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const done = () => {
    setDialog(null);
    narrow({ ...wanted });
  };
  const target = chosen.size ? { ids: [...chosen] } : filter;
  const words = chosen.size ? `${format.plural(chosen.size, "chosen dead letter")}`
    : isNarrow ? `the dead letters ${inWords(wanted)}` : "all dead letters";
  const has = page?.messages.length > 0;
  const actions = html`
    <button disabled=${!has} onClick=${() => setDialog("redrive")}>Redrive ${chosen.size || ""}</button>
    <button disabled=${!has} onClick=${() => setDialog("purge")}>Purge ${chosen.size || ""}</button>`;
  const shared = { topic, target, words, onClose: () => setDialog(null), onDone: done };
  return html`<${Page} title=${topic} crumbs=${[["topics", links.topics()]]} actions=${actions}>
    <${Tabs} topic=${topic} page="dead" />
    ${!page && html`<${Loading} data=${page} error=${first.error} />`}
    ${page && html`
      <${Causes} letters=${page.messages} isAll=${!page.next} onChoose=${narrow} />
      <${Card} title="Dead letters">
        <div class="filters">
          <${Field} label="Group" value=${wanted.group} onInput=${(group) => narrow({ ...wanted, group })} />
          <${Field} label="In the reason" value=${wanted.reason} onInput=${(reason) => narrow({ ...wanted, reason, reason_is: null })} />
          ${isNarrow && html`<button onClick=${() => narrow(NONE)}>All dead letters</button>`}
        </div>
        ${isNarrow && html`<p class="quiet any">Only those ${inWords(wanted)}.</p>`}
        <${Failure} error=${failure ?? first.error} />
        <${Table} label="Dead letters" rows=${page.messages} empty="No dead letters." keyOf=${(letter) => letter.id} columns=${[
          ["Choose", (letter) => html`<input type="checkbox" aria-label=${`Choose ${letter.id}`} checked=${chosen.has(letter.id)} onChange=${toggle(letter.id)} />`],
          ["Message", (letter) => html`<${MessageLink} id=${letter.origin ?? letter.id} />`, "nowrap"],
          ["Died", (letter) => html`<${Time} at=${letter.died_at} />`, "nowrap"],
          ["Group", (letter) => letter.group ?? "", "any"],
          ["Cause", (letter) => html`<${Badge} tone="bad">${letter.cause ?? "unknown"}</${Badge}>`],
          ["Reason", (letter) => letter.reason ?? "", "any"],
          ["Attempts", (letter) => letter.attempts ?? "", "num"],
          ["Redriven", (letter) => letter.redrives || "", "num"],
          ["Key", (letter) => keyText(letter), "any mono"],
          ["Value", (letter) => letter.lost ?? preview(letter), "clip"],
        ]} />
        ${page.next && html`<button disabled=${isBusy} onClick=${load}>More dead letters</button>`}
      </${Card}>`}
    ${dialog === "redrive" && html`<${RedriveDialog} ...${shared} />`}
    ${dialog === "purge" && html`<${PurgeDialog} ...${shared} />`}
  </${Page}>`;
}
