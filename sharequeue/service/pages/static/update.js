// Brings what is alive on a page up to date: fetches the page again and puts its <main> in the place of this one.
// It rests while nobody looks, while something in it is selected or has the focus. Without it the page works as well.
"use strict";
(() => {
  const live = () => document.querySelector("main[data-live]");
  const used = (main) => {
    const selection = document.getSelection();
    return (document.activeElement !== main && main.contains(document.activeElement)) ||
      (selection !== null && !selection.isCollapsed && main.contains(selection.anchorNode));
  };
  // What was opened and scrolled stays so.
  const carryOver = (from, to) => {
    for (const each of from.querySelectorAll("details[id][open]")) {
      const same = to.querySelector("#" + CSS.escape(each.id));
      if (same !== null) same.open = true;
    }
    const before = from.querySelectorAll(".wide"), after = to.querySelectorAll(".wide");
    if (before.length !== after.length) return [];
    return Array.from(before, (each, index) => [after[index], each.scrollLeft]);
  };
  const update = async () => {
    const main = live();
    if (main === null || document.hidden || used(main)) return;
    const response = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.querySelector("main");
    if (fresh === null || used(main)) return;
    if (!fresh.hasAttribute("data-live")) fresh.dataset.live = main.dataset.live;
    const scrolled = carryOver(main, fresh);
    const focused = document.activeElement === main;
    main.replaceWith(fresh);
    for (const [each, left] of scrolled) each.scrollLeft = left;
    if (focused) fresh.focus({ preventScroll: true });
  };
  const again = () => {
    const main = live();
    if (main === null) return;
    const seconds = Number(main.dataset.live) || 5;
    // The service may be away for a moment: the next one tries again.
    setTimeout(() => { update().catch(() => undefined).finally(again); }, seconds * 1000);
  };
  again();
})();
