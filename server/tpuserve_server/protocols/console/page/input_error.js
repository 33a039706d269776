// A value that the user must correct. The message names the input.
export class InputError extends Error {}
