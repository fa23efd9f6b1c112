// The Overview: wall, box line, my jobs and the timeline, live.
import { by, keepInAddress, say, write } from "./dom.js";
import { onRefresh, refresh, watchRows } from "./rows.js";
import { colour, onThemeChange, sawReading } from "./shell.js";
import { live } from "./socket.js";

const SLOTS = 120; // a minute at 2 Hz
const WAITING = new Set(["queued", "held", "backoff"]);
const RUNNING = new Set(["starting", "running", "stopping"]);
const TIMELINE = ["timeline-ranges", "lane-rows", "timeline-note"];
const ROOM = ["wall", "box-line", "offers"]; // whom devices are kept for changes with the queue and with the clock
const TIMELINE_MS = 30000;
const me = document.documentElement.dataset.user;
const recent = new Map(); // utilisation by device, oldest first
const totals = new Map();

watchWall();
watchRows("jobs", ["my-jobs"], { belongs: (row) => row.owner === me });
watchRows("queue", [...ROOM, ...TIMELINE], {
  hasRows: false,
  onRows(rows) {
    const count = (states) => [...rows.values()].filter((row) => states.has(row.state)).length;
    const [running, waiting] = [count(RUNNING), count(WAITING)];
    document.title = running || waiting ? say("({running} running, {waiting} waiting) Berth", { running, waiting }) : "Berth";
  },
});

by("timeline").addEventListener("click", (event) => {
  const range = event.target.closest("a[href^='?line']");
  if (!range) return;
  event.preventDefault();
  keepInAddress("line", new URL(range.href).searchParams.get("line"));
  refresh(...TIMELINE);
});
setInterval(() => document.hidden || refresh(...ROOM, ...TIMELINE, "my-jobs"), TIMELINE_MS);

// The wall: numbers, memory bars and sparklines; the tiles themselves are the server's.
function watchWall() {
  live.subscribe("devices", (frame) => {
    const data = frame.data;
    if (!data) return;
    sawReading(data.t);
    if (frame.type === "snapshot") takeSnapshot(data);
    for (const reading of data.readings) showReading(reading, frame.type === "tick");
    write(by("host"), data.host_words);
  });
  const redraw = () => recent.forEach((_, device) => draw(device));
  onRefresh(redraw);
  onThemeChange(redraw);
  addEventListener("resize", redraw);
}

function takeSnapshot(data) {
  for (const device of data.devices) totals.set(device.id, device.total_bytes);
  for (const [device, values] of Object.entries(data.recent)) recent.set(device, values.slice(-SLOTS));
  if (by("wall").dataset.shape !== data.shape) refresh(...ROOM);
}

function showReading([device, use, used, watts, degrees, byJob, foreign], isTick) {
  if (isTick) {
    const values = recent.get(device) ?? [];
    values.push(use);
    recent.set(device, values.slice(-SLOTS));
  }
  const tile = tileOf(device);
  if (!tile) return;
  write(tile.querySelector("[data-use]"), use === null ? "" : `${Math.round(use)} %`);
  write(tile.querySelector("[data-memory]"), used === null ? "" : (used / 1024 ** 3).toFixed(1));
  write(
    tile.querySelector("[data-heat]"),
    [degrees !== null && `${Math.round(degrees)} °C`, watts !== null && `${Math.round(watts)} W`]
      .filter(Boolean)
      .join(" · "),
  );
  const total = totals.get(device);
  if (total) {
    for (const [job, bytes] of Object.entries(byJob))
      widen(tile.querySelector(`[data-share="${CSS.escape(job)}"]`), bytes, total);
    widen(tile.querySelector("[data-foreign]"), foreign, total);
  }
  draw(device);
}

// A job that claimed a part of a device fills its claim; others fill the device.
function widen(bar, bytes, total) {
  if (bar) bar.style.width = `${Math.min(100, (bytes / (Number(bar.dataset.of) || total)) * 100).toFixed(1)}%`;
}

function tileOf(device) {
  return document.querySelector(`[data-device="${CSS.escape(device)}"]`);
}

function draw(device) {
  const canvas = tileOf(device)?.querySelector("[data-spark]");
  const values = recent.get(device) ?? [];
  if (canvas && values.some((share) => share !== null)) drawSpark(canvas, values);
}

// A sparkline on a canvas, 0 to 100, redrawn at each tick.
function drawSpark(canvas, values) {
  const ratio = devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return;
  canvas.width = width * ratio; // empties it, too
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = colour("line");
  pen.fillRect(0, height - 1, width, 1);
  const step = width / (SLOTS - 1);
  const first = width - (values.length - 1) * step;
  const y = (share) => 2 + (height - 4) * (1 - Math.min(100, Math.max(0, share)) / 100);
  pen.beginPath();
  values.forEach((share, at) => {
    if (share === null) return;
    pen[at && values[at - 1] !== null ? "lineTo" : "moveTo"](first + at * step, y(share));
  });
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1.5;
  pen.stroke();
}
