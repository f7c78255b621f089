// The messages of a topic, newest first: found by text and time, looked at, published.

import { html, useState } from "../vendor/preact.js";
import { get, query, topicPath } from "../api.js";
import * as format from "../format.js";
import { Card, Choice, Failure, Field, Loading, MessageLink, Page, Table, Tabs, Time, useAction } from "../parts.js";
import { links, useData } from "../state.js";
import { keyText, preview } from "../value.js";
import { PublishDialog } from "../publish.js";

const PAGE = 50;
const LIVE_MS = 2000;
const ANY = { text: "", where: "", from: "", to: "" };

const time = (local) => (local ? format.iso(Date.parse(local)) : "");

function pathOf(topic, wanted, cursor) {
  const looked = wanted.text ? { text: wanted.text, in: wanted.where, ignore_case: "true" } : {};
  return query(`${topicPath(topic)}/search`, {
    ...looked, from_time: time(wanted.from), to_time: time(wanted.to), limit: PAGE, cursor,
  });
}

function Filters({ onFilter }) {
  const [wanted, setWanted] = useState(ANY);
  const set = (name) => (value) => setWanted({ ...wanted, [name]: value });
  const submit = (event) => {
    event.preventDefault();
    onFilter(wanted);
  };
  return html`<form class="filters" role="search" aria-label="Filter" onSubmit=${submit}>
    <${Field} label="Text" type="search" value=${wanted.text} onInput=${set("text")} />
    <${Choice} label="In" value=${wanted.where} onInput=${set("where")}
      options=${[["", "value, key, headers"], ["value", "value"], ["key", "key"], ["header", "headers"]]} />
    <${Field} label="From" type="datetime-local" step="1" value=${wanted.from} onInput=${set("from")} />
    <${Field} label="To" type="datetime-local" step="1" value=${wanted.to} onInput=${set("to")} />
    <button class="primary">Find</button>
    <button type="button" onClick=${() => { setWanted(ANY); onFilter(ANY); }}>All</button>
  </form>`;
}

export function Messages({ topic }) {
  const [wanted, setWanted] = useState(ANY);
  const [older, setOlder] = useState(null); // once asked for, the list stands still
  const [isPublishing, setPublishing] = useState(false);
  const isLive = older === null && !wanted.text && !wanted.to;
  const newest = useData((signal) => get(pathOf(topic, wanted), signal), [topic, wanted], isLive ? LIVE_MS : undefined);
  const page = older ?? newest.data;
  const [more, isBusy, failure] = useAction(async () => {
    const next = await get(pathOf(topic, wanted, page.next));
    setOlder({ ...next, messages: [...page.messages, ...next.messages], searched: page.searched + next.searched });
    return next;
  });
  const filter = (chosen) => {
    setOlder(null);
    setWanted({ ...chosen });
  };
  const actions = html`<button class="primary" onClick=${() => setPublishing(true)}>Publish</button>`;
  return html`<${Page} title=${topic} crumbs=${[["topics", links.topics()]]} actions=${actions}>
    <${Tabs} topic=${topic} page="messages" />
    <${Card} title="Messages" note=${isLive ? "newest first, live" : "newest first"}>
      <${Filters} onFilter=${filter} />
      ${!page && html`<${Loading} data=${page} error=${newest.error} />`}
      ${page && html`
        <${Failure} error=${failure ?? newest.error} />
        <${Table} label="Messages" rows=${page.messages} empty=${page.next ? "None among those looked at." : "No message."}
          keyOf=${(message) => message.id} columns=${[
            ["Message", (message) => html`<${MessageLink} id=${message.id} />`, "nowrap"],
            ["Published", (message) => html`<${Time} at=${message.timestamp} precise=${true} />`, "nowrap"],
            ["Key", (message) => keyText(message), "any mono"],
            ["Lane", (message) => message.priority ?? ""],
            ["Tenant", (message) => message.tenant ?? "", "any"],
            ["Value", (message) => preview(message), "clip"],
          ]} />
        ${wanted.text && html`<p class="quiet">${format.plural(page.searched, "message")} searched.</p>`}
        ${page.next && html`<button disabled=${isBusy} onClick=${more}>Older messages</button>`}`}
    </${Card}>
    ${isPublishing && html`<${PublishDialog} topic=${topic} onClose=${() => setPublishing(false)}
      onDone=${() => { setPublishing(false); setOlder(null); newest.reload(); }} />`}
  </${Page}>`;
}
