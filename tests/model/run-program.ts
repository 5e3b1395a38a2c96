import { isDeepStrictEqual } from 'node:util'
import { checkInvariants } from '@holdfast/invariants'
import type { Db } from '@holdfast/schema'
import { letPass } from '@holdfast/testbed/time-travel'
import { type AnswerShape, type Command, type Nth, type Operation, type Program, QUEUES } from './commands.ts'
import { EngineTables, realStatements, type Statements, type Tables } from './engine-tables.ts'
import { type Instance, occupies, Specification } from './specification.ts'

/** Where the database and the specification say different things, or an invariant is broken. */
export class ModelError extends Error {
  override readonly name = 'ModelError'
}

/**
 * Runs a program on both, compares what each command answers and everything that the tables hold after it, then lets all that is due happen, and looks
 * at the invariants. Throws ModelError, with the commands up to the one that differs.
 */
export async function runProgram(db: Db, { limits, operations }: Program, statements: Statements = realStatements): Promise<void> {
  const model = new Specification(limits)
  const tables = await EngineTables.open(db, limits, statements)
  const done: Command[] = []
  const fail = (what: string, cause?: unknown): never => {
    throw new ModelError(`${what}\n\nafter ${JSON.stringify(limits)}\n${done.map((one) => JSON.stringify(one)).join('\n')}`, { cause })
  }
  const step = async (command: Command): Promise<void> => {
    done.push(command)
    const expected = { answer: plain(model.perform(command)), ...tablesOf(model) }
    const answer = await tables.perform(command).catch((error: unknown) => fail(String(error), error))
    const { tables: read, untilAt } = await tables.read()
    const differences = differencesOf({ answer: plain(answer), ...read }, expected)
    if (differences.length > 0) fail(differences.join('\n'))
    for (const [nth, at] of untilAt) {
      const until = model.instances.get(nth)?.until
      if (until != null) until.at = at
    }
  }
  for (const operation of operations) {
    const command = resolve(operation, model)
    if (command !== undefined) await step(command)
  }
  for (let round = 0; round < 3; round += 1) for (const command of settling) await step(command)
  // All that was to happen has happened; what is left waits for something that has not.
  await letPass(db, 20_000)
  const violations = await checkInvariants(db)
  if (violations.length > 0) fail(violations.map(({ id, statement, rows }) => `${id}: ${statement} ${JSON.stringify(rows)}`).join('\n'))
}

const settling: readonly Command[] = [
  { do: 'flush', limit: 1_000, commits: true, wakes: true },
  { do: 'promoteDue' },
  { do: 'promoteThrottled' },
  { do: 'fireDeadlines' },
  { do: 'reap', wakes: true },
  { do: 'cancelOverdue', wakes: true },
  { do: 'cascade', wakes: true },
  { do: 'sweep' },
  ...QUEUES.map((queue): Command => ({ do: 'claim', queue, limit: 1_000, window: 1_000, park: true, versions: [1, 2], wakes: true })),
]

/** The same without `undefined` and prototypes. */
const plain = (value: unknown): unknown => (value === undefined ? null : JSON.parse(JSON.stringify(value)))

/** A line for each thing that the database has otherwise than the specification. */
function differencesOf(actual: object, expected: object): string[] {
  if (isDeepStrictEqual(actual, expected)) return []
  const [a, e] = [flat(actual), flat(expected)]
  return [...new Set([...e.keys(), ...a.keys()])].flatMap((path) =>
    a.get(path) === e.get(path) ? [] : [`${path} is ${a.get(path) ?? 'not there'}, and should be ${e.get(path) ?? 'not there'}`],
  )
}

/** Leaves by their paths, `instances.3.status`. */
function flat(value: unknown, path = '', into = new Map<string, string>()): Map<string, string> {
  if (typeof value !== 'object' || value === null) return into.set(path, JSON.stringify(value))
  const entries = Object.entries(value)
  if (entries.length === 0) return into.set(path, Array.isArray(value) ? '[]' : '{}')
  for (const [key, one] of entries) flat(one, path === '' ? key : `${path}.${key}`, into)
  return into
}

function tablesOf(model: Specification): Tables {
  const slots: Record<string, number> = {}
  for (const { key } of model.instances.values()) if (key !== null && model.slotsHeld(key) > 0) slots[key] = model.slotsHeld(key)
  return {
    instances: [...model.instances.values()].map(rowOf),
    signals: model.signals,
    outcomes: model.outcomes.map(({ answered: { ticket, shape } }) => ({ nth: ticket.instance, epoch: ticket.epoch, kind: shape.kind })),
    notes: [...model.notes.keys()].toSorted((a, b) => a - b),
    slots,
    tokens: Object.fromEntries([...model.buckets].map(([key, { tokens }]) => [key, tokens])),
  }
}

const rowOf = (g: Instance): Record<string, unknown> => ({
  nth: g.nth,
  parent: g.parent,
  parent_epoch: g.parentEpoch,
  queue: g.queue,
  priority: g.priority,
  version: g.version,
  status: g.status,
  step: g.step,
  epoch: g.epoch,
  attempt: g.attempt,
  reclaims: g.reclaims,
  key: g.key,
  rate_key: g.rateKey,
  weight: g.weight,
  guard: occupies(g) ? g.correlationKey : null,
  error: g.error,
  holds_slot: g.holdsSlot,
  eligible: g.eligible.hour,
  lease: g.lease,
  until: g.until === null ? null : Number.isFinite(g.until.hour) ? g.until.hour : 1e15,
  deadline: g.status.startsWith('awaiting_') ? g.deadline : null,
  pending: g.status === 'awaiting_children' ? g.pending : null,
  awaits: g.awaits === null ? null : g.awaits.join(','),
  cancelling: g.cancelAsked !== null && g.status === 'executing',
})

/** The command that an operation means where the program stands; nothing if there is nothing to do it to. */
function resolve(operation: Operation, model: Specification): Command | undefined {
  const created = [...model.instances.keys()]
  const nth = (pick: number): Nth | undefined => created[pick % created.length]
  const ticket = ({ pick, late }: { readonly pick: number; readonly late: boolean }) => {
    const tickets = late ? model.tickets : model.standing()
    return tickets[pick % tickets.length]
  }
  switch (operation.do) {
    case 'claim': {
      const { limit, further, newest, queue, park, wakes } = operation
      return { do: 'claim', queue, limit, window: limit + further, park, versions: newest ? [1, 2] : [1], wakes }
    }
    case 'claimOne': {
      const instance = nth(operation.pick)
      return instance === undefined ? undefined : { do: 'claimOne', instance, wakes: operation.wakes }
    }
    case 'signal': {
      const instance = nth(operation.pick)
      const { name, dedupKey } = operation
      return instance === undefined ? undefined : { do: 'signal', instance, name, dedupKey }
    }
    case 'cancel':
    case 'retry': {
      const instances = operation.picks.flatMap((pick) => nth(pick) ?? [])
      return instances.length === 0 ? undefined : { do: operation.do, instances, wakes: operation.wakes }
    }
    case 'beat':
    case 'release': {
      const tickets = [...new Set(operation.picks.flatMap((picked) => ticket(picked) ?? []))]
      return tickets.length === 0 ? undefined : { do: operation.do, tickets, wakes: operation.wakes }
    }
    case 'answer': {
      const answered = new Map(
        operation.tickets.flatMap((picked) => {
          const found = ticket(picked)
          if (found === undefined) return []
          return [[found, { ticket: found, shape: picked.shape, goesOn: picked.goesOn && mayGoOn(picked.shape) }] as const]
        }),
      )
      // Where nobody works there is nothing to answer; somebody begins to work, which leads further than doing nothing.
      if (answered.size === 0) {
        const [runnable] = [...model.instances.values()].filter(({ status }) => status === 'runnable')
        const limit = operation.tickets.length
        return (
          runnable && { do: 'claim', queue: runnable.queue, limit, window: limit, park: true, versions: [1, 2], wakes: operation.wakes }
        )
      }
      const all = [...answered.values()]
      return operation.direct ? { do: 'direct', answered: all, wakes: operation.wakes } : { do: 'stage', answered: all }
    }
    case 'insert':
    case 'flush':
    case 'promoteDue':
    case 'promoteThrottled':
    case 'fireDeadlines':
    case 'reap':
    case 'cancelOverdue':
    case 'cascade':
    case 'sweep':
    case 'deleteFinished':
    case 'gate':
    case 'pass':
    case 'pause':
      return operation
  }
}

/** A worker goes on with a next step that is to run at once and has no limits of its own. */
const mayGoOn = ({ kind, key, rateKey }: AnswerShape): boolean => kind === 'next' && key === null && rateKey === null
