// Replaces the live sections of a page by those of the same page, loaded again. Without it a page is as readable, only older.
"use strict";

const EVERY_MS = 3000;
const said = document.getElementById("connection");
const live = () => document.querySelectorAll("[data-live]");

function say(text, isLost) {
  if (said.textContent !== text) said.textContent = text;
  said.classList.toggle("lost", isLost);
}

function replace(section, page) {
  const newer = page.getElementById(section.id);
  // What somebody is using with the keyboard stays as it is.
  if (section.contains(document.activeElement)) return;
  if (!newer) section.remove();
  else if (newer.innerHTML !== section.innerHTML) section.replaceWith(document.importNode(newer, true));
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.pathname + location.search, { credentials: "same-origin", cache: "no-store" });
      if (answer.redirected) { location.reload(); return; }
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      live().forEach((section) => replace(section, page));
      say("Live", false);
    } catch (error) {
      say(`Not updated: ${error.message}`, true);
    }
  }
  setTimeout(refresh, EVERY_MS);
}

if (live().length > 0) setTimeout(refresh, EVERY_MS);
