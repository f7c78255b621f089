// Parts that pages are made of. Text is always text: nothing here makes markup of it.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get, topicPath } from "./api.js";
import * as format from "./format.js";
import { links, useData } from "./state.js";

export function Page({ title, crumbs = [], actions, children }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${title} · goq`;
    heading.current?.focus({ preventScroll: true });
  }, [title]);
  return html`
    ${crumbs.length > 0 && html`<nav aria-label="Where you are" class="crumbs">
      ${crumbs.map(([text, href]) => html`<a href=${href}>${text}</a><span aria-hidden="true">/</span>`)}
    </nav>`}
    <div class="heading">
      <h1 tabindex="-1" ref=${heading}>${title}</h1>
      <div class="actions">${actions}</div>
    </div>
    ${children}`;
}

export function Card({ title, children, note, wide }) {
  return html`<section class=${wide ? "card wide" : "card"}>
    <h2>${title}${note != null && html` <small>${note}</small>`}</h2>${children}</section>`;
}

export function Stats({ items }) {
  return html`<dl class="stats">${items.map(([name, value, tone]) => html`
    <div class=${tone ?? ""}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export const Badge = ({ tone = "", children }) => html`<span class=${`badge ${tone}`}>${children}</span>`;

export function Failure({ error }) {
  if (!error) return null;
  return html`<p class="failure" role="alert"><strong>${error.code || "Not done"}</strong> ${error.message}</p>`;
}

export function Loading({ data, error }) {
  if (error) return html`<${Failure} error=${error} />`;
  return data === null ? html`<p class="quiet">Loading …</p>` : null;
}

const ROWS = 100;

/** A table; columns are [title, cell of a row, class]. It shows 100 rows, or shown, and more on demand. */
export function Table({ label, columns, rows, empty = "None.", keyOf, shown: first = ROWS }) {
  const [shown, setShown] = useState(first);
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${label}>
      <table>
        <thead><tr>${columns.map(([title, , kind]) => html`<th scope="col" class=${kind ?? ""}>${title}</th>`)}</tr></thead>
        <tbody>${rows.slice(0, shown).map((row) => html`<tr key=${keyOf?.(row)}>
          ${columns.map(([, cell, kind]) => html`<td class=${kind ?? ""}>${cell(row)}</td>`)}</tr>`)}
        </tbody>
      </table>
    </div>
    ${rows.length > shown && html`<button class="more" onClick=${() => setShown(shown + ROWS)}>
      Show more of ${format.count(rows.length)}</button>`}`;
}

/** A modal dialog; Escape closes it, and focus returns to where it was. */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close(); // the browser gives the focus back
  }, []);
  const close = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${element} aria-label=${title} onCancel=${close}>
    <h2>${title}</h2>${children}</dialog>`;
}

/** Runs an action once at a time: [run, isBusy, error]. */
export function useAction(action) {
  const [state, setState] = useState({ isBusy: false, error: null });
  async function run(...given) {
    setState({ isBusy: true, error: null });
    try {
      const done = await action(...given);
      setState({ isBusy: false, error: null });
      return done;
    } catch (error) {
      setState({ isBusy: false, error });
      return undefined;
    }
  }
  return [run, state.isBusy, state.error];
}

/** Asks before something that cannot be undone. typed: a text that must be typed first. */
export function Confirm({ title, action, verb, typed, onClose, onDone, children }) {
  const [text, setText] = useState("");
  const [run, isBusy, error] = useAction(action);
  const submit = async (event) => {
    event.preventDefault();
    const done = await run();
    if (done !== undefined) onDone(done);
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${children}
      ${typed && html`<${Field} label=${`Type ${typed} to confirm`} value=${text} onInput=${setText} />`}
      <${Failure} error=${error} />
      <div class="buttons">
        <button type="button" onClick=${onClose}>Leave it</button>
        <button class="danger" disabled=${isBusy || (typed && text !== typed)}>${verb}</button>
      </div>
    </form></${Dialog}>`;
}

let fields = 0;

export function Field({ label, value, onInput, type = "text", hint, ...rest }) {
  const [id] = useState(() => `field-${(fields += 1)}`);
  const changed = (event) => onInput(event.target.value);
  const hinted = hint ? `${id}-hint` : undefined;
  const common = { id, value, onInput: changed, "aria-describedby": hinted, ...rest };
  return html`<div class="field"><label for=${id}>${label}</label>
    ${type === "area" ? html`<textarea ...${common} rows="6" spellcheck=${false}></textarea>`
      : html`<input type=${type} autocomplete="off" ...${common} spellcheck=${false} />`}
    ${hint && html`<small id=${hinted}>${hint}</small>`}</div>`;
}

export function Choice({ label, value, onInput, options }) {
  const [id] = useState(() => `field-${(fields += 1)}`);
  return html`<div class="field"><label for=${id}>${label}</label>
    <select id=${id} value=${value} onChange=${(event) => onInput(event.target.value)}>
      ${options.map(([option, text]) => html`<option value=${option} selected=${option === value}>${text}</option>`)}
    </select></div>`;
}

/** A lane of a topic: one of its names, or a number where lanes have none. none: the words for no lane, if it may be none. */
export function Lane({ topic, label, value, onInput, none }) {
  const { data, error } = useData((signal) => get(topicPath(topic), signal), [topic]);
  const names = data?.settings["priority.lanes"];
  const common = { label, value, onInput, required: none === undefined };
  if (names === "numbers") {
    return html`<${Field} ...${common} type="number" min="0" max="255" hint=${`0 to 255, 0 goes first${none ? `; empty: ${none}` : ""}`} />`;
  }
  if (error) return html`<${Field} ...${common} hint="a name or a number" />`;
  const named = names?.split(",") ?? [];
  const options = (value && !named.includes(value) ? [value, ...named] : named).map((name) => [name, name]);
  return html`<${Choice} label=${label} value=${value} onInput=${onInput} options=${none ? [["", none], ...options] : options} />`;
}

/** What was done, said once in words, also to a screen reader. */
let announce = () => {};
export const say = (text) => announce(text);
const SAID_MS = 10000; // a notice lies over the page

/** The notice; it goes by itself, unless the pointer or the focus is on it. */
export function Notices() {
  const [{ text, isHeld }, setNotice] = useState({ text: "", isHeld: false });
  const show = (said) => setNotice({ text: said, isHeld: false });
  const hold = (held) => () => setNotice((notice) => ({ ...notice, isHeld: held }));
  useEffect(() => {
    announce = show;
    return () => (announce = () => {});
  }, []);
  useEffect(() => {
    if (!text || isHeld) return undefined;
    const timer = setTimeout(() => show(""), SAID_MS);
    return () => clearTimeout(timer);
  }, [text, isHeld]);
  return html`<div class="notice" role="status" aria-live="polite" onMouseEnter=${hold(true)} onMouseLeave=${hold(false)}>${text && html`
    <span>${text}</span><button class="plain" aria-label="Dismiss" onFocus=${hold(true)} onBlur=${hold(false)} onClick=${() => show("")}>×</button>`}</div>`;
}

export const Time = ({ at, precise }) => html`<time datetime=${at} title=${at}>${format.time(at, { precise })}</time>`;
export const MessageLink = ({ id }) => html`<a class="mono" href=${links.message(id)}>${id}</a>`;

const STATE_TONES = { ready: "good", leased: "busy", retry: "warn", dead: "bad", scheduled: "busy", cancelled: "bad" };
export const State = ({ state }) => html`<${Badge} tone=${STATE_TONES[state] ?? ""}>${state}</${Badge}>`;

export function Tabs({ topic, page }) {
  const tabs = [
    ["topic", "Overview", links.topic(topic)],
    ["messages", "Messages", links.messages(topic)],
    ["dead", "Dead letters", links.dead(topic)],
    ["scheduled", "Scheduled", links.scheduled(topic)],
  ];
  return html`<nav class="tabs" aria-label=${`Topic ${topic}`}>${tabs.map(([name, text, href]) => html`
    <a href=${href} aria-current=${name === page ? "page" : undefined}>${text}</a>`)}</nav>`;
}
