// Dialogs that put dead letters back, at a rate, or take them away for good. Both count first.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { call, query, topicPath } from "./api.js";
import * as format from "./format.js";
import { Confirm, Dialog, Failure, Field, say, useAction } from "./parts.js";

const AT_ONCE = 1000;
const SECOND_MS = 1000;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

/** Calls ask(after) page by page until the end or until stop(); adds up the numbers of names. */
export async function allPages(ask, names, { stop = () => false, onPage = () => {}, pauseMs = 0 } = {}) {
  const sums = Object.fromEntries(names.map((name) => [name, 0]));
  let after;
  do {
    const answer = await ask(after);
    for (const name of names) sums[name] += answer[name] ?? 0;
    after = answer.next ?? undefined;
    onPage({ ...sums });
    if (after && pauseMs) await wait(pauseMs);
  } while (after && !stop());
  return { ...sums, isStopped: Boolean(after) };
}

const COUNTED = ["matched", "redriven", "looped", "lost", "without_origin"];

const redrive = (topic, target, fields) => call("POST", `${topicPath(topic)}/redrive`, { ...target, ...fields });

function counted(plan) {
  const left = [
    plan.looped && `${format.count(plan.looped)} were redriven too often`,
    plan.lost && `${format.count(plan.lost)} cannot be read any more`,
    plan.without_origin && `${format.count(plan.without_origin)} were published here by a producer`,
  ].filter(Boolean);
  return `${format.plural(plan.redriven, "message")} would go back${left.length ? `; stay: ${left.join(", ")}` : ""}.`;
}

export function RedriveDialog({ topic, target, words, onClose, onDone }) {
  const [rate, setRate] = useState("");
  const [plan, setPlan] = useState(null);
  const [sums, setSums] = useState(null);
  const stopped = useRef(false);
  useEffect(() => () => (stopped.current = true), []);
  const [look, isLooking, refusal] = useAction(async () => {
    const ask = (after) => redrive(topic, target, { dry_run: true, after, max_messages: AT_ONCE });
    setPlan(await allPages(ask, COUNTED, { stop: () => stopped.current }));
  });
  useEffect(() => void look(), []);
  const [run, isRunning, failure] = useAction(async () => {
    const most = rate === "" ? AT_ONCE : Math.min(AT_ONCE, Number(rate));
    const ask = (after) => redrive(topic, target, { after, max_messages: most });
    const pauseMs = rate === "" ? 0 : SECOND_MS * (most / Number(rate));
    return allPages(ask, COUNTED, { stop: () => stopped.current, onPage: setSums, pauseMs });
  });
  const submit = async (event) => {
    event.preventDefault();
    const done = await run();
    if (!done) return;
    say(`${format.plural(done.redriven, "dead letter")} put back${done.isStopped ? ", then stopped" : ""}.`);
    onDone();
  };
  return html`<${Dialog} title=${`Redrive to ${topic}`} onClose=${onClose}><form onSubmit=${submit}>
    <p>Puts ${words} back, so that its group gets them again.</p>
    ${isLooking && html`<p class="quiet">Counting …</p>`}
    ${plan && html`<p class="warning">${counted(plan)}</p>`}
    <${Field} label="At most so many a second" type="number" min="1" max="100000" value=${rate} onInput=${setRate} hint="empty: as fast as it goes" />
    ${sums && html`<p role="status">${format.count(sums.redriven)} of ${format.count(plan?.redriven)} are back.</p>`}
    <${Failure} error=${refusal ?? failure} />
    <div class="buttons">
      ${isRunning ? html`<button type="button" onClick=${() => (stopped.current = true)}>Stop</button>`
        : html`<button type="button" onClick=${onClose}>Leave it</button>`}
      <button class="danger" disabled=${isRunning || !plan?.redriven}>Redrive</button></div>
  </form></${Dialog}>`;
}

export function PurgeDialog({ topic, target, words, onClose, onDone }) {
  const [count, setCount] = useState(null);
  const fields = { ...target, ids: target.ids?.join(",") };
  const purge = (dryRun) => allPages(
    (after) => call("DELETE", query(`${topicPath(topic)}/dead`, { ...fields, after, dry_run: String(dryRun) })), ["matched", "purged"]);
  const [look, , refusal] = useAction(async () => setCount(await purge(true)));
  useEffect(() => void look(), []);
  const done = (answer) => {
    say(`${format.plural(answer.purged, "dead letter")} taken away.`);
    onDone();
  };
  return html`<${Confirm} title=${`Purge dead letters of ${topic}`} verb="Purge" typed=${topic} onClose=${onClose} onDone=${done}
    action=${() => purge(false)}>
    <p>Takes ${words} away for good.</p>
    ${count ? html`<p class="warning">${format.plural(count.matched, "dead letter")} would be gone.</p>` : html`<p class="quiet">Counting …</p>`}
    <${Failure} error=${refusal} />
  </${Confirm}>`;
}
