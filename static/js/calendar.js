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
let isChosen = false;
const slotAt = (event) => event.target.closest?.("[data-at]");
const hourOf = (slot) => Number(slot.dataset.at.slice(11, 13));
const reach = (last) => {
  const hours = [hourOf(first), hourOf(last?.parentElement === first.parentElement ? last : first)];
  return [Math.min(...hours), Math.max(...hours)];
};

// Fingers scroll, so for them an hour stays the link that it is without scripts.
document.addEventListener("pointerdown", (event) => {
  first = event.button === 0 && event.pointerType === "mouse" ? slotAt(event) : null;
  isChosen = false;
  if (first) event.preventDefault();
});
document.addEventListener("pointermove", (event) => {
  if (!first) return;
  const [from, until] = reach(slotAt(event));
  for (const slot of first.parentElement.querySelectorAll("[data-at]"))
    slot.classList.toggle("is-over", from <= hourOf(slot) && hourOf(slot) <= until);
});
document.addEventListener("pointerup", (event) => {
  if (!first) return;
  const [from, until] = reach(slotAt(event));
  const day = first.dataset.at.slice(0, 11);
  const text = (hour) => (hour < 24 ? `${day}${String(hour).padStart(2, "0")}:00` : `${day}23:59`);
  by("booking-from").value = text(from);
  by("booking-until").value = text(until > from ? until + 1 : from + 2);
  by("booking-name").focus();
  first = null;
  isChosen = true;
});
document.addEventListener("click", (event) => isChosen && slotAt(event) && event.preventDefault());
document.addEventListener("dragstart", (event) => first && event.preventDefault());
