// Made by python -m deploy.translations.
globalThis.berthWords = {
"now": "jetzt"
};
