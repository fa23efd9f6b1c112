// Memory and utilisation of a job's devices over its time.
import { Chart } from "./charts.js";
import { sawReading } from "./shell.js";
import { live } from "./socket.js";
import { size } from "./words.js";

const MOST_LIVE = 600; // five minutes at 2 Hz, then the server's buckets are read again

export async function watchDevices(address, isFinal) {
  const answer = await fetch(address);
  if (!answer.ok) return;
  const { devices } = await answer.json();
  if (!devices.length) {
    if (!isFinal) live.subscribe("devices", (frame) => frame.data && sawReading(frame.data.t));
    return;
  }
  const section = document.getElementById("devices-section");
  const box = document.getElementById("device-charts");
  section.hidden = false;
  box.replaceChildren();
  const memory = new Chart(box, { title: "memory in use", fromZero: true, format: (gib) => size(gib * 1024 ** 3) });
  const use = new Chart(box, { title: "utilisation", unit: " %", fromZero: true, format: (percent) => Math.round(percent) });
  const byId = new Map(devices.map((device) => [device.id, { ...device, memory: inGib(device.series.memory_used_bytes), use: device.series.utilization_percent ?? nothing() }]));
  const draw = () => {
    const all = [...byId.values()].slice(0, 8);
    for (const [chart, name] of [[memory, "memory"], [use, "use"]]) {
      chart.xKind = "time";
      const filled = all.filter((device) => device[name].x.length);
      chart.figure.hidden = !filled.length;
      chart.show(filled.map((device, index) => ({ label: device.label, colour: `job-${index + 1}`, data: device[name] })));
    }
  };
  draw();
  if (isFinal) return;
  let added = 0;
  live.subscribe("devices", (frame) => {
    if (!frame.data) return;
    sawReading(frame.data.t);
    for (const [id, percent, used] of frame.data.readings) {
      const device = byId.get(id);
      if (!device) continue;
      push(device.memory, frame.data.t, used === null ? null : used / 1024 ** 3);
      if (percent !== null) push(device.use, frame.data.t, percent);
      added += 1;
    }
    if (added > MOST_LIVE * byId.size) thin(byId, (added = 0));
    draw();
  });
}

function nothing() {
  return { x: [], y: [], y_min: [], y_max: [], n: [], bucket: 1, total: 0 };
}

function inGib(series) {
  if (!series) return nothing();
  const gib = (values) => values.map((bytes) => (bytes === null ? null : bytes / 1024 ** 3));
  return { ...series, y: gib(series.y), y_min: gib(series.y_min), y_max: gib(series.y_max) };
}

function push(data, x, y) {
  if (data.x.length && x <= data.x.at(-1)) return;
  data.x.push(x);
  data.y.push(y);
  data.y_min.push(y);
  data.y_max.push(y);
  data.n.push(1);
}

// Every second of the oldest live points goes, with its extremes kept in its neighbour.
function thin(byId) {
  for (const device of byId.values()) {
    for (const data of [device.memory, device.use]) {
      const { x, y, y_min: low, y_max: high, n } = data;
      for (let at = x.length - 2; at > 0; at -= 2) {
        if (y[at] === null || y[at - 1] === null) continue;
        low[at] = Math.min(low[at], low[at - 1]);
        high[at] = Math.max(high[at], high[at - 1]);
        n[at] += n[at - 1];
        for (const column of [x, y, low, high, n]) column.splice(at - 1, 1);
      }
    }
  }
}
