"use strict";

const at = (name) => document.getElementById(name);
const say = (name, text) => { at(name).textContent = text; at(name).hidden = !text; };
const coded = (text) => text.split("`").map((part, i) => {
  const piece = document.createElement(i % 2 ? "code" : "span");
  piece.textContent = part;
  return piece;
});
let ended = false;

const parts = {
  run(told) {
    say("title", told.title);
    say("target", told.target);
  },
  bill(told) {
    for (const name of ["words", "phase", "seconds", "left"]) at(name).textContent = told[name];
    const share = Math.round(100 * told.share);
    at("progress").setAttribute("aria-valuenow", share);
    at("progress").firstElementChild.style.width = share + "%";
    at("spent").hidden = !told.phases.length;
    at("phases").replaceChildren(...told.phases.flatMap(([name, count]) => {
      const [term, value] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      value.textContent = count;
      return [term, value];
    }));
  },
  model(told) {
    at("model").hidden = !told.maps.length;
    at("model").className = told.maps.length > 1 ? "wide" : "";
    at("maps").replaceChildren(...told.maps.map((map) => {
      const [figure, caption] = [document.createElement("figure"), document.createElement("figcaption")];
      figure.innerHTML = map.drawing; // drawn by the run itself; scripts inside would not be run
      caption.textContent = map.caption;
      figure.append(caption);
      return figure;
    }));
    at("falling").hidden = !told.curve;
    at("curve").innerHTML = told.curve;
  },
  rows(told) {
    at("table").hidden = false;
    at("rows").replaceChildren(...told.rows.map((row) => {
      const line = document.createElement("tr");
      line.setAttribute("role", "row");
      for (const [key, heading] of [["name", "defence"], ["status", "outcome"], ["queries", "queries"], ["error", "error"]]) {
        const cell = document.createElement(key === "name" ? "th" : "td");
        cell.setAttribute("role", key === "name" ? "rowheader" : "cell");
        cell.className = key === "name" ? "word" : "";
        cell.dataset.name = heading;
        cell.textContent = row[key];
        line.append(cell);
      }
      return line;
    }));
  },
  end(told) {
    ended = true;
    source.close();
    at("head").className = told.mood;
    say("verdict", { good: "✓ ", bad: "✕ ", open: "◆ " }[told.mood] + told.verdict);
    for (const name of ["sentence", "files", "next"]) {
      say(name, told[name]);
      at(name).replaceChildren(...coded(told[name]));
    }
    document.title = told.verdict + " · unsoftmax";
  },
};

const source = new EventSource("events");
for (const [name, show] of Object.entries(parts)) source.addEventListener(name, (event) => show(JSON.parse(event.data)));
source.addEventListener("error", () => {
  if (ended) return;
  at("head").className = "lost";
  say("verdict", "◆ The run does not answer");
  say("sentence", "It was stopped, or this page lost it; what it showed last stands below.");
});
source.addEventListener("open", () => {
  if (ended) return;
  at("head").className = "running";
  say("verdict", "Asking …");
  say("sentence", "The page follows the run; nothing is sent back to it.");
});
