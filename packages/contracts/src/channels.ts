/**
 * NOTIFY channels. A notification is a hint to look sooner: with every one lost, the system is slower and nothing else.
 * Each name is shorter than the 63 bytes PostgreSQL allows.
 */
export const Channels = Object.freeze({
  /** Something became runnable. Payload: the queue. Heard by schedulers. */
  runnable: 'holdfast_runnable',
  /** An outcome was staged. No payload. Heard by flushers. */
  outcome: 'holdfast_outcome',
  /** Something is due soon (a scheduled row, an await deadline). Payload: milliseconds from now. Heard by schedulers and reapers. */
  timer: 'holdfast_timer',
  /** A schedule was defined. Payload: milliseconds until its next tick. Heard by schedulers. */
  schedule: 'holdfast_schedule',
  /** An executing instance was asked to stop. Payload: its id. Heard by schedulers. */
  cancel: 'holdfast_cancel',
} as const)
export type Channel = (typeof Channels)[keyof typeof Channels]
