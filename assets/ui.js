// Progressive enhancement: local times, dialogs, copy buttons, toggles in place, and a live log. Every page works without it.

const POLL_MILLISECONDS = 3000;
const MAX_LIVE_MILLISECONDS = 30 * 60 * 1000;
const RELATIVE_UNITS = [["day", 86400], ["hour", 3600], ["minute", 60]];

const isFramed = parent !== window;

// One format everywhere, with and without scripts: `2026-03-01 09:05:00`, which is that of Swedish.
const exactTime = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const hourTime = new Intl.DateTimeFormat("sv-SE", { timeStyle: "short" });
const relativeTime = new Intl.RelativeTimeFormat("en", { numeric: "always" });

function relative(date) {
  const seconds = (date.getTime() - Date.now()) / 1000;
  for (const [unit, length] of RELATIVE_UNITS) {
    if (Math.abs(seconds) >= length * 0.99) return relativeTime.format(Math.round(seconds / length), unit);
  }
  return seconds > 0 ? "in a moment" : "just now";
}

function localizeTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    time.title = exactTime.format(date) + " (" + time.dateTime.slice(0, 19).replace("T", " ") + " UTC)";
    time.textContent = "relative" in time.dataset ? relative(date) : exactTime.format(date);
  }
  for (const text of root.querySelectorAll("text[data-hour]")) text.textContent = hourTime.format(new Date(text.dataset.hour));
}

// Fields show local times; forms send UTC.
function localizeFields(root) {
  const pad = (number) => String(number).padStart(2, "0");
  for (const form of root.querySelectorAll("form:has(input[type=datetime-local])")) {
    const fields = form.querySelectorAll("input[type=datetime-local]");
    for (const field of fields) {
      if (!field.value) continue;
      const date = new Date(field.value + "Z");
      field.value = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}T${pad(date.getHours())}:${pad(date.getMinutes())}`;
    }
    for (const zone of form.querySelectorAll("[data-zone]")) zone.textContent = "(local time)";
    form.addEventListener("formdata", (event) => {
      for (const field of fields) {
        if (field.value) event.formData.set(field.name, new Date(field.value).toISOString().slice(0, 16));
      }
    });
  }
}

async function copy(button) {
  const text = document.getElementById(button.dataset.copy).textContent;
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // The clipboard API requires TLS. Select the text instead, so that a key press copies it.
    getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { button.textContent = before; }, 2000);
}

// Fetches a page. Returns null and reloads if the session has ended.
async function fetchPage(url, options) {
  const response = await fetch(url, options);
  if (new URL(response.url).pathname === "/ui/login") {
    location.reload();
    return null;
  }
  return { response, page: new DOMParser().parseFromString(await response.text(), "text/html") };
}

function flashLine(text, good) {
  const line = document.createElement("p");
  line.className = good ? "flash good" : "flash bad";
  line.textContent = text;
  return line;
}

function showFlash(text, good) {
  document.getElementById("flash").replaceChildren(flashLine(text, good));
}

// Announces new entries below what the page says already, which may be the answer to what the visitor has just done.
function announce(count) {
  const flash = document.getElementById("flash");
  const line = flashLine(count === 1 ? "1 new entry." : `${count} new entries.`, true);
  line.dataset.announced = "";
  flash.querySelector("[data-announced]")?.remove();
  flash.append(line);
}

async function openDialog(link) {
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren();
  document.body.ariaBusy = "true";
  try {
    const loaded = await fetchPage(link.href);
    const body = loaded?.page.querySelector("[data-dialog-body]");
    if (!body) return void (loaded && location.assign(link.href));
    body.querySelector("#dialog-title").tabIndex = -1;
    dialog.append(document.adoptNode(body));
    prepare(dialog);
    dialog.showModal();
  } catch {
    location.assign(link.href);
  } finally {
    document.body.ariaBusy = "false";
  }
}

// Sends a form and replaces the content of this page with that of the response, without reloading.
async function submitInPlace(form, button) {
  document.body.ariaBusy = "true";
  try {
    const loaded = await fetchPage(form.action, { method: "POST", body: new URLSearchParams(new FormData(form, button)) });
    if (!loaded) return;
    const main = loaded.page.getElementById("main");
    if (!main || !(loaded.response.ok || loaded.response.status === 422)) throw new Error("unexpected response");
    const text = main.querySelector("#flash")?.textContent.trim();
    const isGood = !main.querySelector("#flash .bad");
    main.querySelector("#flash")?.replaceChildren();
    document.getElementById("main").replaceWith(document.adoptNode(main));
    history.replaceState(null, "", loaded.response.url);
    prepare(main);
    (main.querySelector("[autofocus]") ?? document.getElementById(button?.id))?.focus();
    if (text) showFlash(text, isGood);
  } catch {
    showFlash("The request failed because the server could not be reached. Try again.", false);
    for (const control of form.querySelectorAll("button")) {
      control.disabled = false;
      if (control.dataset.idle) control.textContent = control.dataset.idle;
    }
  } finally {
    document.body.ariaBusy = "false";
  }
}

// Ends the live updates of the page's earlier content. They poll: a stream of log entries would only tell a page when to
// fetch its rows, covers neither jobs nor what comes next for a delivery, and takes one of a browser's six connections.
let stopLive = () => {};

function startLive(button) {
  stopLive();
  const until = Date.now() + MAX_LIVE_MILLISECONDS;
  let timer = null;
  const stop = () => {
    clearTimeout(timer);
    timer = null;
    button.setAttribute("aria-pressed", "false");
  };
  stopLive = stop;
  let last = null;
  const poll = async () => {
    try {
      if (!document.hidden) await refresh();
      if (timer !== null) timer = setTimeout(poll, POLL_MILLISECONDS);
    } catch {
      stop();
      showFlash("The page could not be refreshed. Select Live to resume.", false);
    }
    if (Date.now() > until) stop();
  };
  const refresh = async () => {
    const loaded = await fetchPage(location.href);
    const fresh = loaded?.page.getElementById("entries");
    if (!fresh || !loaded.response.ok) throw new Error("unexpected response");
    const shown = document.getElementById("entries");
    if ("auto" in button.dataset && !("pending" in fresh.dataset)) stop();
    // Nothing has changed, or the visitor is about to use what would be replaced.
    const content = fresh.innerHTML;
    if (content === last || shown.querySelector("input:checked")) return;
    last = content;
    const known = new Set(Array.from(shown.querySelectorAll("[data-entry]"), (row) => row.dataset.entry));
    const added = Array.from(fresh.querySelectorAll("[data-entry]")).filter((row) => !known.has(row.dataset.entry));
    if (added.length === 0 && !("refresh" in shown.dataset)) return;
    for (const row of added) row.classList.add("arrived");
    const focused = document.activeElement?.closest("[data-entry]")?.dataset.entry;
    const opened = new Set(Array.from(shown.querySelectorAll("details[open] > summary"), (summary) => summary.textContent));
    for (const summary of fresh.querySelectorAll("details > summary")) {
      if (opened.has(summary.textContent)) summary.parentElement.open = true;
    }
    shown.replaceWith(document.adoptNode(fresh));
    prepare(fresh);
    if (focused) fresh.querySelector(`[data-entry="${CSS.escape(focused)}"] a`)?.focus();
    if (added.length > 0) announce(added.length);
  };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    button.setAttribute("aria-pressed", "true");
    timer = setTimeout(poll, 0);
  });
  if ("auto" in button.dataset) button.click();
}

// Keyboard shortcuts, which can be turned off. `/ui/shortcuts` lists them.
const SHORTCUTS_OFF = "walhook.shortcuts-off";
const SEQUENCE_MILLISECONDS = 1500;
const PLACES = { w: "/ui", d: "/ui/logs", e: "/ui/events", t: "/ui/tokens", a: "/ui/audit" };
const ROWS = "main .cards tbody tr, main .timeline li";
let sequenceBegan = -Infinity;

// Null if the browser stores nothing for this site. Shortcuts could not be turned off then, so there are none.
function preferences() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

const areShortcutsOn = () => preferences()?.getItem(SHORTCUTS_OFF) === null;

function search() {
  const field = document.querySelector("form[role=search] :is(input:not([type=hidden]), select)");
  if (field) field.focus();
  else location.assign("/ui/logs#cat");
}

// Moves the focus to the link of the next row, or of the one before.
function moveInList(step) {
  const rows = Array.from(document.querySelectorAll(ROWS)).filter((row) => row.querySelector("a"));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), rows.length - 1);
  rows[next]?.querySelector("a").focus();
}

// Returns whether a key is a shortcut, and does what it is for.
function pressShortcut(key, isSecond) {
  const place = isSecond && Object.hasOwn(PLACES, key) ? PLACES[key] : null;
  if (place) location.assign(place);
  else if (key === "g") sequenceBegan = performance.now();
  else if (key === "?") openDialog(document.getElementById("shortcuts"));
  else if (key === "/") search();
  else if (key === "j") moveInList(1);
  else if (key === "k") moveInList(-1);
  else return false;
  return true;
}

function prepare(root) {
  localizeTimes(root);
  localizeFields(root);
  for (const origin of root.querySelectorAll("[data-origin]")) origin.textContent = location.origin;
  for (const link of root.querySelectorAll("[data-copy], #shortcuts")) link.hidden = false;
  for (const box of root.querySelectorAll("[data-shortcuts]")) {
    box.disabled = preferences() === null;
    box.checked = areShortcutsOn();
    box.addEventListener("change", () => {
      if (box.checked) localStorage.removeItem(SHORTCUTS_OFF);
      else localStorage.setItem(SHORTCUTS_OFF, "");
    });
  }
  for (const button of root.querySelectorAll("[data-live]")) {
    button.hidden = false;
    startLive(button);
  }
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("a, button");
  if (!target || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (target.dataset.copy) copy(target);
  if ("close" in target.dataset && target.closest("dialog")) {
    event.preventDefault();
    target.closest("dialog").close();
  }
  // A frame that shows the whole page would open the dialog in the middle of the page, out of sight.
  if ("dialog" in target.dataset && !isFramed) {
    event.preventDefault();
    openDialog(target);
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if ("enhance" in form.dataset || "enhance" in (event.submitter?.dataset ?? {})) {
    event.preventDefault();
    submitInPlace(form, event.submitter);
  }
  // After the event, so that the value of the button is still sent. Disabling prevents a second submission.
  setTimeout(() => {
    for (const button of form.querySelectorAll("button")) {
      if (button.dataset.busy) {
        button.dataset.idle = button.textContent;
        button.textContent = button.dataset.busy;
      }
      button.disabled = true;
    }
  });
});

// Reload a page that the browser restores from its back/forward cache.
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.activeElement?.closest(".tooltip")?.querySelector("button").blur();
  const isTyping = event.isComposing || event.target.closest("input, textarea, select");
  const isTaken = isTyping || document.querySelector("dialog[open]") || !document.getElementById("shortcuts");
  if (isTaken || event.ctrlKey || event.altKey || event.metaKey || !areShortcutsOn()) return;
  const isSecond = performance.now() - sequenceBegan < SEQUENCE_MILLISECONDS;
  sequenceBegan = -Infinity;
  if (pressShortcut(event.key, isSecond)) event.preventDefault();
});

// In a frame as high as its page: tells the page around it how high that is, and what to scroll to, which browsers do
// not do for a frame of another site. Only origins that may show the web UI in a frame learn it.
function talkToParent(origins) {
  // A message to another origin than the parent's would be lost, with an error in the console. Some browsers do not
  // say whose the parent is.
  const around = origins.filter((origin) => location.ancestorOrigins?.contains(origin));
  const send = (message) => {
    for (const origin of around.length > 0 ? around : origins) parent.postMessage(message, origin);
  };
  const root = document.documentElement;
  const scroll = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1))) ?? root;
    send({ type: "walhook:scroll", top: target.getBoundingClientRect().top - root.getBoundingClientRect().top });
  };
  // The first page leaves the page around it where it is.
  let moves = document.referrer.startsWith(location.origin) && new URL(document.referrer).pathname !== "/ui/login";
  const observer = new ResizeObserver(() => {
    send({ type: "walhook:height", height: Math.ceil(root.getBoundingClientRect().height) });
    if (moves) scroll();
    moves = false;
  });
  observer.observe(root);
  addEventListener("hashchange", scroll);
}

prepare(document);
if (isFramed && document.body.dataset.ancestors) talkToParent(document.body.dataset.ancestors.split(" "));
document.querySelector("form[data-submit]")?.requestSubmit();
setInterval(() => localizeTimes(document), 30_000);
