// Keeps #live up to date every two seconds, element by element, so that focus, scrolling and clicks stay where they are.
// The indicator is green only while the figures are fresh; without JavaScript the page still works.
(() => {
  const EVERY_MS = 2000, ANSWER_MS = 8000;
  const box = document.querySelector("#live");
  if (!box) return;
  const state = document.querySelector("#live-state"), gone = document.querySelector("#gone");
  let timer, pressed = false, trouble = null;
  const readAt = () => Date.now() - 1000 * box.dataset.ageS;
  let seenAt = readAt();

  const keyOf = (node) => node.id || node.dataset?.key;
  const isSame = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const update = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const keys = new Set([...fresh.children].map(keyOf));
    for (const child of [...old.children]) if (keyOf(child) && !keys.has(keyOf(child))) child.remove();
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const key = keyOf(child);
      const match = key ? [...old.children].find((each) => isSame(each, child)) : at && isSame(at, child) ? at : null;
      if (!match) { old.insertBefore(child, at); continue; }
      if (match === at) at = at.nextSibling; else old.insertBefore(match, at);
      update(match, child);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  };

  const isSelecting = () => {
    const selection = document.getSelection();
    return !selection.isCollapsed && selection.containsNode(box, true);
  };
  const show = (name, text) => {
    state.className = name;
    state.textContent = text;
  };
  const moment = (then) => {
    const isToday = then.toDateString() === new Date().toDateString();
    const day = isToday ? "" : `${then.getFullYear()}-${twoDigits(then.getMonth() + 1)}-${twoDigits(then.getDate())} `;
    const two = "2-digit";
    return day + then.toLocaleTimeString("en-GB", {hour: two, minute: two, second: two, timeZoneName: "short"});
  };
  const twoDigits = (number) => String(number).padStart(2, "0");
  const indicate = () => {
    const since = moment(new Date(seenAt));
    if (trouble || box.dataset.old) show("away", `stale since ${since}`);
    else if (isSelecting()) show("paused", `paused since ${since}: text is selected`);
    else show("live", "live");
    gone.hidden = !trouble;
    if (trouble) gone.querySelector("b").textContent = `${trouble} The data below is from ${since}.`;
    const login = gone.querySelector("a");
    login.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    login.hidden = trouble !== LOGIN;
  };
  const LOGIN = "Your login has expired.", SERVER = "The server of this page does not answer.";

  const read = async () => {
    const answer = await fetch(location.href, {cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS)});
    if (answer.redirected) return LOGIN;
    if (!answer.ok) return `The server of this page answers with an error, ${answer.status}.`;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#live");
    if (!fresh) return SERVER;
    if (pressed || isSelecting()) return null;
    const focused = document.activeElement;
    update(box, fresh);
    if (focused.isConnected && focused !== document.activeElement) focused.focus({preventScroll: true});
    seenAt = readAt();
    return null;
  };
  const again = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      trouble = await read().catch(() => SERVER);
      indicate();
    }
    timer = setTimeout(again, EVERY_MS);
  };

  addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { pressed = false; });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });
  addEventListener("pagehide", () => clearTimeout(timer));
  indicate();
  timer = setTimeout(again, EVERY_MS);
})();
