// What is wrong, in words, the worst first: { tone, text, href }.

import * as format from "./format.js";
import { links } from "./state.js";

export const OLDEST_MS_MAX = 5 * 60 * 1000;

export function nodeProblems(health, cluster) {
  const found = [];
  const bad = (text) => found.push({ tone: "bad", text, href: links.cluster() });
  const warn = (text) => found.push({ tone: "warn", text, href: links.cluster() });
  for (const node of cluster?.nodes ?? []) {
    if (node.status !== "up") bad(`Node ${node.id} is ${node.status}${node.reason ? `: ${node.reason}` : ""}.`);
    else if (node.unreachable?.length) warn(`Node ${node.id} does not reach ${node.unreachable.join(", ")}.`);
  }
  for (const node of cluster?.absent ?? []) warn(`Node ${node.id} has never come.`);
  if (cluster?.unheard_s) bad(`The controller was not heard for ${format.duration(cluster.unheard_s * 1000)}.`);
  const offline = new Set([...(health?.offline ?? []), ...(cluster?.offline ?? [])]);
  if (offline.size) bad(`${format.plural(offline.size, "partition")} offline: ${[...offline].slice(0, 5).join(", ")}.`);
  if (cluster?.under_replicated?.length) {
    warn(`${format.plural(cluster.under_replicated.length, "partition")} with too few replicas: ${cluster.under_replicated.slice(0, 5).join(", ")}.`);
  }
  if (health?.damaged?.length) bad(`Damaged: ${health.damaged.slice(0, 5).join(", ")}.`);
  for (const problem of health?.problems ?? []) bad(`${problem.what} is ${problem.state}: ${problem.reason}; ${problem.advice}.`);
  if (health?.disk) (health.disk === "full" ? bad : warn)(`The disk is ${health.disk}.`);
  for (const text of health?.limits_reached ?? []) warn(`${text}.`);
  if (health?.opening) warn(`${format.plural(health.opening, "partition")} not opened yet.`);
  if (health?.certificate_expires) warn(`The certificate expires ${format.since(health.certificate_expires)}.`);
  return found;
}

/** Groups are { topic, group, oldest_ready_age_ms, … } of any topics. */
export function groupProblems(groups) {
  return groups
    .filter((one) => (one.oldest_ready_age_ms ?? 0) > OLDEST_MS_MAX)
    .sort((a, b) => b.oldest_ready_age_ms - a.oldest_ready_age_ms)
    .map((one) => ({
      tone: "warn", href: links.group(one.topic, one.group),
      text: `${one.topic}/${one.group}: oldest waits ${format.duration(one.oldest_ready_age_ms)}`,
    }));
}
