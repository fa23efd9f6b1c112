// The sign in the top bar: how old what you see is, by the server's clock.
import { live } from "./socket.js";
import { serverNow } from "./time.js";
import { clock } from "./words.js";

const STALE_S = 3;
let dataTime = 0; // when the newest reading was taken, server's clock

export function sawReading(taken) {
  dataTime = taken;
}

export function startLiveDot() {
  const dot = document.getElementById("live");
  const show = () => {
    const [state, text] = describe();
    if (dot.dataset.state !== state) dot.dataset.state = state;
    if (dot.textContent !== text) dot.textContent = text;
    document.body.classList.toggle("is-stale", state !== "live" && dataTime > 0);
  };
  live.addEventListener("state", show);
  setInterval(show, 500);
  show();
}

function describe() {
  const from = dataTime ? `, data from ${clock(dataTime, true)}` : "";
  if (live.state === "signed-out") return ["signed-out", "signed out"];
  if (live.state === "connecting") return ["none", "connecting"];
  if (live.state === "reconnecting") return ["reconnecting", `reconnecting${from}`];
  if (!dataTime) return ["live", "live"];
  const age = Math.max(0, serverNow() - dataTime);
  return age > STALE_S ? ["stale", `stale${from}`] : ["live", `live ${age.toFixed(1)} s`];
}
