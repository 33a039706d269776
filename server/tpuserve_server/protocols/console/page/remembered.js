// Choices that the browser keeps. A browser that blocks its storage raises an error for each access.

// Returns a choice, or null.
export function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function remember(key, choice) {
  try {
    localStorage.setItem(key, choice);
  } catch {
    // The choice lasts until the page closes.
  }
}
