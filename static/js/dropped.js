// A script dropped on any page waits in the browser's own store for the submit form to take it.
const PLACE = "dropped";

function store(mode, act) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("berth", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(PLACE);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const change = opening.result.transaction(PLACE, mode);
      const asked = act(change.objectStore(PLACE));
      change.oncomplete = () => {
        opening.result.close();
        resolve(asked.result);
      };
      change.onerror = () => reject(change.error);
    };
  });
}

export async function keepDropped(file) {
  await store("readwrite", (files) => files.put(file, PLACE));
}

export async function takeDropped() {
  const file = await store("readonly", (files) => files.get(PLACE));
  if (file) await store("readwrite", (files) => files.delete(PLACE));
  return file;
}
