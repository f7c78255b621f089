// Changes of one message that waits: cancel, another priority, another time. Each asks first.

import { html, useState } from "./vendor/preact.js";
import { call, messagePath, query } from "./api.js";
import * as format from "./format.js";
import { Confirm, Field, Lane, say } from "./parts.js";

const topicOf = (id) => id.slice(0, id.lastIndexOf(":", id.lastIndexOf(":") - 1));

export function CancelDialog({ message, onClose, onDone }) {
  const [reason, setReason] = useState("");
  const groups = message.groups ?? [];
  const settled = groups.filter((one) => one.state === "leased");
  const done = (answer) => {
    say(`${message.id} is ${answer.state}.`);
    onDone();
  };
  return html`<${Confirm} title=${`Cancel ${message.id}?`} verb="Cancel the message" onClose=${onClose} onDone=${done}
    action=${() => call("DELETE", query(messagePath(message.id), { reason }))}>
    <p>No group gets it that has not got it yet. This cannot be undone.</p>
    ${groups.length > 0 && html`<p>Now: ${groups.map((one) => `${one.group}: ${one.state}`).join(", ")}.
      ${settled.length > 0 && " A consumer with a lease may still settle it."}</p>`}
    <${Field} label="Reason, for whoever looks later" value=${reason} onInput=${setReason} />
  </${Confirm}>`;
}

export function PriorityDialog({ message, onClose, onDone }) {
  const [lane, setLane] = useState(message.priority ?? "");
  const done = (answer) => {
    say(`${message.id} has the priority ${answer.priority}.`);
    onDone();
  };
  return html`<${Confirm} title=${`Priority of ${message.id}`} verb="Change it" onClose=${onClose} onDone=${done}
    action=${() => call("PATCH", messagePath(message.id), { priority: lane })}>
    <p>It goes to the end of the lane that you choose.</p>
    <${Lane} topic=${topicOf(message.id)} label="Lane" value=${lane} onInput=${setLane} />
  </${Confirm}>`;
}

export function RescheduleDialog({ message, onClose, onDone }) {
  const before = message.deliver_at ? format.milliseconds(message.deliver_at) : format.now() + 60_000;
  const [at, setAt] = useState(format.localInput(before));
  const chosenMs = Date.parse(at);
  const done = (answer) => {
    say(`${message.id} is ${answer.state}${answer.deliver_at ? `, due ${format.time(answer.deliver_at)}` : ""}.`);
    onDone();
  };
  return html`<${Confirm} title=${`When to deliver ${message.id}`} verb="Reschedule" onClose=${onClose} onDone=${done}
    action=${() => call("PATCH", messagePath(message.id), { deliver_at: format.iso(chosenMs) })}>
    ${message.deliver_at && html`<p>Now due ${format.time(message.deliver_at)}, ${format.since(message.deliver_at)}.</p>`}
    <${Field} label="New time, in your zone" type="datetime-local" step="1" required value=${at} onInput=${setAt}
      hint=${Number.isNaN(chosenMs) ? "Give a date and a time." : format.since(format.iso(chosenMs))} />
  </${Confirm}>`;
}

const DIALOGS = { cancel: CancelDialog, priority: PriorityDialog, reschedule: RescheduleDialog };

/** The dialog that `asked` names ({ kind, message }), or nothing. */
export function ChangeDialog({ asked, onClose, onDone }) {
  if (!asked) return null;
  const Found = DIALOGS[asked.kind];
  return html`<${Found} message=${asked.message} onClose=${onClose} onDone=${() => { onClose(); onDone(); }} />`;
}
