// Replaces what is live by a fresh copy of the same page every two seconds; without JavaScript the page still works.
(() => {
  const box = document.querySelector("#live");
  if (!box) return;
  const state = document.querySelector("#live-state");
  let timer;
  const again = async () => {
    if (!document.hidden && !box.contains(document.activeElement?.closest("form, details"))) {
      try {
        const answer = await fetch(location.href, {headers: {"x-live": "1"}, cache: "no-store"});
        if (answer.ok) {
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#live");
          if (fresh) box.replaceChildren(...fresh.childNodes);
          state.textContent = "live";
          state.className = "live";
        } else { throw new Error(answer.status); }
      } catch { state.textContent = "page server away"; state.className = "away"; }
    }
    timer = setTimeout(again, 2000);
  };
  state.textContent = "live";
  state.className = "live";
  timer = setTimeout(again, 2000);
  window.addEventListener("pagehide", () => clearTimeout(timer));
})();
