// A page with nothing live of its own: times, the live sign, keys.
import { startShell } from "./shell.js";

startShell();
