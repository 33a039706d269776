// Why a version is not on a better device, and whether this is a problem.
const REASONS = {
  no_device: "the server found no TPU or GPU, or too few",
  no_jax: "JAX is not installed",
  programs_refused: "the device programs are of another version of JAX, damaged, or do not fit the mesh",
  no_memory: "the device has too little memory",
  device_failed: "a program does not compile for the device or fails on it",
  no_programs: "exported without device programs",
};
// Usual on a machine without an accelerator.
const USUAL = new Set(["no_jax", "no_programs"]);

export const describeFallback = (keyword) => (REASONS[keyword] ? `${REASONS[keyword]} (${keyword})` : keyword);
export const isProblem = (keyword, devices) => Boolean(keyword) && (devices.length > 0 || !USUAL.has(keyword));
