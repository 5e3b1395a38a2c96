/** The version that a process writes into its row, so that a rolling upgrade can be watched. */
export const CODE_VERSION = '0.0.0'

/** The newest migration that this code knows; a test compares it with the folder. */
export const KNOWN_SCHEMA = 8
