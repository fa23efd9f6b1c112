// The table of jobs, live; the filters swap it through htmx.
import { watchRows } from "./rows.js";
import { startShell } from "./shell.js";

startShell();
watchRows("jobs", ["jobs"]);
