// The Overview: wall, box line and my jobs, live.
import { watchRows } from "./rows.js";
import { startShell } from "./shell.js";
import { watchTimeline } from "./timeline.js";
import { watchWall } from "./wall.js";

const WAITING = new Set(["queued", "held", "backoff"]);
const RUNNING = new Set(["starting", "running", "stopping"]);
const me = document.documentElement.dataset.user;

startShell();
watchWall();
watchTimeline();
watchRows("jobs", ["my-jobs"], { belongs: (row) => row.owner === me });
watchRows("queue", ["box-line"], {
  hasRows: false,
  onRows(rows) {
    const count = (states) => [...rows.values()].filter((row) => states.has(row.state)).length;
    const [running, waiting] = [count(RUNNING), count(WAITING)];
    document.title = running || waiting ? `(${running} running, ${waiting} waiting) Berth` : "Berth";
  },
});
