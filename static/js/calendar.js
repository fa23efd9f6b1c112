// The week of bookings: hours are chosen by dragging, and days are those of the reader's time zone.
import "./change.js";
import { by } from "./dom.js";

const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
if (timeZone && timeZone !== by("week").dataset.zone && !document.cookie.includes(`berth_zone=${timeZone}`)) {
  document.cookie = `berth_zone=${timeZone}; max-age=31536000; path=/; samesite=lax`;
  // Browsers that keep no cookies stay with UTC, and are not sent in circles.
  if (document.cookie.includes("berth_zone")) location.reload();
}

let first = null;
const slotAt = (event) => event.target.closest?.("[data-at]");
const hourOf = (slot) => Number(slot.dataset.at.slice(11, 13));
const reach = (last) => {
  const same = last?.parentElement === first.parentElement ? hourOf(last) : hourOf(first);
  return [Math.min(hourOf(first), same), Math.max(hourOf(first), same)];
};

document.addEventListener("pointerdown", (event) => {
  if (event.button === 0 && event.pointerType === "mouse") first = slotAt(event);
  if (first) event.preventDefault();
});
document.addEventListener("pointermove", (event) => {
  if (!first) return;
  const [from, until] = reach(slotAt(event));
  for (const slot of first.parentElement.children)
    slot.classList.toggle("is-over", from <= hourOf(slot) && hourOf(slot) <= until);
});
document.addEventListener("pointerup", (event) => {
  if (!first) return;
  const [from, until] = reach(slotAt(event));
  const day = first.dataset.at.slice(0, 11);
  const text = (hour) => `${String(hour).padStart(2, "0")}:00`;
  by("booking-from").value = day + text(from);
  // One hour alone was clicked: as long as the link without scripts makes it.
  const end = until > from ? until + 1 : from + 2;
  by("booking-until").value = end < 24 ? day + text(end) : `${day}23:59`;
  first = null;
});
document.addEventListener("click", (event) => {
  if (!slotAt(event)) return;
  event.preventDefault();
  by("booking-name").focus();
});
