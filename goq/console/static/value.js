// The value of a message as a JSON tree, text or hex, and its headers.

import { html, useState } from "./vendor/preact.js";
import * as format from "./format.js";

const TEXT_CHARS = 100_000;
const HEX_BYTES = 4096;
const ITEMS = 100;

export function valueBytes(message) {
  if (message.value_base64 !== undefined) {
    return Uint8Array.from(atob(message.value_base64), (letter) => letter.charCodeAt(0));
  }
  return new TextEncoder().encode(message.value ?? "");
}

export function keyText(message) {
  return message.key ?? (message.key_base64 !== undefined ? `base64 ${message.key_base64}` : "");
}

/** The first characters of a value, in one line. */
export function preview(message, chars = 120) {
  if (message.value === null) return "(tombstone)";
  if (message.value_base64 !== undefined) return `(binary) ${message.value_base64.slice(0, chars)}`;
  const text = (message.value ?? "").slice(0, chars + 1);
  return text.length > chars ? `${text.slice(0, chars)}…` : text;
}

/** A number as it is written in the value: as a number it would have 16 digits at most. */
class Written {
  constructor(text) {
    this.text = text;
  }
}

const written = (_key, value, context) => (typeof value === "number" ? new Written(context?.source ?? String(value)) : value);
const isLeaf = (value) => value === null || typeof value !== "object" || value instanceof Written;

function parsed(message) {
  if (typeof message.value !== "string" || message.value.length > 4 * TEXT_CHARS) return undefined;
  try {
    const found = JSON.parse(message.value, written);
    return isLeaf(found) ? undefined : found;
  } catch {
    return undefined; // no JSON, or too deep for the browser
  }
}

function Node({ name, value, depth }) {
  const [shown, setShown] = useState(ITEMS);
  const [isOpen, setOpen] = useState(depth < 3);
  const label = name === null ? "" : html`<span class="json-key">${name}</span>: `;
  if (isLeaf(value)) {
    const [kind, text] = value instanceof Written ? ["number", value.text] : [typeof value, JSON.stringify(value)];
    return html`<div class="json-leaf">${label}<span class=${`json-${kind}`}>${text}</span></div>`;
  }
  const entries = Array.isArray(value) ? value.map((item, at) => [String(at), item]) : Object.entries(value);
  const kind = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return html`<details open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)} class="json"><summary>${label}<span class="quiet">${kind}</span></summary>
    ${isOpen && entries.slice(0, shown).map(([key, item]) => html`<${Node} key=${key} name=${key} value=${item} depth=${depth + 1} />`)}
    ${isOpen && entries.length > shown && html`<button class="more" onClick=${() => setShown(shown + ITEMS)}>
      ${format.count(entries.length - shown)} more</button>`}</details>`;
}

export function hexDump(bytes) {
  const rows = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES); at += 16) {
    const some = [...bytes.slice(at, at + 16)];
    const hex = some.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = some.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    rows.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return rows.join("\n");
}

export function Value({ message }) {
  const tree = parsed(message);
  const isText = message.value_base64 === undefined;
  const views = [...(tree === undefined ? [] : ["JSON"]), ...(isText ? ["Text"] : []), "Hex"];
  const [chosen, setChosen] = useState(null);
  const view = views.includes(chosen) ? chosen : views[0];
  if (message.value === null) return html`<p class="quiet">No value: a tombstone.</p>`;
  const bytes = valueBytes(message);
  const cut = view === "Hex" ? bytes.length > HEX_BYTES : view === "Text" && message.value.length > TEXT_CHARS;
  return html`
    <div class="views" role="group" aria-label="Show the value as">${views.map((name) => html`
      <button aria-pressed=${String(name === view)} onClick=${() => setChosen(name)}>${name}</button>`)}
      <span class="quiet">${format.bytes(bytes.length)}</span></div>
    <div class="value" tabindex="0" role="region" aria-label="Value">
      ${view === "JSON" ? html`<${Node} name=${null} value=${tree} depth=${0} />`
        : html`<pre>${view === "Text" ? message.value.slice(0, TEXT_CHARS) : hexDump(bytes)}</pre>`}
    </div>
    ${cut && html`<p class="quiet">Only the first part is shown.</p>`}`;
}

export function Headers({ message }) {
  const given = message.headers ?? [];
  const list = Array.isArray(given)
    ? given.map((one) => [one.name, one.value ?? `base64 ${one.value_base64}`])
    : Object.entries(given);
  if (!list.length) return null;
  return html`<h3>Headers</h3><dl class="pairs">${list.map(([name, value]) => html`
    <div><dt>${name}</dt><dd class="mono">${value}</dd></div>`)}</dl>`;
}
