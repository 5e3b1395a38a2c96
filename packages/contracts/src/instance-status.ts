//                                        claim, denied by a limit
//                                      throttled ◄────────────────┐
//                                          └─ capacity, tokens ─┐ │
//                    ┌───────────────── promote (due) ─────────┐│ │
//                    │                                         ▼▼ │
//  insert ──► scheduled            insert ──────────────────► runnable ──claim──► executing
//                    ▲                                        ▲ ▲ ▲                  │
//                    │                   signal, deadline ────┘ │ │                  │ flush of an outcome, or
//                    │              awaiting_signal ◄───────────┼─┼── await_signal ──┤ the reaper where a claim is over
//                    │    children, quorum, deadline ───────────┘ │                  │
//                    │            awaiting_children ◄─────────────┼── spawn ─────────┤
//                    └──────────── sleep, retry with a delay ─────┼──────────────────┤
//                                                                 └─ next, release ──┤
//                                            done · failed · cancelled ◄─────────────┘
//                                                     │
//                  retry by a person: runnable ◄──────┴─ of what failed or was cancelled

/** Where an instance is. The strings are those of the database enum `holdfast.instance_status` and of the wire. */
export const InstanceStatuses = Object.freeze([
  'scheduled',
  'runnable',
  'throttled',
  'executing',
  'awaiting_signal',
  'awaiting_children',
  'done',
  'failed',
  'cancelled',
] as const)
export type InstanceStatus = (typeof InstanceStatuses)[number]

const terminal: Record<InstanceStatus, boolean> = {
  scheduled: false,
  runnable: false,
  throttled: false,
  executing: false,
  awaiting_signal: false,
  awaiting_children: false,
  done: true,
  failed: true,
  cancelled: true,
}

/** Over for good: nothing but a retry by a person moves it again. */
export const isTerminal = (status: InstanceStatus): boolean => terminal[status]

const settled: Record<InstanceStatus, boolean> = { ...terminal, awaiting_signal: true, awaiting_children: true }

/** Nothing will run before something outside happens: terminal, or parked. */
export const isSettled = (status: InstanceStatus): boolean => settled[status]

export type TerminalStatus = 'done' | 'failed' | 'cancelled'
export const TerminalStatuses = Object.freeze(['done', 'failed', 'cancelled'] as const satisfies readonly TerminalStatus[])

/**
 * Every pair, decided. A test compares this table with what the statements do; a new status cannot be added without
 * filling its row and its column.
 */
export const transitions: Record<InstanceStatus, Record<InstanceStatus, boolean>> = {
  scheduled: row('runnable', 'cancelled'),
  runnable: row('executing', 'throttled', 'cancelled'),
  throttled: row('runnable', 'cancelled'),
  executing: row('scheduled', 'runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled'),
  awaiting_signal: row('runnable', 'cancelled'),
  awaiting_children: row('runnable', 'cancelled'),
  done: row(),
  failed: row('runnable'), // retried by a person
  cancelled: row('runnable'), // retried by a person
}

function row(...reachable: InstanceStatus[]): Record<InstanceStatus, boolean> {
  return Object.fromEntries(InstanceStatuses.map((status) => [status, reachable.includes(status)])) as Record<InstanceStatus, boolean>
}
