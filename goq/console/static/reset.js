// A dialog that resets a group, after it has shown what that would do.

import { html, useState } from "./vendor/preact.js";
import { call, groupPath } from "./api.js";
import * as format from "./format.js";
import { Choice, Dialog, Failure, Field, Table, say, useAction } from "./parts.js";

const total = (plan, name) => plan.partitions.reduce((sum, one) => sum + (one[name] ?? 0), 0);

export function ResetDialog({ topic, group, onClose, onDone }) {
  const [kind, setKind] = useState("earliest");
  const [text, setText] = useState("");
  const [plan, setPlan] = useState(null); // { to, answer } of the dry run
  const to = () => (kind === "time" ? format.iso(Date.parse(text)) : kind === "offset" ? Number(text) : kind);
  const reset = (target, dryRun) => call("POST", `${groupPath(topic, group)}/reset`, { to: target, dry_run: dryRun });
  const [look, isLooking, refusal] = useAction(async () => {
    const target = to();
    setPlan({ to: target, answer: await reset(target, true) });
    return true;
  });
  const [run, isRunning, failure] = useAction(() => reset(plan.to, false));
  const choose = (set) => (value) => {
    set(value);
    setPlan(null); // what was shown is of another target
  };
  const submit = async (event) => {
    event.preventDefault();
    if (!plan) {
      await look();
      return;
    }
    const answer = await run();
    if (!answer) return;
    say(`${group} is reset: ${format.plural(total(answer, "redelivers"), "message")} again, ${format.count(total(answer, "skips"))} skipped.`);
    onDone();
  };
  return html`<${Dialog} title=${`Reset ${group} of ${topic}`} onClose=${onClose}><form onSubmit=${submit}>
    <div class="filters">
      <${Choice} label="Go on from" value=${kind} onInput=${choose(setKind)} options=${[
        ["earliest", "the first message"], ["latest", "what comes from now on"], ["time", "a time"], ["offset", "an offset"]]} />
      ${kind === "time" && html`<${Field} label="Time, in your zone" type="datetime-local" step="1" required value=${text} onInput=${choose(setText)} />`}
      ${kind === "offset" && html`<${Field} label="Offset" type="number" min="0" required value=${text} onInput=${choose(setText)} />`}
    </div>
    <${Failure} error=${refusal ?? failure} />
    ${plan && html`
      <p class="warning">${format.plural(total(plan.answer, "redelivers"), "message")} would come again,
        ${" "}${format.count(total(plan.answer, "skips"))} would be skipped, ${format.plural(total(plan.answer, "voids"), "lease")} would end.</p>
      <${Table} label="What the reset would do" rows=${plan.answer.partitions} columns=${[
        ["Partition", (one) => one.partition, "num"],
        ["From", (one) => format.count(one.cursor), "num"],
        ["To", (one) => format.count(one.to), "num"],
        ["Again", (one) => format.count(one.redelivers), "num"],
        ["Skipped", (one) => format.count(one.skips), "num"],
        ["Leases ended", (one) => format.count(one.voids), "num"],
      ]} />`}
    <div class="buttons"><button type="button" onClick=${onClose}>Leave it</button>
      ${plan ? html`<button class="danger" disabled=${isRunning}>Reset the group</button>`
        : html`<button class="primary" disabled=${isLooking}>Show what it would do</button>`}</div>
  </form></${Dialog}>`;
}
