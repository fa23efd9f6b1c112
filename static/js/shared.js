// A page behind a link stays live: it reads itself again while somebody looks at it.
const EVERY_MS = 10_000;

async function renew() {
  if (document.hidden) return;
  const answer = await fetch(location.href, { credentials: "omit", cache: "no-store" }).catch(() => null);
  if (!answer) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const at = document.scrollingElement.scrollTop;
  document.body.replaceWith(page.body);
  document.scrollingElement.scrollTop = at;
  if (!answer.ok || !page.querySelector("script[src*='shared']")) clearInterval(timer);
}

const timer = setInterval(renew, EVERY_MS);
