/** What the command ends with; docs/cli.md has the same table. */
export const ExitCodes = Object.freeze({
  ok: 0,
  /** Holdfast said no, an instance that was waited for did not end well, or doctor found something broken. */
  refused: 1,
  /** The command line cannot be understood, or says too little; nothing was sent. */
  usage: 2,
  /** No answer from the API or the database; whether a write was carried out is unknown unless the message says so. */
  unreachable: 3,
  /** A fault of the command itself. */
  internal: 70,
} as const)
export type ExitCode = (typeof ExitCodes)[keyof typeof ExitCodes]

/** What is wrong with a command line, what is accepted instead, and an example. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
}
