// The shell: navigation, the way to a message by its id, the token, and whether the node answers.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact.js";
import { connection, get, lines, query, setToken, token } from "./api.js";
import * as format from "./format.js";
import { Dialog, Failure, Field, Notices, Page, say } from "./parts.js";
import { links, useConnection, useRoute } from "./state.js";
import { Cluster } from "./pages/cluster.js";
import { DeadLetters } from "./pages/dead_letters.js";
import { Group } from "./pages/group.js";
import { Message } from "./pages/message.js";
import { Messages } from "./pages/messages.js";
import { Metrics } from "./pages/metrics.js";
import { Overview } from "./pages/overview.js";
import { Scheduled } from "./pages/scheduled.js";
import { Topic } from "./pages/topic.js";
import { Topics } from "./pages/topics.js";

const PAGES = {
  overview: Overview, topics: Topics, topic: Topic, messages: Messages, message: Message, group: Group,
  dead: DeadLetters, scheduled: Scheduled, cluster: Cluster, metrics: Metrics,
};
const NAV = [
  ["overview", "Overview", links.overview()],
  ["topics", "Topics", links.topics()],
  ["cluster", "Cluster", links.cluster()],
  ["metrics", "Metrics", links.metrics()],
];
const ID = /^[A-Za-z0-9_][A-Za-z0-9._-]*:\d+:\d+$/;

function GoTo() {
  const [text, setText] = useState("");
  const input = useRef(null);
  useEffect(() => {
    const pressed = (event) => {
      const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key !== "/" || isTyping || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      input.current.focus();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const go = (event) => {
    event.preventDefault();
    const wanted = text.trim();
    if (!wanted) return;
    location.hash = ID.test(wanted) ? links.message(wanted) : links.topic(wanted);
    setText("");
    input.current.blur();
  };
  return html`<form class="goto" role="search" onSubmit=${go}>
    <input ref=${input} aria-label="Go to a message id or a topic" placeholder="topic or topic:0:42  ( / )"
      autocomplete="off" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)} />
  </form>`;
}

function TokenForm({ onClose }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setToken(text.trim());
    try {
      await get("/version");
      setText("");
      onClose();
      say("The token is accepted. This tab forgets it when it is closed.");
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<${Dialog} title="Token" onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>This node asks who you are. The token stays in this tab, until it is closed.</p>
      <${Field} label="Token" type="password" value=${text} onInput=${setText} />
      <${Failure} error=${error} />
      <div class="buttons">
        <button type="button" onClick=${() => { setToken(""); onClose(); say("The token is forgotten."); }}>Forget it</button>
        <button class="primary" disabled=${!text.trim()}>Use it</button>
      </div>
    </form></${Dialog}>`;
}

function Shown({ route }) {
  const [error, reset] = useErrorBoundary();
  const hash = useRef(route.hash);
  if (error && hash.current !== route.hash) reset();
  hash.current = route.hash;
  if (error) {
    return html`<${Page} title="This page failed"><${Failure} error=${error} />
      <p><button onClick=${reset}>Show it again</button></p></${Page}>`;
  }
  const Found = PAGES[route.page];
  if (!Found) {
    return html`<${Page} title="No such page"><p>The address names no page of the console.
      <a href=${links.overview()}>Go to the overview.</a></p></${Page}>`;
  }
  return html`<${Found} key=${`${route.hash} ${token() ? "known" : ""}`} ...${route} />`;
}

function App() {
  const route = useRoute();
  useConnection();
  const [isAsking, setAsking] = useState(false);
  const [session, setSession] = useState(0);
  useEffect(() => {
    if (connection.needsToken) setAsking(true);
  }, [connection.needsToken]);
  useEffect(() => {
    const aborter = new AbortController();
    const askedMs = format.now();
    const learn = (line) => format.setNow(line.time, askedMs);
    lines(query("/v1/live", { top: 1, limit: 1 }), learn, aborter.signal).catch(() => {});
    return () => aborter.abort();
  }, [session, connection.isUp]);
  const closed = () => {
    setAsking(false);
    setSession(session + 1);
  };
  const skip = (event) => {
    event.preventDefault();
    document.querySelector("main h1")?.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <header>
      <a class="brand" href=${links.overview()} aria-label="goq, overview">goq</a>
      <nav aria-label="Pages">${NAV.map(([page, text, href]) => html`
        <a href=${href} aria-current=${page === route.page ? "page" : undefined}>${text}</a>`)}</nav>
      <${GoTo} />
      <button class="plain" onClick=${() => setAsking(true)}>Token</button>
    </header>
    ${!connection.isUp && html`<div class="down" role="alert">The node does not answer. What is shown may be old; trying again every second.</div>`}
    <main id="main"><${Shown} key=${session} route=${route} /></main>
    <${Notices} />
    ${isAsking && html`<${TokenForm} onClose=${closed} />`}`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
