// Passkeys: a form with data-passkey asks the browser for one and sends its answer.
import { by, say } from "./dom.js";

const parse = { create: "parseCreationOptionsFromJSON", get: "parseRequestOptionsFromJSON" };

async function answer(form) {
  const act = form.dataset.passkey;
  const options = JSON.parse(by(form.dataset.options).textContent).publicKey;
  const credential = await navigator.credentials[act]({ publicKey: PublicKeyCredential[parse[act]](options) });
  form.elements.passkey.value = JSON.stringify(credential);
  form.submit();
}

function tell(form, sentence) {
  const place = form.querySelector("[role=alert]");
  place.textContent = sentence;
  place.hidden = false;
}

for (const form of document.querySelectorAll("form[data-passkey]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!window.PublicKeyCredential?.parseCreationOptionsFromJSON) {
      tell(form, say("This browser offers no passkeys here. They need HTTPS and a current browser."));
      return;
    }
    answer(form).catch((error) => tell(form, say("The browser gave no passkey: {error}", { error: error.message })));
  });
}
