// The table of jobs, live; the filters swap it through htmx.
import { watchChoices } from "./choosing.js";
import { watchFilters } from "./filters.js";
import { watchRows } from "./rows.js";
import { startShell } from "./shell.js";

startShell();
watchRows("jobs", ["jobs"]);
watchChoices();
watchFilters();
