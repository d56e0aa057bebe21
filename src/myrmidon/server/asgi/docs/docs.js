"use strict";
// Shows openapi.json as a list of calls. Text is only ever set as text, so nothing in the document can act.

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// A schema as a short sketch; a type inside itself is shown by its name only.
function sketch(schema, all, seen) {
  if (!schema) return "anything";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return seen.includes(name) ? name : sketch(all[name], all, [...seen, name]);
  }
  if (schema.anyOf) return either(schema.anyOf.map((one) => sketch(one, all, seen)));
  if (schema.examples) return schema.examples[0];
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.properties) {
    const told = {};
    for (const [name, inner] of Object.entries(schema.properties)) {
      const must = (schema.required || []).includes(name);
      told[must ? name : name + "?"] = sketch(inner, all, seen);
    }
    return told;
  }
  if (schema.type === "array") return [sketch(schema.items, all, seen)];
  return schema.type || "anything";
}

// One of several: simple ones side by side, an object or list alone, as whatever else there is can only be null.
function either(told) {
  if (told.every((one) => typeof one === "string")) return told.join(" | ");
  const large = told.filter((one) => typeof one !== "string");
  return large.length === 1 ? large[0] : told;
}

function shape(title, content, all) {
  const parts = [];
  for (const [media, inner] of Object.entries(content || {})) {
    parts.push(element("h4", `${title} (${media})`));
    if (inner.schema) parts.push(element("pre", JSON.stringify(sketch(inner.schema, all, []), null, 2)));
  }
  return parts;
}

function card(method, path, call, all) {
  const box = element("details");
  const head = element("summary");
  box.id = `${method}-${path}`;
  head.append(element("span", method.toUpperCase(), `method ${method}`), element("span", path, "path"));
  head.append(element("span", call.summary, "about"));
  box.append(head);
  if (call.description) box.append(element("p", call.description));
  box.append(element("p", `Who may call: ${call["x-who"].join(", ") || "nobody"}${call.security ? ", and anybody without a token" : ""}`));
  if (call.parameters.length) {
    const told = Object.fromEntries(call.parameters.map((one) => [`${one.name}${one.required ? "" : "?"} (${one.in})`, sketch(one.schema, all, [])]));
    box.append(element("h4", "Parameters"), element("pre", JSON.stringify(told, null, 2)));
  }
  box.append(...shape("Body", call.requestBody && call.requestBody.content, all));
  box.append(...shape("Answer", call.responses["200"].content, all));
  box.dataset.text = `${method} ${path} ${call.summary} ${call.description}`.toLowerCase();
  return box;
}

// What people look for first; the rest follows in the order of the document, the bots' own calls last.
const FIRST = ["tasks", "bots", "queues", "pools", "groups", "events"];

function place(tag) {
  const at = FIRST.indexOf(tag);
  return at >= 0 ? at : tag === "bot" ? FIRST.length + 1 : FIRST.length;
}

// The address names the call that is open, so that it can be sent to somebody else.
function openNamed() {
  const box = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (box) {
    box.open = true;
    box.scrollIntoView();
  }
}

async function start() {
  const told = await (await fetch("/api/openapi.json")).json();
  const list = document.getElementById("list");
  document.getElementById("about").textContent = `${told.info.description} Version ${told.info.version}.`;
  const groups = new Map();
  for (const [path, calls] of Object.entries(told.paths)) {
    for (const [method, call] of Object.entries(calls)) {
      const tag = call.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(card(method, path, call, told.components.schemas));
    }
  }
  for (const [tag, cards] of [...groups].sort(([one], [other]) => place(one) - place(other))) {
    const part = element("section");
    part.append(element("h2", tag), ...cards);
    list.append(part);
  }
  document.getElementById("search").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const box of list.querySelectorAll("details")) box.hidden = !box.dataset.text.includes(wanted);
    for (const part of list.querySelectorAll("section")) part.hidden = !part.querySelector("details:not([hidden])");
  });
  list.addEventListener("toggle", (event) => event.target.open && history.replaceState(null, "", `#${event.target.id}`), true);
  addEventListener("hashchange", openNamed);
  openNamed();
}

start().catch((problem) => {
  document.getElementById("list").append(element("p", `The description of the API could not be read: ${problem.message}`));
});
