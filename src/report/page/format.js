"use strict";
// Numbers and elements. All text from runs enters the page as textContent.

const number_formats = {
  count: (v) => Math.round(v).toLocaleString("en-US"),
  perplexity,
  loss: (v) => (v !== 0 && Math.abs(v) < 1e-4 ? v.toExponential(2) : v.toFixed(4)),
  rate: (v) => v.toFixed(2),
  gib: (v) => v.toFixed(2),
  money: (v) => "$" + v.toFixed(v > 0 && v < 0.1 ? 4 : 2),
  seconds: duration,
  short: short_number,
  percent: (v) => trimmed(100 * v) + " %",
  hundredths: (v) => trimmed(v) + " %",
};

function duration(seconds) {
  if (seconds < 10) return seconds.toFixed(1) + "s";
  const total = Math.round(seconds);
  const parts = [Math.floor(total / 3600), Math.floor(total / 60) % 60, total % 60];
  const two = (n) => String(n).padStart(2, "0");
  if (parts[0] > 0) return parts[0] + "h " + two(parts[1]) + "m " + two(parts[2]) + "s";
  return parts[1] > 0 ? parts[1] + "m " + two(parts[2]) + "s" : parts[2] + "s";
}

function short_number(v) {
  const size = Math.abs(v);
  if (size >= 1e9) return trimmed(v / 1e9) + "G";
  if (size >= 1e6) return trimmed(v / 1e6) + "M";
  if (size >= 1e4) return trimmed(v / 1e3) + "k";
  if (size !== 0 && size < 0.01) return v.toExponential(2).replace(/\.?0+e/, "e");
  return trimmed(v);
}

function trimmed(v) {
  return String(Number(v.toPrecision(4)));
}

function format(kind, v) {
  return is_known(v) ? number_formats[kind](v) : "\u2013";
}

function setting_text(value) {
  if (value === undefined) return "\u2013";
  if (value === null) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}

// 5.123, 1,234, 1.2e+15: a perplexity spans many sizes.
function perplexity(v) {
  return v >= 1e9 ? v.toExponential(2) : v >= 1000 ? format("count", v) : trimmed(v);
}

function plural(count, one, many) {
  return format("count", count) + " " + (count === 1 ? one : many || one + "s");
}

// "2026-11-24 10:25", in the reader's time zone.
function date_text(seconds) {
  const date = new Date(1000 * seconds), two = (n) => String(n).padStart(2, "0");
  return date.getFullYear() + "-" + two(date.getMonth() + 1) + "-" + two(date.getDate()) + " " +
    two(date.getHours()) + ":" + two(date.getMinutes());
}

function is_known(v) {
  return typeof v === "number" && Number.isFinite(v);
}

function is_dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function element(tag, options, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "text") node.textContent = value;
    else if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child) node.append(child);
  return node;
}

const svg_namespace = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;

function svg_element(tag, attributes, ...children) {
  const node = document.createElementNS(svg_namespace, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "text") node.textContent = value; else node.setAttribute(name, String(value));
  }
  for (const child of children) if (child) node.append(child);
  return node;
}

// A short stroke of a curve, for legends.
function swatch(style) {
  return svg_element("svg", {class: "swatch", viewBox: "0 0 22 8", width: 22, height: 8, "aria-hidden": "true"},
                     svg_element("line", {x1: 1, y1: 4, x2: 21, y2: 4, stroke: style.color, "stroke-width": 3,
                                          "stroke-dasharray": style.dash.join(" ") || "none"}));
}

// Twelve colours that differ on white and on black; the dash pattern changes every six runs, for print and for
// colour-blind readers.
const run_colors = ["#3b76d6", "#e5730b", "#2f9e5f", "#d03b4b", "#8a63d2", "#0f9fb0",
                    "#c44a9c", "#8f8d10", "#a0674c", "#7486a0", "#d19a00", "#4fb0e8"];
const run_dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

function run_style(index) {
  return {color: run_colors[index % run_colors.length], dash: run_dashes[Math.floor(index / 6) % run_dashes.length]};
}

// Dark violet through teal to yellow, readable on white and on black.
const scale_stops = [[92, 58, 160], [58, 96, 190], [32, 140, 160], [60, 165, 100], [190, 160, 20], [225, 105, 20]];

function scale_color(share) {
  const place = Math.min(Math.max(share, 0), 1) * (scale_stops.length - 1);
  const low = Math.min(Math.floor(place), scale_stops.length - 2);
  const mix = (i) => Math.round(scale_stops[low][i] + (scale_stops[low + 1][i] - scale_stops[low][i]) * (place - low));
  return "rgb(" + mix(0) + "," + mix(1) + "," + mix(2) + ")";
}
