// What is wrong, in words, the worst first: { tone, text, href }.

import * as format from "./format.js";
import { links } from "./state.js";

export const OLDEST_MS_MAX = 5 * 60 * 1000;

const bad = (text) => ({ tone: "bad", text, href: links.cluster() });
const warn = (text) => ({ tone: "warn", text, href: links.cluster() });
const some = (names) => `${names.slice(0, 5).join(", ")}${names.length > 5 ? ", …" : ""}`;

/** Of /healthz: what the node that answers knows of itself. */
export function healthProblems(health) {
  if (!health) return [];
  const found = [];
  const { offline = [], damaged = [], problems = [], limits_reached: limits = [] } = health;
  if (offline.length) found.push(bad(`${format.plural(offline.length, "partition")} offline here: ${some(offline)}.`));
  if (damaged.length) found.push(bad(`Damaged: ${some(damaged)}.`));
  for (const one of problems) found.push(bad(`${one.what} is ${one.state}: ${one.reason}; ${one.advice}.`));
  if (health.disk) found.push((health.disk === "full" ? bad : warn)(`The disk is ${health.disk}.`));
  for (const text of limits) found.push(warn(`${text}.`));
  if (health.opening) found.push(warn(`${format.plural(health.opening, "partition")} not opened yet.`));
  if (health.certificate_expires) found.push(warn(`The certificate expires ${format.since(health.certificate_expires)}.`));
  return found;
}

/** Of /v1/cluster. */
export function clusterProblems(cluster) {
  const found = [];
  for (const node of cluster.nodes) {
    if (node.status !== "up") found.push(bad(`Node ${node.id} is ${node.status}${node.reason ? `: ${node.reason}` : ""}.`));
    else if (node.unreachable?.length) found.push(warn(`Node ${node.id} does not reach ${node.unreachable.join(", ")}.`));
  }
  for (const node of cluster.absent ?? []) found.push(warn(`Node ${node.id} has never come.`));
  if (cluster.unheard_s) found.push(bad(`The controller was not heard for ${format.duration(cluster.unheard_s * 1000)}.`));
  const { offline, under_replicated: few } = cluster;
  if (offline.length) found.push(bad(`${format.plural(offline.length, "partition")} without a leader: ${some(offline)}.`));
  if (few.length) found.push(warn(`${format.plural(few.length, "partition")} with too few replicas: ${some(few)}.`));
  return found;
}

/** Of the live lines: nodes that are not up, topics that are offline. */
export function liveProblems(live) {
  const nodes = live.nodes.filter((node) => node.status !== "up" || node.problem);
  return [
    ...nodes.map((node) => bad(`Node ${node.node} is ${node.status}${node.problem ? `: ${node.problem}` : ""}.`)),
    ...live.offline.map((name) => ({ ...bad(`${name} has partitions that are offline.`), href: links.topic(name) })),
  ];
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
