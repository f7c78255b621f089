// A dialog that publishes one message.

import { html, useState } from "./vendor/preact.js";
import { call, topicPath } from "./api.js";
import { Dialog, Failure, Field, Lane, say, useAction } from "./parts.js";

const EMPTY = { value: "", key: "", headers: "", priority: "", delay: "", ttl: "", tenant: "", dedup_id: "", partition: "" };

/** Lines of name: value, as headers; a name may repeat. */
export function parseHeaders(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`This is no header, write name: value – ${line}`);
    return { name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
  });
}

export function newMessage(form) {
  const message = { value: form.value };
  for (const name of ["key", "priority", "delay", "ttl", "tenant", "dedup_id"]) {
    if (form[name] !== "") message[name] = form[name];
  }
  if (form.partition !== "") message.partition = Number(form.partition);
  const headers = parseHeaders(form.headers);
  if (headers.length) message.headers = headers;
  return message;
}

export function PublishDialog({ topic, onClose, onDone }) {
  const [form, setForm] = useState(EMPTY);
  const set = (name) => (value) => setForm({ ...form, [name]: value });
  const [run, isBusy, error] = useAction(() => call("POST", `${topicPath(topic)}/messages`, { messages: [newMessage(form)] }));
  const submit = async (event) => {
    event.preventDefault();
    const answer = await run();
    if (!answer) return;
    const [result] = answer.results;
    say(result.duplicate_of ? `It was there already: ${result.duplicate_of}.` : `Published ${result.id}.`);
    onDone();
  };
  return html`<${Dialog} title=${`Publish to ${topic}`} onClose=${onClose}><form onSubmit=${submit}>
    <${Field} label="Value" type="area" value=${form.value} onInput=${set("value")} />
    <div class="filters">
      <${Field} label="Key" value=${form.key} onInput=${set("key")} />
      <${Lane} topic=${topic} label="Priority" value=${form.priority} onInput=${set("priority")} none="the topic's" />
      <${Field} label="Delay" value=${form.delay} onInput=${set("delay")} hint="30s, 5m, 2h" />
      <${Field} label="Expires after" value=${form.ttl} onInput=${set("ttl")} hint="1h, 7d" />
    </div>
    <details><summary>More</summary>
      <${Field} label="Headers" type="area" value=${form.headers} onInput=${set("headers")} hint="one a line, name: value" />
      <div class="filters">
        <${Field} label="Tenant" value=${form.tenant} onInput=${set("tenant")} />
        <${Field} label="Dedup id" value=${form.dedup_id} onInput=${set("dedup_id")} />
        <${Field} label="Partition" type="number" min="0" value=${form.partition} onInput=${set("partition")} />
      </div>
    </details>
    <${Failure} error=${error} />
    <div class="buttons"><button type="button" onClick=${onClose}>Leave it</button>
      <button class="primary" disabled=${isBusy}>Publish</button></div>
  </form></${Dialog}>`;
}
