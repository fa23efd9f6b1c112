// Memory and utilisation of a job's devices over its time.
import { addPoint } from "./buckets.js";
import { Chart } from "./charts.js";
import { sawReading } from "./shell.js";
import { live } from "./socket.js";
import { size } from "./words.js";

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
  const memory = new Chart(box, { title: "memory in use", csv: `${address}.csv`, fromZero: true, format: (gib) => size(gib * 1024 ** 3) });
  const use = new Chart(box, { title: "utilisation", csv: `${address}.csv`, unit: " %", fromZero: true, format: (percent) => Math.round(percent) });
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
  live.subscribe("devices", (frame) => {
    if (!frame.data) return;
    sawReading(frame.data.t);
    for (const [id, percent, used] of frame.data.readings) {
      const device = byId.get(id);
      if (!device) continue;
      addPoint(device.memory, frame.data.t, used === null ? null : used / 1024 ** 3);
      if (percent !== null) addPoint(device.use, frame.data.t, percent);
    }
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
