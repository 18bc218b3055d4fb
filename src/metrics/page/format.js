"use strict";
// Numbers and elements. All text of runs enters the page as textContent.

const number_formats = {
  count: (v) => Math.round(v).toLocaleString("en-US"),
  loss: (v) => (v !== 0 && Math.abs(v) < 1e-4 ? v.toExponential(2) : v.toFixed(4)),
  rate: (v) => v.toFixed(2),
  gib: (v) => v.toFixed(2),
  money: (v) => "$" + v.toFixed(v > 0 && v < 0.1 ? 4 : 2),
  seconds: duration,
  short: short_number,
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
  return typeof v === "number" && Number.isFinite(v) ? number_formats[kind](v) : "\u2013";
}

function setting_text(value) {
  if (value === undefined) return "\u2013";
  if (value === null) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
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

// A colour for each run. Up to ten are told apart by hue; more by hue and lightness.
const few_colors = ["#3b76d6", "#e5730b", "#2f9e5f", "#d03b4b", "#8a63d2", "#12a3b4", "#c44a9c", "#8a8d13", "#9a6248", "#5f6b7a"];

function run_color(index, count) {
  if (count <= few_colors.length) return few_colors[index];
  const hue = (index * 137.508 + 250) % 360;
  const light = [54, 66, 46][index % 3];
  return "hsl(" + hue.toFixed(1) + " 62% " + light + "%)";
}

// Dark violet over teal to yellow, readable on white and on black.
const scale_stops = [[92, 58, 160], [58, 96, 190], [32, 140, 160], [60, 165, 100], [190, 160, 20], [225, 105, 20]];

function scale_color(share) {
  const place = Math.min(Math.max(share, 0), 1) * (scale_stops.length - 1);
  const low = Math.min(Math.floor(place), scale_stops.length - 2);
  const mix = (i) => Math.round(scale_stops[low][i] + (scale_stops[low + 1][i] - scale_stops[low][i]) * (place - low));
  return "rgb(" + mix(0) + "," + mix(1) + "," + mix(2) + ")";
}
