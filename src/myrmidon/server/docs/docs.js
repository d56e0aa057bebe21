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
  if (schema.anyOf) return schema.anyOf.map((one) => sketch(one, all, seen));
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
  head.append(element("span", method.toUpperCase(), "method"), element("span", path, "path"));
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
  for (const [tag, cards] of groups) {
    const part = element("section");
    part.append(element("h2", tag), ...cards);
    list.append(part);
  }
  document.getElementById("search").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const box of list.querySelectorAll("details")) box.hidden = !box.dataset.text.includes(wanted);
    for (const part of list.querySelectorAll("section")) part.hidden = !part.querySelector("details:not([hidden])");
  });
}

start();
